package worker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
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
		"ready":             {analyze: succeed, want: map[string]any{"outcome": "ready", "status": 200.0, "lock_token": 1.0}},
		"failed":            {analyze: failing(&orchestrator.PermanentError{Code: "invalid_input", Message: secret}), want: map[string]any{"level": "WARN", "outcome": "failed", "code": "invalid_input"}},
		"retry":             {analyze: failing(&orchestrator.FailureError{Code: "no_quota", Reason: "sh ended with exit status 1", Message: secret}), want: map[string]any{"outcome": "retry", "code": "no_quota", "reason": "sh ended with exit status 1"}},
		"a plug-in's error": {analyze: failing(errors.New(secret)), want: map[string]any{"outcome": "retry", "code": "analyzer_failed", "reason": "the analyzer returned a *errors.errorString"}},
		"an error without a reason, and with a code that is not UTF-8": {analyze: failing(&orchestrator.FailureError{Code: "\xff", Message: secret}), want: map[string]any{"outcome": "retry", "code": "analyzer_failed", "reason": "the analyzer returned a *orchestrator.FailureError"}},
		"a permanent error without a code":                             {analyze: failing(&orchestrator.PermanentError{Message: secret}), want: map[string]any{"outcome": "failed", "code": "analyzer_rejected", "reason": nil}},
		"a permanent error with a code that is not UTF-8":              {analyze: failing(&orchestrator.PermanentError{Code: "no\xff_page" + strings.Repeat("e", 100), Message: secret}), want: map[string]any{"outcome": "failed", "code": "no_page" + strings.Repeat("e", 56)}},
		"an uncertain act": {analyze: failing(&orchestrator.UncertainError{Key: "x", Name: "charge"}), want: map[string]any{"outcome": "failed", "code": "effect_uncertain"}},
		"an error of a run that passed its deadline": {analyze: func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
			<-ctx.Done()
			return nil, &orchestrator.FailureError{Reason: "the model is away", Message: secret, Err: ctx.Err()}
		}, want: map[string]any{"outcome": "retry", "code": "run_timeout", "reason": "the model is away"}},
		"doubtful output": {analyze: func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			job.Reporter.(orchestrator.Warner).Warn("it begins like JSON") //nolint:forcetypeassert // the worker's is
			return secret, nil
		}, also: `"the analyzer's output is doubtful","analysis_id":"x","problem":"it begins like JSON"`, want: map[string]any{"outcome": "ready", "reason": nil}},
		"panic": {analyze: func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			panic(secret)
		}, also: `"the analyzer panicked","analysis_id":"x","stack":"goroutine`, want: map[string]any{"outcome": "retry", "code": "analyzer_panicked"}},
		"the last attempt": {before: 2, analyze: failing(&orchestrator.FailureError{Reason: "sh ended with exit status 1", Message: secret}), want: map[string]any{"outcome": "failed", "code": "attempts_exhausted", "reason": "sh ended with exit status 1"}},
		"a bad id":         {body: `{"analysis_id":"` + secret + `/"}`, analyze: succeed, want: map[string]any{"outcome": "bad_request", "analysis_id": nil}},
		"no JSON":          {body: secret, analyze: succeed, want: map[string]any{"level": "WARN", "outcome": "bad_request"}},
	}
	for name, tc := range cases {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "input": secret, "attempts": tc.before})
			w := start(t, b, tc.analyze)
			w.guard.RunTimeout = 10 * time.Second
			w.post(t, cmp.Or(tc.body, `{"analysis_id":"x"}`))
			if log := w.log.String(); strings.Contains(log, secret) || !strings.Contains(log, tc.also) {
				t.Errorf("the log shows the input, or lacks %s: %s", tc.also, log)
			}
			reply{Body: w.entry(t, "delivery")}.check(t, 0, tc.want)
		})
	}
}

// entry returns the one line with this message, or nil.
func (w *process) entry(t *testing.T, message string) (found map[string]any) {
	t.Helper()
	for line := range bytes.Lines(w.log.Bytes()) {
		var entry map[string]any
		if err := json.Unmarshal(line, &entry); err != nil {
			t.Fatal(err)
		}
		if entry["msg"] == message {
			if found != nil {
				t.Errorf("%q is logged twice", message)
			}
			found = entry
		}
	}
	return found
}

// The log line of the delivery does not contain these failures.
func TestAFollowUpAReleaseAndAResultThatFailAreLogged(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		var w *process
		w = startOn(t, b, refusing{}, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if job.AnalysisID == "full" {
				return strings.Repeat("y", 600_000), nil
			}
			w.unavailable.Store(true)
			return nil, errors.New("flaky")
		})
		held(t, b, "held", time.Hour)
		b.Put(t, "full", map[string]any{"status": "QUEUED", "input": strings.Repeat("x", 600_000)})
		b.Put(t, "unavailable", map[string]any{"status": "QUEUED"})
		for _, tc := range []struct {
			id, message string
			error       any
		}{
			{"held", "no delivery booked", "no"},
			{"full", "Firestore refused the result", nil},
			{"unavailable", "lock not released", "*"},
		} {
			w.line(t, deliveryRoute, tc.id, nil)
			reply{Body: w.entry(t, tc.message)}.check(t, 0, map[string]any{"level": "WARN", "analysis_id": tc.id, "error": tc.error})
		}
	})
}
