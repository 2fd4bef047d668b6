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

// until waits until ctx ends, calls last, and returns as an analyzer that was ended.
func until(ctx context.Context, last func()) (orchestrator.Result, error) {
	<-ctx.Done()
	last()
	return nil, ctx.Err()
}

func nothing() {}

// endless is an analyzer that only ends with its context.
func endless(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
	return until(ctx, nothing)
}

// failing returns an analyzer that fails with err.
func failing(err error) orchestrator.AnalyzerFunc {
	return func(context.Context, orchestrator.Job) (orchestrator.Result, error) { return nil, err }
}

// doing returns an analyzer that does something and succeeds.
func doing(something func()) orchestrator.AnalyzerFunc {
	return func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
		something()
		return "done", nil
	}
}

// report reports a checkpoint as a program does.
func report(job orchestrator.Job, checkpoint any) {
	job.Reporter.Report(orchestrator.Report{Checkpoint: &orchestrator.Checkpoint{Value: checkpoint}})
}

// attempts returns the outcomes in the history of x, such as "continued ready".
func attempts(t *testing.T, b *emulatortest.Backend) string {
	t.Helper()
	var all []string
	history, _ := b.Fields(t, "x")["history"].([]any)
	for _, entry := range history {
		m, _ := entry.(map[string]any)
		outcome, _ := m["outcome"].(string)
		if code, ok := m["code"].(string); ok {
			outcome += ":" + code
		}
		if _, ended := m["endedAt"]; ended != (outcome != "") {
			t.Errorf("history has %v", m)
		}
		all = append(all, outcome)
	}
	return strings.Join(all, " ")
}

func checkHistory(t *testing.T, b *emulatortest.Backend, want string) {
	t.Helper()
	if got := attempts(t, b); got != want {
		t.Errorf("history %q, want %q", got, want)
	}
}

func TestARunThatHasAdvancedContinuesWithoutCountingTheAttempt(t *testing.T) {
	early := func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		if err := job.Checkpoint(ctx, 7); err != nil {
			return nil, err
		}
		return until(ctx, nothing)
	}
	for name, tc := range map[string]struct {
		analyzer             orchestrator.AnalyzerFunc
		before               int // attempts
		queue, queueHasFault bool
		code                 int
	}{
		"booked":              {analyzer: early, queue: true, code: 200},
		"without a queue":     {analyzer: early, code: 500},
		"not booked":          {analyzer: early, queue: true, queueHasFault: true, code: 500},
		"on the last attempt": {analyzer: early, before: 2, queue: true, code: 200},
		"with a checkpoint reported after RUN_TIMEOUT": {analyzer: func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			return until(ctx, func() { report(job, int64(7)) })
		}, queue: true, code: 200},
		"with a checkpoint committed after RUN_TIMEOUT": {analyzer: func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			return until(ctx, func() {
				if err := job.Checkpoint(context.WithoutCancel(ctx), 7); err != nil {
					t.Error(err)
				}
			})
		}, queue: true, code: 200},
		"with an error of its own": {analyzer: func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			_, err := early(ctx, job)
			return nil, &orchestrator.FailureError{Reason: "the model", Err: err}
		}, queue: true, code: 200},
		"though the worker is stopped after RUN_TIMEOUT": {analyzer: func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			return until(ctx, func() { report(job, int64(7)) })
		}, queue: true, code: 200},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "attempts": tc.before, "bookedTask": "own"})
			var w *process
			w = start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				if strings.Contains(name, "stopped") {
					context.AfterFunc(ctx, func() { w.stop(delivery.ErrStopping) })
				}
				return tc.analyzer(ctx, job)
			})
			var q recordingQueue
			if tc.queue {
				w.runner.Queue = &q
			}
			if tc.queueHasFault {
				w.runner.Queue = refusing{}
			}
			w.deliver(t, "x").check(t, tc.code, map[string]any{"acquired": true, "reason": "continued", "status": nil})
			checkFields(t, b, "x", map[string]any{"status": "QUEUED", "attempts": int64(tc.before), "lockOwner": nil, "lockToken": int64(1), "checkpoint": int64(7), "lastError": nil, "nextAttemptAt": nil})
			checkHistory(t, b, "continued")
			if booked := tc.code == 200; booked && (len(q.tasks) != 1 || !q.tasks[0].At.IsZero() || b.Fields(t, "x")["bookedTask"] != q.tasks[0].Name) || !booked && len(q.tasks) > 0 {
				t.Errorf("booked %+v, want one delivery for now if answered 200", q.tasks)
			}
			next := start(t, b, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				if string(job.Resume) != "7" || job.Attempt != tc.before+1 {
					t.Errorf("attempt %d continues from %s", job.Attempt, job.Resume)
				}
				return "done", nil
			})
			next.deliver(t, "x").check(t, 200, map[string]any{"status": "READY"})
			checkFields(t, b, "x", map[string]any{"checkpoint": nil, "attempts": int64(tc.before + 1)})
		})
	}
}

func TestALossAtTheDeadlineIsNotContinued(t *testing.T) {
	forKinds(t, "finished by another", func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		w := start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if err := job.Checkpoint(ctx, 7); err != nil {
				return nil, err
			}
			return until(ctx, func() { report(job, 8); b.Put(t, "x", map[string]any{"status": "FAILED"}) })
		})
		q := &recordingQueue{}
		w.runner.Queue = q
		w.deliver(t, "x").check(t, 200, map[string]any{"reason": "lock_lost", "status": "FAILED"})
		if len(q.tasks) > 0 {
			t.Errorf("booked %+v, want nothing", q.tasks)
		}
	})
}

func TestARunWithoutANewCheckpointFailsAtItsDeadline(t *testing.T) {
	for name, tc := range map[string]struct {
		report func(job orchestrator.Job)
		kept   any // the checkpoint afterwards
	}{
		"nothing reported":        {func(orchestrator.Job) {}, int64(7)},
		"progress only":           {func(job orchestrator.Job) { job.Report(0.5, "half") }, int64(7)},
		"the one it was given":    {func(job orchestrator.Job) { report(job, int64(7)) }, int64(7)},
		"cleared":                 {func(job orchestrator.Job) { report(job, nil) }, nil},
		"a new one, then cleared": {func(job orchestrator.Job) { report(job, int64(8)); time.Sleep(time.Minute); report(job, nil) }, nil},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "checkpoint": 7})
			w := start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				tc.report(job)
				return until(ctx, nothing)
			})
			w.runner.Queue = &recordingQueue{}
			w.deliver(t, "x").check(t, 200, map[string]any{"reason": "retry"})
			w.checkCounts(t, "taskguard.run.timeouts", "run_timeout :1")
			checkFields(t, b, "x", map[string]any{"attempts": int64(1), "checkpoint": tc.kept})
			checkHistory(t, b, "retry:run_timeout")
		})
	}
}

func TestAnAnalysisFailsWhenItsTimeIsExhausted(t *testing.T) {
	for name, tc := range map[string]struct {
		began   time.Duration // before now
		history string
		took    time.Duration
	}{
		"before the acquisition": {24 * time.Hour, "", 0},
		"during the run":         {24*time.Hour - 10*time.Minute, "failed:run_time_exhausted", 10 * time.Minute},
		"with the deadline":      {24*time.Hour - 25*time.Minute, "failed:run_time_exhausted", 25 * time.Minute},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			began := time.Now()
			b.Put(t, "x", map[string]any{"status": "QUEUED", "startedAt": began.Add(-tc.began), "checkpoint": 7})
			w := start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				return until(ctx, func() { report(job, int64(8)) })
			})
			w.line(t, deliveryRoute, "x", map[string]any{"outcome": "failed", "code": "run_time_exhausted", "lock_owner": "*"})
			checkpoint, timeouts := int64(7), ""
			if tc.history != "" {
				checkpoint, timeouts = 8, "run_time_exhausted :1"
			}
			w.checkCounts(t, "taskguard.run.timeouts", timeouts)
			checkFields(t, b, "x", map[string]any{"status": "FAILED", "lockOwner": nil, "checkpoint": checkpoint})
			if e, _ := b.Fields(t, "x")["error"].(map[string]any); e["code"] != "run_time_exhausted" || strings.Contains(fmt.Sprint(e["message"]), "worker:") {
				t.Errorf("error = %v", e)
			}
			checkHistory(t, b, tc.history)
			if took := time.Since(began); took.Round(time.Second) != tc.took {
				t.Errorf("ended after %v, want %v", took, tc.took)
			}
		})
	}
}
