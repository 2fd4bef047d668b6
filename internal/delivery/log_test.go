package delivery_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"taskguard/internal/emulatortest"
	"taskguard/orchestrator"
)

// The line contains the reason, and no text of the input or the analyzer.
func TestADeliveryIsOneLineWithoutTheInput(t *testing.T) {
	const secret = "s3cret"
	cases := map[string]struct {
		body    string
		before  int    // attempts
		also    string // another line's text
		analyze orchestrator.AnalyzerFunc
		want    map[string]any
	}{
		"ready": {analyze: succeed, want: map[string]any{"outcome": "ready", "status": 200.0, "lock_token": 1.0}},
		"failed": {analyze: func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			return nil, &orchestrator.PermanentError{Code: "invalid_input", Message: secret}
		}, want: map[string]any{"level": "WARN", "outcome": "failed", "code": "invalid_input"}},
		"retry": {analyze: func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			return nil, &orchestrator.FailureError{Reason: "sh ended with exit status 1", Message: secret}
		}, want: map[string]any{"outcome": "retry", "code": "analyzer_failed", "reason": "sh ended with exit status 1"}},
		"a plug-in's error": {analyze: func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			return nil, errors.New(secret)
		}, want: map[string]any{"outcome": "retry", "code": "analyzer_failed"}},
		"panic": {analyze: func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			panic(secret)
		}, also: `"the analyzer panicked","analysis_id":"x","stack":"goroutine`, want: map[string]any{"outcome": "retry", "code": "analyzer_panicked"}},
		"the last attempt": {before: 2, analyze: func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			return nil, &orchestrator.FailureError{Reason: "sh ended with exit status 1", Message: secret}
		}, want: map[string]any{"outcome": "failed", "code": "attempts_exhausted", "reason": "sh ended with exit status 1"}},
		"a bad id": {body: `{"analysis_id":"` + secret + `/"}`, analyze: succeed, want: map[string]any{"outcome": "bad_request", "analysis_id": nil}},
		"no JSON":  {body: secret, analyze: succeed, want: map[string]any{"level": "WARN", "outcome": "bad_request"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			b.Put(t, "x", map[string]any{"status": "QUEUED", "input": secret, "attempts": tc.before})
			w := start(t, b, tc.analyze)
			var log bytes.Buffer
			w.guard.Log = slog.New(slog.NewJSONHandler(&log, nil))
			w.Server = serverOf(t.Context(), w.guard, nil)
			if tc.body == "" {
				tc.body = `{"analysis_id":"x"}`
			}
			w.post(t, tc.body)
			if strings.Contains(log.String(), secret) {
				t.Errorf("the log shows it: %s", &log)
			}
			if !strings.Contains(log.String(), tc.also) {
				t.Errorf("%s lacks %s", &log, tc.also)
			}
			var deliveries []map[string]any
			for line := range strings.Lines(log.String()) {
				var entry map[string]any
				if err := json.Unmarshal([]byte(line), &entry); err != nil {
					t.Fatal(err)
				}
				if entry["msg"] == "delivery" {
					deliveries = append(deliveries, entry)
				}
			}
			if len(deliveries) != 1 {
				t.Fatalf("%d lines, want 1: %s", len(deliveries), &log)
			}
			answer{Body: deliveries[0]}.check(t, 0, tc.want)
		})
	}
}
