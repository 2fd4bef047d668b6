package doctor_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	logging "google.golang.org/api/logging/v2"
	"google.golang.org/api/option"

	"taskguard/cmd/internal/doctor"
)

// logs returns a project whose Cloud Logging has one line, after so many calls. The line has
// the terms of a filter, and is not earlier than the filter's timestamp.
func logs(at time.Time, after int, line string) doctor.Logs {
	answer := func(r *http.Request) (int, string) {
		var request logging.ListLogEntriesRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || r.URL.Path != "/v2/entries:list" || fmt.Sprint(request.ResourceNames) != "[projects/my-project]" {
			return http.StatusBadRequest, "{}"
		}
		if after--; after >= 0 {
			return http.StatusOK, "{}"
		}
		for term := range strings.SplitSeq(request.Filter, " AND ") {
			name, either, several := strings.Cut(term, "=(")
			found := !several && strings.Contains(line, term)
			for value := range strings.SplitSeq(strings.TrimSuffix(either, ")"), " OR ") {
				found = found || several && strings.Contains(line, name+"="+value)
			}
			if since, timed := strings.CutPrefix(term, "timestamp>="); timed {
				limit, err := time.Parse(time.RFC3339, strings.Trim(since, `"`))
				found = err == nil && !at.Before(limit)
			}
			if !found {
				return http.StatusOK, "{}"
			}
		}
		return http.StatusOK, `{"entries":[{"resource":{"labels":{"service_name":"worker-1"}}}]}`
	}
	client := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		code, body := answer(r)
		return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}, nil
	})}
	return doctor.Logs{Project: "my-project", Google: []option.ClientOption{option.WithHTTPClient(client)}}
}

func TestASmokeTestFindsItsLineAndARecovery(t *testing.T) {
	const (
		service  = `resource.type="cloud_run_revision" resource.labels.service_name="worker-1" `
		delivery = service + `jsonPayload.message="delivery" jsonPayload.analysis_id="x" `
		recovery = service + `jsonPayload.message="recovery" `
	)
	for name, c := range map[string]struct {
		age       time.Duration
		after     int
		line      string
		recovered bool // what is looked for
		want      bool
	}{
		"a delivery":                  {0, 0, delivery + `jsonPayload.outcome="ready"`, false, true},
		"a line that comes late":      {0, 23, delivery + `jsonPayload.outcome="ready"`, false, true},
		"one that comes too late":     {0, 25, delivery + `jsonPayload.outcome="ready"`, false, false},
		"a delivery that was skipped": {0, 0, delivery + `jsonPayload.outcome="already_finished"`, false, false},
		"another's":                   {0, 0, strings.Replace(delivery, `"x"`, `"y"`, 1) + `jsonPayload.outcome="ready"`, false, false},
		"a recovery":                  {9 * time.Minute, 0, recovery + `jsonPayload.outcome="recovered"`, true, true},
		"a recovery beside it":        {0, 0, strings.Replace(recovery, "worker-1", "worker-1-recovery", 1) + `jsonPayload.outcome="recovered"`, true, true},
		"an old one":                  {13 * time.Minute, 0, recovery + `jsonPayload.outcome="recovered"`, true, false},
		"one without a queue":         {0, 0, recovery + `jsonPayload.outcome="no_queue"`, true, false},
		"one of another service":      {0, 0, strings.Replace(recovery, "worker-1", "worker-2", 1) + `jsonPayload.outcome="recovered"`, true, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, service := logs(time.Now().Add(-c.age), c.after, c.line), "worker-1"
			var err error
			if c.recovered {
				err = l.Recovered(t.Context(), "worker-1")
			} else {
				service, err = l.Delivered(t.Context(), "x", time.Now().Add(-time.Second))
			}
			missing := err != nil && strings.Contains(err.Error(), "no such line")
			if c.want != (err == nil) || c.want == missing || c.want && service != "worker-1" {
				t.Errorf("%s: %q, %v", name, service, err)
			}
		})
	}

	other := logs(time.Now(), 0, "")
	other.Project = "other"
	if _, err := other.Delivered(t.Context(), "x", time.Now()); err == nil || !strings.Contains(err.Error(), "answer 400 of Cloud Logging") {
		t.Errorf("a refusal: %v", err)
	}
}
