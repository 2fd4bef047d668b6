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
		err := json.NewDecoder(r.Body).Decode(&request)
		if err != nil || r.URL.Path+fmt.Sprint(request.ResourceNames) != "/v2/entries:list[projects/my-project]" {
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
		text := io.NopCloser(strings.NewReader(body))
		return &http.Response{StatusCode: code, Header: http.Header{}, Body: text}, nil
	})}
	return doctor.Logs{Project: "my-project", Google: []option.ClientOption{option.WithHTTPClient(client)}}
}

func TestLogs(t *testing.T) {
	const (
		service  = `resource.type="cloud_run_revision" resource.labels.service_name="worker-1" `
		delivery = service + `jsonPayload.message="delivery" jsonPayload.analysis_id="x" `
		recovery = service + `jsonPayload.message="recovery" `
	)
	another := func(line, old, replacement string) string { return strings.Replace(line, old, replacement, 1) }
	const ready, recovered = delivery + `jsonPayload.outcome="ready"`, recovery + `jsonPayload.outcome="recovered"`
	for name, tc := range map[string]struct {
		age   time.Duration
		after int
		line  string
		want  bool
	}{
		"a delivery":             {line: ready, want: true},
		"a line that comes late": {line: ready, after: 23, want: true},
		"one that is too late":   {line: ready, after: 25},
		"a skipped delivery":     {line: delivery + `jsonPayload.outcome="already_finished"`},
		"another's":              {line: another(ready, `"x"`, `"y"`)},

		"a recovery":              {line: recovered, age: 9 * time.Minute, want: true},
		"a recovery beside it":    {line: another(recovered, "worker-1", "worker-1-recovery"), want: true},
		"an old recovery":         {line: recovered, age: 13 * time.Minute},
		"a recovery, no queue":    {line: recovery + `jsonPayload.outcome="no_queue"`},
		"a recovery of another's": {line: another(recovered, "worker-1", "worker-2")},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, service := logs(time.Now().Add(-tc.age), tc.after, tc.line), "worker-1"
			var err error
			if strings.Contains(name, "recovery") {
				err = l.Recovered(t.Context(), "worker-1")
			} else {
				service, err = l.Delivered(t.Context(), "x", time.Now().Add(-time.Second))
			}
			want := "<nil>"
			if !tc.want {
				want, service = "no such line", "worker-1"
			}
			if !strings.Contains(fmt.Sprint(err), want) || service != "worker-1" {
				t.Errorf("%s: %q, %v, want %s", name, service, err, want)
			}
		})
	}

	other := logs(time.Now(), 0, "")
	other.Project = "other"
	if _, err := other.Delivered(t.Context(), "x", time.Now()); err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("a refusal: %v", err)
	}
}
