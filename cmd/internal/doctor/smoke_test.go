package doctor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	logging "google.golang.org/api/logging/v2"
	"google.golang.org/api/option"

	"taskguard/cmd/internal/doctor"
)

// logs returns a project whose Cloud Logging has lines, each after so many calls. A line has
// the terms of a filter, and is not earlier than the filter's timestamp.
func logs(t *testing.T, at time.Time, after int, lines ...string) doctor.Logs {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request logging.ListLogEntriesRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || r.URL.Path != "/v2/entries:list" || fmt.Sprint(request.ResourceNames) != "[projects/my-project]" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		after--
		for _, line := range lines {
			matches := after < 0
			for term := range strings.SplitSeq(request.Filter, " AND ") {
				if since, timed := strings.CutPrefix(term, "timestamp>="); timed {
					limit, err := time.Parse(time.RFC3339, strings.Trim(since, `"`))
					matches = matches && err == nil && !at.Before(limit)
				} else {
					name, either, several := strings.Cut(term, "=(")
					found := !several && strings.Contains(line, term)
					for value := range strings.SplitSeq(strings.TrimSuffix(either, ")"), " OR ") {
						found = found || several && strings.Contains(line, name+"="+value)
					}
					matches = matches && found
				}
			}
			if matches {
				_, _ = fmt.Fprint(w, `{"entries":[{"resource":{"labels":{"service_name":"worker-1"}}}]}`)
				return
			}
		}
		_, _ = fmt.Fprint(w, `{}`)
	}))
	t.Cleanup(s.Close)
	google := []option.ClientOption{option.WithEndpoint(s.URL), option.WithoutAuthentication()}
	return doctor.Logs{Project: "my-project", Patience: 100 * time.Millisecond, Google: google}
}

func TestASmokeTestFindsItsLineAndARecovery(t *testing.T) {
	const (
		service  = `resource.type="cloud_run_revision" resource.labels.service_name="worker-1" `
		delivery = service + `jsonPayload.message="delivery" jsonPayload.analysis_id="x" `
		recovery = service + `jsonPayload.message="recovery" `
	)
	now := time.Now()
	for name, c := range map[string]struct {
		age       time.Duration
		after     int
		line      string
		recovered bool // what is looked for
		want      error
	}{
		"a delivery":                  {0, 0, delivery + `jsonPayload.outcome="ready"`, false, nil},
		"a line that comes late":      {0, 1, delivery + `jsonPayload.outcome="ready"`, false, nil},
		"a delivery that was skipped": {0, 0, delivery + `jsonPayload.outcome="already_finished"`, false, doctor.ErrNoLine},
		"another's":                   {0, 0, strings.Replace(delivery, `"x"`, `"y"`, 1) + `jsonPayload.outcome="ready"`, false, doctor.ErrNoLine},
		"a recovery":                  {9 * time.Minute, 0, recovery + `jsonPayload.outcome="recovered"`, true, nil},
		"a recovery beside it":        {0, 0, strings.Replace(recovery, "worker-1", "worker-1-recovery", 1) + `jsonPayload.outcome="recovered"`, true, nil},
		"an old one":                  {11 * time.Minute, 0, recovery + `jsonPayload.outcome="recovered"`, true, doctor.ErrNoLine},
		"one without a queue":         {0, 0, recovery + `jsonPayload.outcome="no_queue"`, true, doctor.ErrNoLine},
		"one of another service":      {0, 0, strings.Replace(recovery, "worker-1", "worker-2", 1) + `jsonPayload.outcome="recovered"`, true, doctor.ErrNoLine},
	} {
		t.Run(name, func(t *testing.T) {
			l, service := logs(t, now.Add(-c.age), c.after, c.line), "worker-1"
			var err error
			if l.Patience = 100 * time.Millisecond; c.want == nil {
				l.Patience = time.Minute
			}
			if c.recovered {
				err = l.Recovered(t.Context(), "worker-1")
			} else {
				service, err = l.Delivered(t.Context(), "x", now.Add(-time.Second))
			}
			if !errors.Is(err, c.want) || c.want == nil && service != "worker-1" {
				t.Errorf("%q, %v, want %v", service, err, c.want)
			}
		})
	}

	other := logs(t, now, 0)
	other.Project = "other"
	if _, err := other.Delivered(context.Background(), "x", now); err == nil || !strings.Contains(err.Error(), "answer 400 of Cloud Logging") {
		t.Errorf("a refusal: %v", err)
	}
}
