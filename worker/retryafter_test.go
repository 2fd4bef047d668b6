package worker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
)

func TestAFailureSaysWhenToComeAgain(t *testing.T) {
	in := func(d time.Duration) error { return fmt.Errorf("quota: %w", RetryAfter(errors.New("429"), d)) }
	for name, tc := range map[string]struct {
		err          error
		attempts     int // before
		withoutQueue bool
		want         time.Duration // zero: the usual wait
		after        int64         // attempts
		retryAfter   string
	}{
		"in 7 s":                          {err: in(7 * time.Second), want: 7 * time.Second, after: 0},
		"in 1 ms":                         {err: in(time.Millisecond), want: time.Millisecond, after: 0},
		"longer than RETRY_MAX":           {err: in(time.Hour), want: time.Hour, after: 0},
		"at the last attempt":             {err: in(time.Hour), attempts: 2, want: time.Hour, after: 2},
		"in 12 h":                         {err: in(12 * time.Hour), want: 12 * time.Hour, after: 0},
		"later":                           {err: in(12*time.Hour + time.Second), want: 12 * time.Hour, after: 0},
		"zero":                            {err: in(0), after: 1},
		"negative":                        {err: in(-time.Hour), after: 1},
		"without a queue":                 {err: in(time.Hour), attempts: 2, withoutQueue: true, after: 2, retryAfter: "3600"},
		"an ordinary one without a queue": {err: errors.New("x"), withoutQueue: true, after: 1},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "attempts": tc.attempts, "lockToken": 4})
			w := start(t, b, failing(tc.err))
			w.guard.RetryMin, w.guard.RetryMax = 30*time.Second, time.Minute
			q, code := &recordingQueue{}, 500
			if !tc.withoutQueue {
				w.guard.Queue, code = q, 200
			}

			failed := time.Now()
			a := w.deliver(t, "x")
			a.check(t, code, map[string]any{"acquired": true, "reason": "retry"})
			checkFields(t, b, "x", map[string]any{"status": "QUEUED", "attempts": tc.after, "lockOwner": nil})
			history, _ := b.Fields(t, "x")["history"].([]any)
			if last, _ := history[len(history)-1].(map[string]any); last["outcome"] != "retry" {
				t.Errorf("the history ends with %v", last)
			}
			if a.RetryAfter != tc.retryAfter {
				t.Errorf("Retry-After %q, want %q", a.RetryAfter, tc.retryAfter)
			}

			switch {
			case tc.withoutQueue:
				checkFields(t, b, "x", map[string]any{"nextAttemptAt": nil})
			case tc.want > 0:
				next := iso8601.Format(failed.Add(tc.want))
				checkFields(t, b, "x", map[string]any{"nextAttemptAt": next})
				if len(q.tasks) != 1 || iso8601.Format(q.tasks[0].At) != next {
					t.Errorf("booked %+v, want a task at %s", q.tasks, next)
				}
			case len(q.tasks) != 1 || q.tasks[0].At.Sub(failed) < 30*time.Second:
				t.Errorf("booked %+v, want the usual wait", q.tasks)
			}
		})
	}
}

func TestAWaitDoesNotOutweighAPermanentErrorOrALimitOfTime(t *testing.T) {
	permanent := RetryAfter(&orchestrator.PermanentError{Code: "no", Message: "never"}, time.Hour)
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "permanent", map[string]any{"status": "QUEUED"})
		b.Put(t, "slow", map[string]any{"status": "QUEUED"})
		b.Put(t, "waiting", map[string]any{"status": "QUEUED"})
		w := startWith(t, b, 3, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			switch job.AnalysisID {
			case "permanent":
				return nil, permanent
			case "slow":
				<-ctx.Done()
			}
			return nil, RetryAfter(nil, 100*time.Hour)
		}, grpc.WithIdleTimeout(0)) // grpc's own idle mode has a race, and begins after 30 min
		w.guard.Queue, w.guard.RetryMin, w.guard.RetryMax = &recordingQueue{}, 30*time.Second, time.Minute

		w.deliver(t, "permanent").check(t, 200, map[string]any{"status": "FAILED"})
		w.deliver(t, "slow").check(t, 200, map[string]any{"reason": "retry"})
		checkFields(t, b, "slow", map[string]any{"attempts": int64(1)})
		for range 2 { // 12 h each
			w.deliver(t, "waiting").check(t, 200, map[string]any{"reason": "retry"})
			time.Sleep(12 * time.Hour)
		}
		w.deliver(t, "waiting").check(t, 200, map[string]any{"status": "FAILED"})
		if e, _ := b.Fields(t, "waiting")["error"].(map[string]any); e["code"] != "run_time_exhausted" {
			t.Errorf("FAILED with %v, want run_time_exhausted", e)
		}
	})
}
