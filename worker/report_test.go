package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// body is the run of x in the process w.
type body = func(ctx context.Context, w *process, job Job) (any, error)

// deliverX makes x if there is none, and delivers it to a process of its own, which adapt may change before.
func deliverX(t *testing.T, b *emulatortest.Backend, adapt func(w *process), run body) (*process, reply) {
	t.Helper()
	if b.Fields(t, "x") == nil {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
	}
	var w *process
	w = start(t, b, func(ctx context.Context, job Job) (any, error) { return run(ctx, w, job) })
	adapt(w)
	answer := w.deliver(t, "x")
	return w, answer
}

func asStarted(*process) {}

// stallsInAMinute is an adapt of deliverX.
func stallsInAMinute(w *process) { w.runner.StallTimeout = time.Minute }

// checkpointOf returns the checkpoint that x has.
func checkpointOf(t *testing.T, b *emulatortest.Backend) any { return b.Fields(t, "x")["checkpoint"] }

// soon reports a checkpoint as a program does that waits for its reply.
func soon(ctx context.Context, job orchestrator.Job, v any) error {
	written := make(chan error, 1)
	report := orchestrator.Report{Checkpoint: &orchestrator.Checkpoint{Value: v}}
	batcher, _ := job.Reporter.(orchestrator.Batcher)
	batcher.CommitSoon(report, func(err error) { written <- err })
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestStall(t *testing.T) {
	for name, c := range map[string]struct {
		report  func(job orchestrator.Job) // each 40 s
		before  int                        // attempts
		history string
	}{
		"silent":                     {func(orchestrator.Job) {}, 0, "retry:stalled"},
		"silent on the last attempt": {func(orchestrator.Job) {}, 2, "failed:attempts_exhausted"},
		"with invalid reports":       {func(job orchestrator.Job) { job.Report(math.NaN(), "") }, 0, "retry:stalled"},
		"with progress":              {func(job orchestrator.Job) { job.Report(0.5, "") }, 0, "ready"},
		"with checkpoints":           {func(job orchestrator.Job) { report(job, int64(1)) }, 0, "ready"},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "attempts": c.before})
			w, _ := deliverX(t, b, stallsInAMinute, func(ctx context.Context, _ *process, job Job) (any, error) {
				for range 10 {
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-time.After(40 * time.Second):
						c.report(job)
					}
				}
				return "done", nil
			})
			checkHistory(t, b, c.history)
			w.checkCounts(t, "taskguard.run.timeouts", map[bool]string{false: "stalled :1"}[c.history == "ready"])
		})
	}
}

// Firestore hangs for 90 s: a run that waits for the commit of its checkpoint is not stalled.
func TestStall_Commit(t *testing.T) {
	for name, commit := range map[string]func(ctx context.Context, job orchestrator.Job) error{
		"Checkpoint":  func(ctx context.Context, job orchestrator.Job) error { return job.Checkpoint(ctx, 1) },
		"a program's": func(ctx context.Context, job orchestrator.Job) error { return soon(ctx, job, 1) },
		"beside a report": func(ctx context.Context, job orchestrator.Job) error {
			time.AfterFunc(time.Second, func() { job.Report(0.5, "waits") })
			return soon(ctx, job, 1)
		},
		"beside one that waits no longer": func(ctx context.Context, job orchestrator.Job) error {
			longer := make(chan error, 1)
			go func() { longer <- soon(ctx, job, 1) }()
			done, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_ = job.Checkpoint(done, 1)
			return <-longer
		},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			began := time.Now()
			deliverX(t, b, stallsInAMinute, func(ctx context.Context, w *process, job Job) (any, error) {
				w.unavailable.Store(true)
				time.AfterFunc(90*time.Second, func() { w.unavailable.Store(false) })
				if err := commit(ctx, job); err != nil {
					t.Error(err)
				}
				return until(ctx, nothing) // stalled
			})
			if took := time.Since(began); took < 150*time.Second {
				t.Errorf("it took %v, want a minute more than the commit", took)
			}
			checkHistory(t, b, "retry:stalled")
		})
	}
}

// A run whose analysis is over ends within a heartbeat, and writes nothing.
func TestRun_Over(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, b *emulatortest.Backend)
		status    any
	}{
		"cancelled": {func(t *testing.T, b *emulatortest.Backend) {
			operator := start(t, b, nil).runner.Locks.(*repo.Analyses) //nolint:forcetypeassert // start's
			if _, err := operator.Cancel(t.Context(), "x", "ops", nil); err != nil {
				t.Error(err)
			}
		}, "FAILED"},
		"finished": {func(t *testing.T, b *emulatortest.Backend) {
			b.Merge(t, "x", map[string]any{"status": "READY", "result": "theirs", "lockToken": 9})
		}, "READY"},
		"deleted": {func(t *testing.T, b *emulatortest.Backend) { b.Delete(t, "x") }, nil},
	} {
		for found, code := range map[string]int{"at a heartbeat": 200, "at its end": 200, "without a queue": 409} {
			forKinds(t, name+", found "+found, func(t *testing.T, b *emulatortest.Backend) {
				var over map[string]any
				queued := func(w *process) {
					if code == 200 {
						w.runner.Queue = &recordingQueue{}
					}
				}
				w, got := deliverX(t, b, queued, func(ctx context.Context, _ *process, job Job) (any, error) {
					time.Sleep(time.Minute)
					c.meanwhile(t, b)
					over = b.Fields(t, "x")
					if began := time.Now(); found == "at a heartbeat" {
						<-ctx.Done()
						if took := time.Since(began); took > lease.DefaultTTL/3 {
							t.Errorf("ended after %v, want one heartbeat at most", took)
						}
					}
					report(job, int64(7))
					return "refused", nil
				})
				got.check(t, code, map[string]any{"acquired": true, "reason": "lock_lost", "status": c.status})
				reply{Body: w.entry(t, "delivery")}.check(t, 0, map[string]any{"lost": name, "checkpoints": nil})
				if got := b.Fields(t, "x"); !reflect.DeepEqual(got, over) {
					t.Errorf("the document is\n%v, and was\n%v", got, over)
				}
			})
		}
	}
}

// A status that the analysis sets itself ends its run and its lock, as the first implementation's orchestrator does.
func TestRun_OwnStatus(t *testing.T) {
	ends := func(result any, err error) body {
		return func(context.Context, *process, Job) (any, error) { return result, err }
	}
	waits := func(ctx context.Context, _ *process, _ Job) (any, error) { return until(ctx, nothing) }
	for name, c := range map[string]struct {
		limit time.Duration // RunTimeout; zero: the default
		run   body          // after it has set the status
	}{
		"with a result":    {run: ends("dropped", nil)},
		"with an error":    {run: ends(nil, &orchestrator.PermanentError{Message: "dropped"})},
		"at the heartbeat": {run: waits},
		"by its deadline":  {limit: time.Minute, run: waits},
		"by a stop": {run: func(ctx context.Context, w *process, job Job) (any, error) {
			w.stop(delivery.ErrStopping)
			return waits(ctx, w, job)
		}},
	} {
		for status, theirs := range map[string]map[string]any{
			"ready":  {"status": "READY", "result": "theirs"},
			"failed": {"status": "FAILED", "error": map[string]any{"code": "own", "message": "theirs"}},
		} {
			forKinds(t, status+" "+name, func(t *testing.T, b *emulatortest.Backend) {
				limited := func(w *process) { w.runner.RunTimeout = cmp.Or(c.limit, w.runner.RunTimeout) }
				w, got := deliverX(t, b, limited, func(ctx context.Context, w *process, job Job) (any, error) {
					report(job, int64(7))
					b.Merge(t, "x", theirs)
					return c.run(ctx, w, job)
				})
				got.check(t, 200, map[string]any{"acquired": true, "status": theirs["status"], "reason": nil})
				for field, want := range theirs {
					if got := b.Fields(t, "x")[field]; !reflect.DeepEqual(got, want) {
						t.Errorf("%s = %v, want %v", field, got, want)
					}
				}
				checkFields(t, b, "x", map[string]any{"finishedBy": "*", "lockOwner": nil, "lastError": nil})
				checkHistory(t, b, status)
				reply{Body: w.entry(t, "delivery")}.check(t, 0, map[string]any{"outcome": status, "lost": nil})
				reply{Body: w.entry(t, "the run's own result is dropped")}.check(t, 0, map[string]any{"level": "WARN"})
				w.checkCounts(t, "taskguard.lock.losses", "")
			})
		}
	}
	forKinds(t, "and an outage keeps its lock", func(t *testing.T, b *emulatortest.Backend) {
		_, got := deliverX(t, b, asStarted, func(ctx context.Context, w *process, _ Job) (any, error) {
			b.Merge(t, "x", map[string]any{"status": "READY"})
			return until(ctx, func() { w.unavailable.Store(true) })
		})
		got.check(t, 503, map[string]any{"acquired": true, "reason": "unavailable"})
	})
}

func TestCheckpoint(t *testing.T) {
	forKinds(t, "it is committed when it returns", func(t *testing.T, b *emulatortest.Backend) {
		w, _ := deliverX(t, b, asStarted, func(ctx context.Context, _ *process, job Job) (any, error) {
			job.Report(0.5, "half") // it stays when a checkpoint alone is reported
			for i := range int64(3) {
				began := time.Now()
				err := job.Checkpoint(ctx, i)
				if took := time.Since(began); err != nil || took > time.Second {
					t.Errorf("%v after %v", err, took)
				}
				if got := checkpointOf(t, b); got != i {
					t.Errorf("the document has %v, want %d", got, i)
				}
				progress, _ := b.Fields(t, "x")["progress"].(map[string]any)
				reply{Body: progress}.check(t, 0, map[string]any{"fraction": 0.5, "message": "half"})
			}
			return "done", nil
		})
		reply{Body: w.entry(t, "delivery")}.check(t, 0, map[string]any{"checkpoints": 3.0, "heartbeats": 3.0})
	})
	forKinds(t, "the document has no room", func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED", "input": strings.Repeat("x", 900_000)})
		w, got := deliverX(t, b, asStarted, func(ctx context.Context, _ *process, job Job) (any, error) {
			err := job.Checkpoint(ctx, strings.Repeat("s3cret", 30_000))
			if !errors.Is(err, lease.ErrRefused) || errors.Is(err, ErrUnknown) {
				t.Errorf("error %.100v, want ErrRefused", err)
			}
			return "done", nil
		})
		got.check(t, 200, map[string]any{"status": "READY"})
		reply{Body: w.entry(t, "a report is ignored")}.check(t, 0, map[string]any{"analysis_id": "x"})
		if strings.Contains(w.log.String(), "s3cret") {
			t.Errorf("the log shows it: %.2000s", w.log)
		}
	})
	// The run is ended by RunTimeout, before the next heartbeat and before the trust ends, or by the loss.
	for _, taken := range []bool{true, false} {
		forKinds(t, fmt.Sprint("the lock is lost, it is taken ", taken), func(t *testing.T, b *emulatortest.Backend) {
			minute := func(w *process) { w.runner.RunTimeout = time.Minute }
			_, got := deliverX(t, b, minute, func(ctx context.Context, w *process, job Job) (any, error) {
				if taken {
					b.Merge(t, "x", map[string]any{"lockOwner": "them"})
				} else {
					w.unavailable.Store(true)
					second, cancel := context.WithTimeout(ctx, time.Second)
					defer cancel()
					err := job.Checkpoint(second, "late")
					if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnknown) {
						t.Errorf("error %v, want that of its context", err)
					}
				}
				return until(ctx, func() {
					late := context.WithoutCancel(ctx)
					program := make(chan error, 1)
					go func() { program <- soon(late, job, "late") }()
					first, second := job.Checkpoint(late, "late"), job.Checkpoint(late, "late")
					if !errors.Is(first, lease.ErrLost) || !errors.Is(second, lease.ErrLost) {
						t.Errorf("errors %v and %v, want ErrLost", first, second)
					}
					// The first and the program's join one that may have been written.
					for i, err := range []error{first, <-program, second} {
						if unknown := errors.Is(err, ErrUnknown); unknown != (!taken && i < 2) {
							t.Errorf("%d: error %v, unknown: %v", i, err, unknown)
						}
					}
				})
			})
			got.check(t, 409, map[string]any{"reason": "lock_lost"})
			checkFields(t, b, "x", map[string]any{"checkpoint": nil, "status": "PROCESSING"})
		})
	}
}

func TestCheckpoint_ByAProgram(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		deliverX(t, b, asStarted, func(ctx context.Context, _ *process, job Job) (any, error) {
			began := time.Now()
			for i := range int64(20) {
				if err := soon(ctx, job, i); err != nil || checkpointOf(t, b) != i {
					t.Errorf("%v, and the document has %v, want %d", err, checkpointOf(t, b), i)
				}
			}
			if took := time.Since(began); took < 19*time.Second || took > 21*time.Second {
				t.Errorf("20 commits took %v, want 1 s each", took)
			}
			_, err := Once(ctx, job, "act", func(context.Context) (int, error) { return 1, nil })
			if took := time.Since(began); err != nil || took > 21*time.Second {
				t.Errorf("an act waited: %v, %v", took, err)
			}
			return "done", nil
		})
	})
}

// From its stop until it returns, a run's reports are committed as before. An error is no guess.
func TestReport_AfterTheStop(t *testing.T) {
	for name, stop := range map[string]func(w *process){
		"by SIGTERM":     func(w *process) { w.stop(delivery.ErrStopping) },
		"by RUN_TIMEOUT": func(*process) {},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			minute := func(w *process) { w.runner.RunTimeout = time.Minute }
			_, got := deliverX(t, b, minute, func(ctx context.Context, w *process, job Job) (any, error) {
				if _, err := job.Begin(ctx, "act", false); err != nil {
					t.Error(err)
				}
				stop(w)
				<-ctx.Done()
				err := soon(context.WithoutCancel(ctx), job, int64(7))
				if got := checkpointOf(t, b); err != nil || got != int64(7) {
					t.Errorf("%v, and the document has %v", err, got)
				}
				_, begin := job.Begin(ctx, "other", false)
				if !errors.Is(begin, context.Cause(ctx)) || errors.Is(begin, ErrUnknown) {
					t.Errorf("Begin: %v", begin)
				}
				for _, err := range []error{job.Checkpoint(ctx, int64(8)), job.End(ctx, "act", true, 1)} {
					unknown := errors.Is(err, context.Cause(ctx)) && errors.Is(err, ErrUnknown)
					if err != nil && !unknown { // its commit may be faster than its context's end
						t.Errorf("%v, want nil or ErrUnknown", err)
					}
				}
				return nil, ctx.Err()
			})
			got.check(t, 500, nil)
			checkFields(t, b, "x", map[string]any{"checkpoint": int64(8), "lockOwner": nil, "openEffects": nil})
			if effects, _ := b.Fields(t, "x")["effects"].(map[string]any); len(effects) != 1 {
				t.Errorf("acts %v, want one", effects)
			}
		})
	}
}

// A goroutine that a run leaves behind gets an error at once, and changes nothing.
func TestReport_AfterTheRun(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		var left orchestrator.Job
		w, _ := deliverX(t, b, asStarted, func(_ context.Context, _ *process, job Job) (any, error) {
			left = job
			return nil, errors.New("flaky")
		})
		left.Report(0.5, "late")
		_, once := Once(t.Context(), left, "act", func(context.Context) (any, error) { return nil, nil })
		checkpoint, end := left.Checkpoint(t.Context(), 1), left.End(t.Context(), "act", true, 1)
		for call, err := range map[string]error{"Checkpoint": checkpoint, "Once": once, "End": end} {
			if err == nil || errors.Is(err, ErrUnknown) {
				t.Errorf("%s: %v, want an error that says no", call, err)
			}
		}
		w.deliver(t, "x") // of another run, which has its own reporter
		checkFields(t, b, "x", map[string]any{"progress": nil, "checkpoint": nil, "effects": nil})
		reply{Body: w.entry(t, "a report is ignored")}.check(t, 0, map[string]any{"analysis_id": "x"})
	})
}

// The checkpoint may be committed by what ends the run, or not.
func TestReport_LeftWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		left := make(chan error, 1)
		deliverX(t, b, asStarted, func(_ context.Context, w *process, job Job) (any, error) {
			w.unavailable.Store(true)
			go func() { left <- job.Checkpoint(context.Background(), 1) }()
			time.Sleep(time.Second)
			return "done", nil
		})
		select {
		case err := <-left:
			if !errors.Is(err, ErrUnknown) {
				t.Errorf("%v, want ErrUnknown", err)
			}
		case <-time.After(time.Hour):
			t.Error("it waits for ever")
		}
	})
}

func TestReport_Invalid(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		w, got := deliverX(t, b, asStarted, func(_ context.Context, _ *process, job Job) (any, error) {
			for range 20 {
				job.Report(2, "s3cret")
			}
			return "done", nil
		})
		got.check(t, 200, map[string]any{"status": "READY"})
		checkFields(t, b, "x", map[string]any{"progress": nil})
		log := w.log.String()
		if n := strings.Count(log, `"last_warning":false`); n != 9 || strings.Count(log, `"last_warning":true`) != 1 {
			t.Errorf("want nine warnings, and the last: %s", log)
		}
		if strings.Contains(log, "s3cret") {
			t.Errorf("the log has the reports: %s", log)
		}
	})
}

// The record of an earlier attempt needs no commit, so it does not wait for one.
func TestOnce_CommitHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		effects := map[string]any{"charge": map[string]any{"state": "done", "result": "7"}}
		b.Put(t, "x", map[string]any{"status": "QUEUED", "effects": effects})
		_, got := deliverX(t, b, asStarted, func(ctx context.Context, w *process, job Job) (any, error) {
			w.unavailable.Store(true)
			time.AfterFunc(time.Minute, func() { w.unavailable.Store(false) })
			go func() { _ = job.Checkpoint(ctx, "c") }()
			time.Sleep(time.Second)

			began := time.Now()
			got, err := Once(ctx, job, "charge", func(context.Context) (int, error) { return 0, nil })
			if took := time.Since(began); got != 7 || took != 0 {
				t.Errorf("%d, %v after %v; want 7 at once", got, err, took)
			}
			time.Sleep(2 * time.Minute)
			return got, nil
		})
		got.check(t, 200, map[string]any{"acquired": true, "status": "READY"})
	})
}
