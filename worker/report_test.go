package worker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
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

func TestARunThatReportsNothingStalls(t *testing.T) {
	for name, tc := range map[string]struct {
		report  func(job orchestrator.Job) // each 40 s
		before  int
		code    int
		history string
	}{
		"silent":                     {func(orchestrator.Job) {}, 0, 500, "retry:stalled"},
		"silent on the last attempt": {func(orchestrator.Job) {}, 2, 200, "failed:attempts_exhausted"},
		"with invalid reports":       {func(job orchestrator.Job) { job.Report(math.NaN(), "") }, 0, 500, "retry:stalled"},
		"with progress":              {func(job orchestrator.Job) { job.Report(0.5, "") }, 0, 200, "ready"},
		"with checkpoints":           {func(job orchestrator.Job) { report(job, int64(1)) }, 0, 200, "ready"},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "attempts": tc.before})
			w := start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				for range 10 {
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-time.After(40 * time.Second):
						tc.report(job)
					}
				}
				return "done", nil
			})
			w.runner.StallTimeout = time.Minute
			w.deliver(t, "x").check(t, tc.code, nil)
			checkHistory(t, b, tc.history)
			want := "stalled :1"
			if tc.history == "ready" {
				want = ""
			}
			w.checkCounts(t, "taskguard.run.timeouts", want)
		})
	}
}

func TestARunWhoseAnalysisIsOverEndsWithinAHeartbeatAndWritesNothing(t *testing.T) {
	cancel := func(t *testing.T, b *emulatortest.Backend) {
		operator := start(t, b, nil).runner.Locks.(*repo.Analyses) //nolint:forcetypeassert // start's
		if _, err := operator.Cancel(t.Context(), "x", "ops", nil); err != nil {
			t.Error(err)
		}
	}
	for name, tc := range map[string]struct {
		meanwhile func(t *testing.T, b *emulatortest.Backend)
		queue     delivery.Queue
		code      int
		status    any
		lost      string
	}{
		"cancelled":                 {cancel, &recordingQueue{}, 200, "FAILED", "cancelled"},
		"cancelled without a queue": {cancel, nil, 409, "FAILED", "cancelled"},
		"finished by another run": {func(t *testing.T, b *emulatortest.Backend) {
			b.Merge(t, "x", map[string]any{"status": "READY", "result": "theirs", "lockToken": 9})
		}, &recordingQueue{}, 200, "READY", "finished"},
		"deleted": {func(t *testing.T, b *emulatortest.Backend) { b.Delete(t, "x") }, &recordingQueue{}, 200, nil, "deleted"},
	} {
		for _, after := range []bool{false, true} {
			forKinds(t, fmt.Sprintf("%s, found when it finishes %v", name, after), func(t *testing.T, b *emulatortest.Backend) {
				b.Put(t, "x", map[string]any{"status": "QUEUED"})
				var over map[string]any
				w := startOn(t, b, tc.queue, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
					time.Sleep(time.Minute)
					tc.meanwhile(t, b)
					over = b.Fields(t, "x")
					if began := time.Now(); !after {
						<-ctx.Done()
						if took := time.Since(began); took > lease.DefaultTTL/3 {
							t.Errorf("ended after %v, want one heartbeat at most", took)
						}
					}
					report(job, int64(7))
					return "refused", nil
				})
				w.deliver(t, "x").check(t, tc.code, map[string]any{"acquired": true, "reason": "lock_lost", "status": tc.status})
				reply{Body: w.entry(t, "delivery")}.check(t, 0, map[string]any{"lost": tc.lost, "checkpoints": nil})
				if got := b.Fields(t, "x"); !reflect.DeepEqual(got, over) {
					t.Errorf("the document is\n%v, and was\n%v", got, over)
				}
			})
		}
	}
}

// As the first implementation's orchestrator does, also behind http:.
func TestAStatusThatTheAnalysisSetsItselfEndsItsRunAndItsLock(t *testing.T) {
	failed := map[string]any{"code": "own", "message": "theirs"}
	ends := map[string]func(ctx context.Context, w *process) (orchestrator.Result, error){
		"with a result":    func(context.Context, *process) (orchestrator.Result, error) { return "dropped", nil },
		"at the heartbeat": func(ctx context.Context, _ *process) (orchestrator.Result, error) { return until(ctx, nothing) },
		"with an error":    func(context.Context, *process) (orchestrator.Result, error) { return nil, errors.New("dropped") },
		"with a permanent one": func(context.Context, *process) (orchestrator.Result, error) { //nolint:unparam // as the others
			return nil, &orchestrator.PermanentError{Message: "dropped"}
		},
		"by a stop": func(ctx context.Context, w *process) (orchestrator.Result, error) {
			w.stop(delivery.ErrStopping)
			return until(ctx, nothing)
		},
		"by its deadline": func(ctx context.Context, _ *process) (orchestrator.Result, error) {
			time.Sleep(time.Minute)
			return until(ctx, nothing)
		},
	}
	for status, theirs := range map[string]map[string]any{
		"READY": {"status": "READY", "result": "theirs"}, "FAILED": {"status": "FAILED", "error": failed},
	} {
		for end, analyze := range ends {
			forKinds(t, status+" "+end, func(t *testing.T, b *emulatortest.Backend) {
				b.Put(t, "x", map[string]any{"status": "QUEUED", "lockToken": 4})
				var w *process
				w = start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
					report(job, int64(7))
					b.Merge(t, "x", theirs)
					return analyze(ctx, w)
				})
				w.runner.RunTimeout = 2 * time.Minute
				if end == "by its deadline" {
					w.runner.RunTimeout = time.Minute
				}
				w.deliver(t, "x").check(t, 200, map[string]any{"acquired": true, "status": status, "reason": nil, "error": nil})
				for name, want := range theirs {
					if got := b.Fields(t, "x")[name]; !reflect.DeepEqual(got, want) {
						t.Errorf("%s = %v, want %v", name, got, want)
					}
				}
				checkFields(t, b, "x", map[string]any{"finishedBy": "*", "lockOwner": nil, "lockExpiresAt": nil, "lockHeartbeatAt": nil, "lockToken": int64(5), "lastError": nil})
				checkHistory(t, b, strings.ToLower(status))
				reply{Body: w.entry(t, "delivery")}.check(t, 0, map[string]any{"outcome": strings.ToLower(status), "lost": nil})
				reply{Body: w.entry(t, "the run's own result is dropped")}.check(t, 0, map[string]any{"level": "WARN", "analysis_id": "x", "problem": "the status was set to " + status + " during the run"})
				w.checkCounts(t, "taskguard.lock.losses", "")
			})
		}
	}
}

func TestALockThatAnOutageKeepsAfterTheAnalysisHasSetItsStatusIsAnswered503(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		var w *process
		w = start(t, b, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
			b.Merge(t, "x", map[string]any{"status": "READY"})
			return until(ctx, func() { w.unavailable.Store(true) })
		})
		w.deliver(t, "x").check(t, 503, map[string]any{"acquired": true, "reason": "unavailable"})
	})
}

func TestASynchronousCheckpointReturnsWhenItIsCommittedOrCannotBe(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		for _, id := range []string{"x", "taken", "unreachable"} {
			b.Put(t, id, map[string]any{"status": "QUEUED"})
		}
		b.Put(t, "full", map[string]any{"status": "QUEUED", "input": strings.Repeat("x", 900_000)})
		var w *process
		w = start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			for i := range int64(3) {
				began := time.Now()
				if err := job.Checkpoint(ctx, i); err != nil || time.Since(began) > time.Second || b.Fields(t, job.AnalysisID)["checkpoint"] != i {
					t.Errorf("%v, and the document has %v, want %d", err, b.Fields(t, job.AnalysisID)["checkpoint"], i)
				}
			}
			switch job.AnalysisID {
			case "x":
				return "done", nil
			case "full":
				if err := job.Checkpoint(ctx, strings.Repeat("s3cret", 30_000)); !errors.Is(err, lease.ErrRefused) || errors.Is(err, ErrUnknown) {
					t.Errorf("error %.100v, want ErrRefused", err)
				}
				return "done", nil
			case "taken":
				b.Merge(t, "taken", map[string]any{"lockOwner": "them"})
			case "unreachable":
				w.unavailable.Store(true)
				soon, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				if err := job.Checkpoint(soon, "late"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnknown) {
					t.Errorf("error %v, want that of its context", err)
				}
			}
			return until(ctx, func() { // by RUN_TIMEOUT, or by the loss
				program := make(chan error, 1)
				go func() { program <- soon(context.WithoutCancel(ctx), job, "late") }()
				for n := range 2 { // the first joins one that may have been written
					err, unknown := job.Checkpoint(context.WithoutCancel(ctx), "late"), job.AnalysisID == "unreachable" && n == 0
					if !errors.Is(err, lease.ErrLost) || errors.Is(err, ErrUnknown) != unknown {
						t.Errorf("%s, %d: error %v, want ErrLost", job.AnalysisID, n, err)
					}
				}
				if err := <-program; errors.Is(err, ErrUnknown) != (job.AnalysisID == "unreachable") {
					t.Errorf("%s, as a program: error %v", job.AnalysisID, err)
				}
			})
		})
		w.runner.RunTimeout = time.Minute // before the next heartbeat, and before the trust ends
		w.deliver(t, "x").check(t, 200, map[string]any{"status": "READY"})
		w.line(t, deliveryRoute, "full", map[string]any{"outcome": "ready", "checkpoints": 3.0, "heartbeats": 4.0})
		reply{Body: w.entry(t, "a report is ignored")}.check(t, 0, map[string]any{"analysis_id": "full"})
		if strings.Contains(w.log.String(), "s3cret") {
			t.Errorf("the log shows it: %.2000s", w.log)
		}
		w.deliver(t, "taken").check(t, 409, map[string]any{"reason": "lock_lost"})
		w.deliver(t, "unreachable").check(t, 409, map[string]any{"reason": "lock_lost"})
		checkFields(t, b, "taken", map[string]any{"checkpoint": int64(2), "lockOwner": "them", "attempts": int64(1)})
		checkFields(t, b, "unreachable", map[string]any{"checkpoint": int64(2), "status": "PROCESSING"})
	})
}

func TestARunThatWaitsForTheCommitOfItsCheckpointIsNotStalled(t *testing.T) {
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
			b.Put(t, "x", map[string]any{"status": "QUEUED"})
			var w *process
			w = start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				w.unavailable.Store(true)
				time.AfterFunc(90*time.Second, func() { w.unavailable.Store(false) })
				if err := commit(ctx, job); err != nil {
					t.Error(err)
				}
				return until(ctx, nothing) // stalled
			})
			w.runner.StallTimeout = time.Minute
			began := time.Now()
			w.deliver(t, "x").check(t, 500, map[string]any{"reason": "retry"})
			if took := time.Since(began); took < 150*time.Second || attempts(t, b) != "retry:stalled" {
				t.Errorf("%q after %v, want stalled a minute after the commit", attempts(t, b), took)
			}
		})
	}
}

// soon reports a checkpoint as a program does that waits for its reply.
func soon(ctx context.Context, job orchestrator.Job, v any) error {
	written := make(chan error, 1)
	report := orchestrator.Report{Checkpoint: &orchestrator.Checkpoint{Value: v}}
	job.Reporter.(orchestrator.Batcher).CommitSoon(report, func(err error) { written <- err }) //nolint:forcetypeassert // the guard's
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestAProgramsCommitsAreOneASecond(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		w := start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			began := time.Now()
			for i := range int64(20) {
				if err := soon(ctx, job, i); err != nil || b.Fields(t, "x")["checkpoint"] != i {
					t.Errorf("%v, and the document has %v, want %d", err, b.Fields(t, "x")["checkpoint"], i)
				}
			}
			if took := time.Since(began); took < 19*time.Second || took > 21*time.Second {
				t.Errorf("20 commits took %v, want 1 s each", took)
			}
			if _, err := Once(ctx, job, "act", func(context.Context) (int, error) { return 1, nil }); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 21*time.Second {
				t.Errorf("an act waited: %v", took)
			}
			return "done", nil
		})
		w.deliver(t, "x").check(t, 200, map[string]any{"status": "READY"})
	})
}

// From its end until it returns, a run's reports are committed as before. An error is no guess.
func TestAReportAfterTheStopIsCommittedOrUnknown(t *testing.T) {
	for name, stop := range map[string]func(w *process){
		"by SIGTERM":     func(w *process) { w.stop(delivery.ErrStopping) },
		"by RUN_TIMEOUT": func(*process) {},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED"})
			var w *process
			w = start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				if _, err := job.Begin(ctx, "act", false); err != nil {
					t.Error(err)
				}
				stop(w)
				<-ctx.Done()
				if err := soon(context.WithoutCancel(ctx), job, int64(7)); err != nil || b.Fields(t, "x")["checkpoint"] != int64(7) {
					t.Errorf("%v, and the document has %v", err, b.Fields(t, "x")["checkpoint"])
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
			w.runner.RunTimeout = time.Minute
			w.deliver(t, "x").check(t, 500, nil)
			checkFields(t, b, "x", map[string]any{"checkpoint": int64(8), "lockOwner": nil, "openEffects": nil})
			if effects, _ := b.Fields(t, "x")["effects"].(map[string]any); len(effects) != 1 {
				t.Errorf("acts %v, want one", effects)
			}
		})
	}
}

// A goroutine that a run leaves behind gets an error at once, and changes nothing.
func TestAReportAfterTheRunIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		var left orchestrator.Job
		w := start(t, b, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			left = job
			return nil, errors.New("flaky")
		})
		w.deliver(t, "x").check(t, 500, map[string]any{"reason": "retry"})
		before := b.Fields(t, "x")
		left.Report(0.5, "late")
		_, once := Once(t.Context(), left, "act", func(context.Context) (int, error) { t.Error("it acts"); return 1, nil })
		for call, err := range map[string]error{"Checkpoint": left.Checkpoint(t.Context(), 1), "Once": once, "End": left.End(t.Context(), "act", true, 1)} {
			if err == nil || errors.Is(err, ErrUnknown) {
				t.Errorf("%s: %v, want an error that says no", call, err)
			}
		}
		w.deliver(t, "x") // of another run, which has its own reporter
		if after := b.Fields(t, "x"); before["progress"] != nil || after["progress"] != nil || after["checkpoint"] != nil || after["effects"] != nil {
			t.Errorf("it changed the document: %v", after)
		}
		reply{Body: w.entry(t, "a report is ignored")}.check(t, 0, map[string]any{"problem": "the run has ended"})
	})
}

// Its checkpoint may be committed by what ends the run, or not.
func TestACheckpointThatIsLeftWaitingIsUnknown(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		left := make(chan error, 1)
		var w *process
		w = start(t, b, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			w.unavailable.Store(true)
			go func() { left <- job.Checkpoint(context.Background(), 1) }()
			time.Sleep(time.Second)
			return "done", nil
		})
		w.deliver(t, "x").check(t, 503, nil)
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

// What a program has written when it exits needs one commit, with or without ack.
func TestTheReportsOfAProgramThatExitsShareACommit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "analyzer.sh")
	script := `i=0; while [ $i -lt 2000 ]; do echo '{"checkpoint":'$i',"ack":'$i'}'; i=$((i+1)); done >&3; exit 1`
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	analyzer, err := orchestrator.New("exec:/bin/sh "+file, orchestrator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := emulatortest.Embedded(t)
	b.Put(t, "x", map[string]any{"status": "QUEUED"})
	w := start(t, b, analyzer.Analyze)
	w.deliver(t, "x").check(t, 500, map[string]any{"reason": "retry"})
	checkFields(t, b, "x", map[string]any{"checkpoint": int64(1999), "lockOwner": nil})
	if commits, _ := w.entry(t, "delivery")["checkpoints"].(float64); commits < 1 || commits > 20 {
		t.Errorf("%v commits of 2000 lines", commits)
	}
}

func TestInvalidReportsAreTenWarningsAndTheRunGoesOn(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		w := start(t, b, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			for range 20 {
				job.Report(2, "s3cret")
			}
			return "done", nil
		})
		w.deliver(t, "x").check(t, 200, map[string]any{"status": "READY"})
		checkFields(t, b, "x", map[string]any{"progress": nil, "result": "done"})
		const warning = `"level":"WARN","msg":"a report is ignored","analysis_id":"x","problem":"a progress is not between 0 and 1","last_warning":`
		if log := w.log.String(); strings.Count(log, warning+"false}") != 9 || strings.Count(log, warning+"true}") != 1 || strings.Contains(log, "s3cret") {
			t.Errorf("want nine warnings, then the last, without the reports: %s", log)
		}
	})
}

// The record of an earlier attempt needs no commit, so it does not wait for one.
func TestADoneActIsAnsweredWhileACommitHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		var w *process
		w = start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			w.unavailable.Store(true)
			time.AfterFunc(time.Minute, func() { w.unavailable.Store(false) })
			go func() { _ = job.Checkpoint(ctx, "c") }()
			time.Sleep(time.Second)

			began := time.Now()
			got, err := Once(ctx, job, "charge", func(context.Context) (int, error) { return 0, errors.New("done again") })
			if err != nil || got != 7 || time.Since(began) != 0 {
				t.Errorf("%d, %v after %v; want 7 at once", got, err, time.Since(began))
			}
			time.Sleep(2 * time.Minute)
			return got, nil
		})
		b.Put(t, "x", map[string]any{
			"status": "QUEUED", "effects": map[string]any{"charge": map[string]any{"state": "done", "result": "7"}},
		})
		w.deliver(t, "x").check(t, 200, map[string]any{"acquired": true, "status": "READY"})
	})
}
