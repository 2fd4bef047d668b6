package worker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/iso8601"
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

// checkAttempt compares fields of the newest attempt in the history of x.
func checkAttempt(t *testing.T, b *emulatortest.Backend, want map[string]any) {
	t.Helper()
	all, _ := b.Fields(t, "x")["history"].([]any)
	reply{Body: all[len(all)-1].(map[string]any)}.check(t, 0, want)
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

func TestSuspect_RunsAlone(t *testing.T) {
	forKinds(t, "it takes the whole instance", func(t *testing.T, b *emulatortest.Backend) {
		suspected(t, b, 0)
		b.Put(t, "y", map[string]any{"status": "QUEUED"})
		var w *process
		w = start(t, b, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if job.AnalysisID == "x" {
				w.deliver(t, "y").check(t, 409, map[string]any{"reason": "busy", "Retry-After": "10"})
				if !strings.Contains(w.log.String(), "runs alone here") {
					t.Errorf("the log does not say why it is busy: %s", w.log)
				}
			}
			return "done", nil
		})
		w.deliver(t, "x").check(t, 200, map[string]any{"status": "READY"})
		checkAttempt(t, b, map[string]any{"alone": true, "outcome": "ready"})
		w.deliver(t, "y").check(t, 200, map[string]any{"status": "READY"})
	})
	forKinds(t, "it waits for the other runs, and no other begins", func(t *testing.T, b *emulatortest.Backend) {
		suspected(t, b, 0)
		b.Put(t, "z", map[string]any{"status": "QUEUED"})
		beside(t, b, &recordingQueue{}, 9*time.Second, func(w *process) {
			var runs sync.WaitGroup
			runs.Go(func() { w.deliver(t, "x").check(t, 200, map[string]any{"status": "READY"}) })
			synctest.Wait()
			w.deliver(t, "z").check(t, 409, map[string]any{"reason": "busy"}) // though a place is free
			runs.Wait()
		})
		checkAttempt(t, b, map[string]any{"alone": true})
	})
	for _, delays := range []int{0, 10} {
		name := fmt.Sprint("two do not wait for each other after delays: ", delays)
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			suspected(t, b, delays)
			b.Put(t, "z", b.Fields(t, "x"))
			w := startOn(t, b, &recordingQueue{}, doing(func() { time.Sleep(time.Minute) }))
			w.places = delivery.NewPlaces(2)
			reasons := make(chan any, 2)
			for _, id := range []string{"x", "z"} {
				go func() { reasons <- w.deliver(t, id).Body["reason"] }()
			}
			refused, ran := <-reasons, <-reasons // the one that runs is answered last
			again := refused == "suspect" || refused == "busy"
			if ran != nil || !again {
				t.Errorf("reasons %v and %v, want one that was told to come again, and one that ran", refused, ran)
			}
		})
	}
}

func TestSuspect_IsDelayed(t *testing.T) {
	delayed := func(t *testing.T, b *emulatortest.Backend, w *process, code int) reply {
		t.Helper()
		began := time.Now()
		answer := w.deliver(t, "x")
		answer.check(t, code, map[string]any{"acquired": false, "reason": "suspect"})
		if took := time.Since(began).Round(time.Second); took != 10*time.Second {
			t.Errorf("answered after %v, want 10 s", took)
		}
		checkFields(t, b, "x", map[string]any{"status": "QUEUED", "attempts": int64(2), "lockToken": int64(2)})
		checkAttempt(t, b, map[string]any{"delays": int64(1)})
		return answer
	}
	forKinds(t, "booked", func(t *testing.T, b *emulatortest.Backend) {
		suspected(t, b, 0)
		q := &recordingQueue{}
		beside(t, b, q, time.Minute, func(w *process) {
			answer, task := delayed(t, b, w, 200), q.tasks[len(q.tasks)-1]
			if wait := time.Until(task.At); wait < 15*time.Second-time.Millisecond || wait > 45*time.Second {
				t.Errorf("booked in %v, want 15 to 45 s", wait)
			}
			answer.check(t, 200, map[string]any{"retry_at": iso8601.Format(task.At)})
			checkFields(t, b, "x", map[string]any{"nextAttemptAt": iso8601.Format(task.At), "bookedTask": task.Name})

			w.deliver(t, "x").check(t, 200, map[string]any{"reason": "waiting"}) // a duplicate books the same
			if again := q.tasks[len(q.tasks)-1]; again.Name != task.Name || !again.At.Equal(task.At) {
				t.Errorf("the duplicate booked %+v, want %+v", again, task)
			}
		})
	})
	for name, queue := range map[string]delivery.Queue{"not booked": refusing{}, "no queue": nil} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			suspected(t, b, 0)
			beside(t, b, queue, time.Minute, func(w *process) {
				if wait := delayed(t, b, w, 409).RetryAfter; wait < "15" || wait > "46" {
					t.Errorf("Retry-After %q, want 15 to 46", wait)
				}
			})
		})
	}
	forKinds(t, "a stop ends the wait, and counts no delay", func(t *testing.T, b *emulatortest.Backend) {
		suspected(t, b, 0)
		beside(t, b, &recordingQueue{}, 5*time.Second, func(w *process) {
			time.AfterFunc(time.Second, func() { w.stop(delivery.ErrStopping) })
			w.deliver(t, "x").check(t, 500, map[string]any{"acquired": false, "reason": "shutting_down"})
			checkAttempt(t, b, map[string]any{"delays": int64(0)})
		})
	})
}

// After ten delays it empties its instance.
func TestSuspect_DelayedTenTimes(t *testing.T) {
	for name, c := range map[string]struct {
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
			beside(t, b, q, c.other, func(w *process) {
				w.deliver(t, "x").check(t, 200, map[string]any{"reason": "suspect"})
				task := q.tasks[0]
				time.Sleep(time.Until(task.At))
				busy := map[string]any{"reason": "busy"}
				time.AfterFunc(20*time.Minute, func() { w.deliver(t, "z").check(t, 409, busy) })
				w.asTask(t, task.Name).check(t, 200, map[string]any{"status": "READY"})
				checkAttempt(t, b, map[string]any{"alone": c.alone, "attempt": int64(3)})
			})
		})
	}
	// The run must end while the queue still waits for its answer.
	forKinds(t, "the wait counts towards RUN_TIMEOUT", func(t *testing.T, b *emulatortest.Backend) {
		suspected(t, b, 10)
		b.Put(t, "y", map[string]any{"status": "QUEUED"})
		w := start(t, b, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if job.AnalysisID == "y" {
				time.Sleep(10 * time.Minute)
				return "done", nil
			}
			return endless(ctx, job)
		})
		var other sync.WaitGroup
		other.Go(func() { w.deliver(t, "y") })
		synctest.Wait()
		began := time.Now()
		w.deliver(t, "x").check(t, 200, map[string]any{"status": "FAILED"})       // at its third attempt
		if took := time.Since(began).Round(time.Second); took != 25*time.Minute { // a conflict's pause is milliseconds
			t.Errorf("the delivery took %v, want RUN_TIMEOUT", took)
		}
	})
}

func TestSuspect_KillerFails(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		alone := map[string]any{"attempt": 1, "token": 1, "owner": "rev/i/d", "outcome": "crashed", "alone": true}
		b.Put(t, "x", map[string]any{"status": "QUEUED", "attempts": 2, "lockToken": 2, "history": []any{alone, alone}})
		w := startWith(t, b, 10, doing(func() { t.Error("it ran") }))
		answer := w.deliver(t, "x")
		answer.check(t, 200, map[string]any{"acquired": true, "status": "FAILED", "error": "*"})
		failure, _ := b.Fields(t, "x")["error"].(map[string]any)
		if failure["code"] != "crashed" || failure["message"] != answer.Body["error"] {
			t.Errorf("error %v, answer %v; want one text", failure, answer.Body)
		}
	})
}

// Nothing is enqueued without a Queue, if the Queue fails, and if the analysis has changed meanwhile.
func TestWork_RunUnfinished(t *testing.T) {
	due := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tc := range map[string]struct {
		reason delivery.Reason
		due    time.Time
		want   string
	}{
		"a suspect is enqueued":     {delivery.Suspect, due, "due at 2030-01-02T03:04:05.000Z"},
		"a suspect is not enqueued": {delivery.Suspect, time.Time{}, "nothing is enqueued: run it again"},
		"it waits":                  {delivery.Waiting, due, "due at 2030-01-02T03:04:05.000Z"},
	} {
		t.Run(name, func(t *testing.T) {
			result := delivery.Result{Reason: tc.reason, Next: delivery.Next{RetryAt: tc.due}}
			if err := unfinishedRun(t.Context(), result); !strings.HasSuffix(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}
}
