package worker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
)

// advances commits the checkpoint 7, and ends only with its context.
func advances(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
	if err := job.Checkpoint(ctx, 7); err != nil {
		return nil, err
	}
	return endless(ctx, job)
}

// reportsLate reports the checkpoint 7 after the end of its context.
func reportsLate(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
	return until(ctx, func() { report(job, int64(7)) })
}

// A run that has advanced when RUN_TIMEOUT passes is continued, and its attempt is not counted.
func TestContinue(t *testing.T) {
	ownError := func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		_, err := advances(ctx, job)
		return nil, &orchestrator.FailureError{Reason: "the model", Err: err}
	}
	for name, c := range map[string]struct {
		analyzer orchestrator.AnalyzerFunc
		before   int64 // attempts
		unbooked bool  // in queue
		stopped  bool  // after RUN_TIMEOUT
		queue    delivery.Queue
	}{
		"booked":                   {analyzer: advances},
		"without a queue":          {analyzer: advances, unbooked: true},
		"not booked":               {analyzer: advances, unbooked: true, queue: refusing{}},
		"on the last attempt":      {analyzer: advances, before: 2},
		"with a late report":       {analyzer: reportsLate},
		"though it is stopped now": {analyzer: reportsLate, stopped: true},
		"with an error of its own": {analyzer: ownError},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "attempts": c.before, "bookedTask": "own"})
			q, code := &recordingQueue{}, 500
			var w *process
			w = startOn(t, b, c.queue, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				defer func() {
					if c.stopped {
						w.stop(delivery.ErrStopping)
					}
				}()
				return c.analyzer(ctx, job)
			})
			if !c.unbooked {
				w.runner.Queue, code = q, 200
			}
			w.deliver(t, "x").check(t, code, map[string]any{"acquired": true, "reason": "continued", "status": nil})
			checkFields(t, b, "x", map[string]any{
				"status": "QUEUED", "attempts": c.before, "lockOwner": nil, "lockToken": int64(1),
				"checkpoint": int64(7), "lastError": nil, "nextAttemptAt": nil,
			})
			checkHistory(t, b, "continued")
			if !c.unbooked {
				task := q.only(t)
				checkFields(t, b, "x", map[string]any{"bookedTask": task.Name})
				if !task.At.IsZero() {
					t.Errorf("booked for %v, want for now", task.At)
				}
			}

			next := start(t, b, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				if string(job.Resume) != "7" || job.Attempt != int(c.before)+1 {
					t.Errorf("attempt %d continues from %s", job.Attempt, job.Resume)
				}
				return "done", nil
			})
			next.deliver(t, "x").check(t, 200, map[string]any{"status": "READY"})
			checkFields(t, b, "x", map[string]any{"checkpoint": nil, "attempts": c.before + 1})
		})
	}
	forKinds(t, "not if it was finished by another", func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		q := &recordingQueue{}
		w := startOn(t, b, q, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			_, err := advances(ctx, job)
			b.Put(t, "x", map[string]any{"status": "FAILED"})
			return nil, err
		})
		w.deliver(t, "x").check(t, 200, map[string]any{"reason": "lock_lost", "status": "FAILED"})
		if len(q.tasks) > 0 {
			t.Errorf("booked %+v, want nothing", q.tasks)
		}
	})
}

// Without a new checkpoint the run fails when RUN_TIMEOUT passes.
func TestContinue_NothingNew(t *testing.T) {
	for name, c := range map[string]struct {
		report func(job orchestrator.Job)
		kept   any // the checkpoint afterwards
	}{
		"nothing reported":     {func(orchestrator.Job) {}, int64(7)},
		"progress only":        {func(job orchestrator.Job) { job.Report(0.5, "half") }, int64(7)},
		"the one it was given": {func(job orchestrator.Job) { report(job, int64(7)) }, int64(7)},
		"a new one, then cleared": {func(job orchestrator.Job) {
			report(job, int64(8))
			time.Sleep(time.Minute)
			report(job, nil)
		}, nil},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "checkpoint": 7})
			w := start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				c.report(job)
				return endless(ctx, job)
			})
			w.runner.Queue = &recordingQueue{}
			w.deliver(t, "x").check(t, 200, map[string]any{"reason": "retry"})
			w.checkCounts(t, "taskguard.run.timeouts", "run_timeout :1")
			checkFields(t, b, "x", map[string]any{"attempts": int64(1), "checkpoint": c.kept})
			checkHistory(t, b, "retry:run_timeout")
		})
	}
}

func TestMaxRunTime(t *testing.T) {
	for name, left := range map[string]time.Duration{
		"before the acquisition": 0, "during the run": 10 * time.Minute, "with RUN_TIMEOUT": 25 * time.Minute,
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			began := time.Now()
			startedAt := began.Add(left - 24*time.Hour)
			b.Put(t, "x", map[string]any{"status": "QUEUED", "startedAt": startedAt, "checkpoint": 6})
			w := start(t, b, reportsLate)
			line := map[string]any{"outcome": "failed", "code": "run_time_exhausted", "lock_owner": "*"}
			w.line(t, deliveryRoute, "x", line)
			if took := time.Since(began); took.Round(time.Second) != left {
				t.Errorf("ended after %v, want %v", took, left)
			}
			checkCode(t, b, "x", "error", "run_time_exhausted")
			if e := fmt.Sprint(b.Fields(t, "x")["error"]); strings.Contains(e, "worker:") {
				t.Errorf("error %s names a package", e)
			}
			checkpoint, history, timeouts := int64(6), "", ""
			if left > 0 {
				checkpoint, history, timeouts = 7, "failed:run_time_exhausted", "run_time_exhausted :1"
			}
			checkFields(t, b, "x", map[string]any{"status": "FAILED", "lockOwner": nil, "checkpoint": checkpoint})
			checkHistory(t, b, history)
			w.checkCounts(t, "taskguard.run.timeouts", timeouts)
		})
	}
}
