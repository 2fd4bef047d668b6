package worker

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
)

// suspected creates the analysis x, whose last two attempts crashed and have been delayed so often.
func suspected(t *testing.T, b *emulatortest.Backend, delays int) {
	t.Helper()
	crashed := func(n int) map[string]any {
		return map[string]any{"attempt": n, "token": n, "owner": "rev/i/d", "outcome": "crashed", "delays": delays}
	}
	b.Put(t, "x", map[string]any{
		"status": "QUEUED", "attempts": 2, "lockToken": 2, "history": []any{crashed(1), crashed(2)},
	})
}

// attemptOf returns the newest attempt in the history of x.
func attemptOf(t *testing.T, b *emulatortest.Backend) map[string]any {
	t.Helper()
	all, _ := b.Fields(t, "x")["history"].([]any)
	return all[len(all)-1].(map[string]any)
}

func TestASuspectTakesTheWholeInstance(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		suspected(t, b, 0)
		b.Put(t, "y", map[string]any{"status": "QUEUED"})
		var w *process
		w = startOn(t, b, &recordingQueue{}, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if job.AnalysisID == "x" {
				w.deliver(t, "y").check(t, 409, map[string]any{"reason": "busy", "Retry-After": "10"})
				if !strings.Contains(w.log.String(), "runs alone here") {
					t.Errorf("the log does not say why it is busy: %s", w.log)
				}
			}
			return "done", nil
		})
		w.deliver(t, "x").check(t, 200, map[string]any{"status": "READY"})
		if a := attemptOf(t, b); a["alone"] != true || a["outcome"] != "ready" {
			t.Errorf("%v, want it ready, and alone", a)
		}
		w.deliver(t, "y").check(t, 200, map[string]any{"status": "READY"})
	})
}

// beside runs y for some time on a new worker with two places, and delivers x a second later.
func beside(t *testing.T, b *emulatortest.Backend, q delivery.Queue, y time.Duration, x func(w *process)) {
	t.Helper()
	b.Put(t, "y", map[string]any{"status": "QUEUED"})
	w := startOn(t, b, q, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		if job.AnalysisID == "y" {
			time.Sleep(y)
		}
		return "done", nil
	})
	w.places = delivery.NewPlaces(2)
	var runs sync.WaitGroup
	runs.Go(func() { w.deliver(t, "y").check(t, 200, map[string]any{"status": "READY"}) })
	time.Sleep(time.Second)
	x(w)
	runs.Wait()
	if w.work.Err() == nil { // no place is lost
		w.deliver(t, "y").check(t, 200, map[string]any{"reason": "already_finished"})
	}
}

func TestASuspectWaitsForTheOtherRuns(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		suspected(t, b, 0)
		b.Put(t, "z", map[string]any{"status": "QUEUED"})
		beside(t, b, &recordingQueue{}, 9*time.Second, func(w *process) {
			var runs sync.WaitGroup
			runs.Go(func() { w.deliver(t, "x").check(t, 200, map[string]any{"status": "READY"}) })
			synctest.Wait()
			w.deliver(t, "z").check(t, 409, map[string]any{"reason": "busy"}) // though a place is free
			runs.Wait()
		})
		if a := attemptOf(t, b); a["alone"] != true {
			t.Errorf("%v, want it alone", a)
		}
	})
}

func TestASuspectOnABusyInstanceIsDelayed(t *testing.T) {
	for name, tc := range map[string]struct {
		queue delivery.Queue
		code  int
	}{
		"booked":     {&recordingQueue{}, 200},
		"not booked": {refusing{}, 409},
		"no queue":   {nil, 409},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			suspected(t, b, 0)
			beside(t, b, tc.queue, time.Minute, func(w *process) {
				began := time.Now()
				answer := w.deliver(t, "x")
				answer.check(t, tc.code, map[string]any{"acquired": false, "reason": "suspect"})
				if took := time.Since(began).Round(time.Second); took != 10*time.Second {
					t.Errorf("answered after %v, want 10 s", took)
				}
				checkFields(t, b, "x", map[string]any{"status": "QUEUED", "attempts": int64(2), "lockToken": int64(2)})
				if a := attemptOf(t, b); a["delays"] != int64(1) {
					t.Errorf("%v, want one delay", a)
				}
				checkDelay(t, b, tc.queue, answer)
			})
		})
	}
}

// checkDelay checks when the delayed x is delivered next.
func checkDelay(t *testing.T, b *emulatortest.Backend, queue delivery.Queue, answer reply) {
	t.Helper()
	q, booked := queue.(*recordingQueue)
	if !booked {
		if answer.RetryAfter < "15" || answer.RetryAfter > "46" {
			t.Errorf("Retry-After %q", answer.RetryAfter)
		}
		return
	}
	task := q.tasks[len(q.tasks)-1]
	if wait := time.Until(task.At); wait < 15*time.Second-time.Millisecond || wait > 45*time.Second {
		t.Errorf("booked in %v, want 15 to 45 s", wait)
	}
	at := task.At.UTC().Format("2006-01-02T15:04:05.000Z")
	answer.check(t, 200, map[string]any{"retry_at": at})
	checkFields(t, b, "x", map[string]any{"nextAttemptAt": at, "bookedTask": task.Name})
}

func TestASuspectThatWasDelayedTenTimesEmptiesItsInstance(t *testing.T) {
	for name, tc := range map[string]struct {
		other time.Duration // of the run of y
		alone any
	}{
		"the other run ends":                            {24 * time.Minute, true},
		"the other run does not end within RUN_TIMEOUT": {time.Hour, nil},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			suspected(t, b, 9)
			b.Put(t, "z", map[string]any{"status": "QUEUED"})
			q := &recordingQueue{}
			beside(t, b, q, tc.other, func(w *process) {
				w.deliver(t, "x").check(t, 200, map[string]any{"reason": "suspect"})
				task := q.tasks[0]
				w.deliver(t, "x").check(t, 200, map[string]any{"reason": "waiting"}) // a duplicate
				if again := q.tasks[1]; again.Name != task.Name || !again.At.Equal(task.At) {
					t.Errorf("the duplicate booked %+v, want %+v", again, task)
				}
				time.Sleep(time.Until(task.At))
				time.AfterFunc(20*time.Minute, func() { w.deliver(t, "z").check(t, 409, map[string]any{"reason": "busy"}) })
				w.asTask(t, task.Name).check(t, 200, map[string]any{"status": "READY"})
				if a := attemptOf(t, b); a["alone"] != tc.alone || a["attempt"] != int64(3) {
					t.Errorf("%v, want attempt 3, alone: %v", a, tc.alone)
				}
			})
		})
	}
}

// The run must end while the queue still waits for its answer.
func TestTheWaitOfASuspectCountsTowardsItsRunTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		suspected(t, b, 10)
		b.Put(t, "y", map[string]any{"status": "QUEUED"})
		w := startWith(t, b, 10, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if job.AnalysisID == "y" {
				time.Sleep(10 * time.Minute)
				return "done", nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		w.runner.Queue = &recordingQueue{}
		var runs sync.WaitGroup
		runs.Go(func() { w.deliver(t, "y") })
		synctest.Wait()
		began := time.Now()
		w.deliver(t, "x").check(t, 200, map[string]any{"reason": "retry"})
		if took := time.Since(began).Round(time.Second); took != 25*time.Minute { // a conflict's pause is milliseconds
			t.Errorf("the delivery took %v, want RUN_TIMEOUT", took)
		}
		runs.Wait()
	})
}

func TestAStopEndsTheWaitOfASuspectAndCountsNoDelay(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		suspected(t, b, 0)
		beside(t, b, &recordingQueue{}, 5*time.Second, func(w *process) {
			time.AfterFunc(time.Second, func() { w.stop(delivery.ErrStopping) })
			w.deliver(t, "x").check(t, 500, map[string]any{"acquired": false, "reason": "shutting_down"})
			if a := attemptOf(t, b); a["delays"] != nil && a["delays"] != int64(0) {
				t.Errorf("%v, want no delay", a)
			}
		})
	})
}

func TestTwoSuspectsDoNotWaitForEachOther(t *testing.T) {
	for name, delays := range map[string]int{"new": 0, "delayed ten times": 10} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			suspected(t, b, delays)
			b.Put(t, "z", b.Fields(t, "x"))
			w := startOn(t, b, &recordingQueue{}, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
				time.Sleep(time.Minute)
				return "done", nil
			})
			w.places = delivery.NewPlaces(2)
			reasons := map[any]int{}
			var mu sync.Mutex
			var runs sync.WaitGroup
			for _, id := range []string{"x", "z"} {
				runs.Go(func() {
					answer := w.deliver(t, id)
					mu.Lock()
					defer mu.Unlock()
					reasons[answer.Body["reason"]]++
				})
			}
			runs.Wait()
			if reasons[nil] != 1 || reasons["suspect"]+reasons["busy"] != 1 {
				t.Errorf("reasons %v, want one that ran, and one that was told to come again", reasons)
			}
		})
	}
}

func TestAKillerIsFailedWithoutARun(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		crashed := func(n int, alone bool) any {
			return map[string]any{"attempt": n, "token": n, "owner": "rev/i/d", "outcome": "crashed", "alone": alone}
		}
		b.Put(t, "x", map[string]any{
			"status": "PROCESSING", "attempts": 4, "lockToken": 4, "lockOwner": "rev/i/d", "lockExpiresAt": "2000-01-01T00:00:00.000Z",
			"history": []any{crashed(1, false), crashed(2, false), crashed(3, true),
				map[string]any{"attempt": 4, "token": 4, "owner": "rev/i/d", "alone": true}},
		})
		w := startWith(t, b, 10, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			t.Error("it ran")
			return nil, nil
		})
		answer := w.deliver(t, "x")
		answer.check(t, 200, map[string]any{"acquired": true, "status": "FAILED", "error": "*"})
		checkFields(t, b, "x", map[string]any{"status": "FAILED", "attempts": int64(4), "lockToken": int64(5)})
		failure, _ := b.Fields(t, "x")["error"].(map[string]any)
		if failure["code"] != "crashed" || failure["message"] != answer.Body["error"] {
			t.Errorf("error %v, answer %v; want one text", failure, answer.Body)
		}
	})
}
