package analysislock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// die lets the lock expire, as after the death of its worker.
func die(*fixture) { time.Sleep(lease.DefaultTTL + time.Second) }

// acquireWith acquires x as a delivery with these options does.
func (w *fixture) acquireWith(owner string, o analysislock.AcquireOptions) analysislock.Acquisition {
	w.Helper()
	acq, err := w.locks.AcquireAnalysisLock(w.Context(), "x", owner, 0, o)
	if err != nil {
		w.Fatalf("acquire as %s: %v", owner, err)
	}
	return acq
}

// outcomes returns the outcomes of the history, with a star for an attempt that was alone.
func (w *fixture) outcomes() string {
	var all []string
	history := w.doc().History
	for i := range history {
		a := &history[i]
		outcome := a.Outcome
		if a.Alone {
			outcome += "*"
		}
		all = append(all, outcome)
	}
	return strings.Join(all, " ")
}

var (
	asDelivery = analysislock.AcquireOptions{SkipSuspects: true}
	asAlone    = analysislock.AcquireOptions{Alone: true}
)

func TestAnAcquisitionRecordsTheCrashThatItFinds(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		first := w.acquireWith("rev/i1/d1", asDelivery)
		if err := first.Hold.Renew(w.Context()); err != nil {
			w.Fatal(err)
		}
		heartbeat := w.doc().Lock.HeartbeatAt
		die(w)

		w.acquireWith("rev/i2/d2", asDelivery)
		d := w.doc()
		past := d.History[0]
		if past.Outcome != analysislock.OutcomeCrashed || past.Instance() != "rev/i1" || !past.EndedAt.Equal(heartbeat) {
			w.Errorf("history %+v, want a crash on rev/i1 at %v", past, heartbeat)
		}
		if last := d.LastError; last == nil || last.Code != analysislock.Crashed || !strings.Contains(last.Message, "rev/i1") {
			w.Errorf("last error %+v", last)
		}
		if d.History[1].Outcome != "" {
			w.Errorf("the attempt that runs: %+v", d.History[1])
		}
	})
}

func TestASuspectRunsAloneAndIsFailedIfThatDoesNotHelp(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		w.serve(w, lease.Policy{MaxAttempts: 10}, 0, nil)
		for _, owner := range []string{"i/1", "i/2"} {
			if acq := w.acquireWith(owner, asDelivery); !acq.Acquired {
				w.Fatalf("%s: %+v", owner, acq)
			}
			die(w)
		}
		for _, owner := range []string{"i/3", "i/4"} {
			before := w.doc()
			if acq := w.acquireWith(owner, asDelivery); acq.Acquired || acq.Reason != analysislock.Suspect || acq.MustRun {
				w.Fatalf("%s beside others: %+v", owner, acq)
			}
			if after := w.doc(); after.Lock != before.Lock || len(after.History) != len(before.History) {
				w.Fatalf("a skip has changed %+v to %+v", before, after)
			}
			if acq := w.acquireWith(owner, asAlone); !acq.Acquired {
				w.Fatalf("%s alone: %+v", owner, acq)
			}
			die(w)
		}

		acq := w.acquireWith("i/5", asDelivery)
		d := w.doc()
		if acq.Acquired || acq.Reason != analysislock.Crashed || acq.Grant != (lease.Grant{Owner: "i/5", Token: 5}) {
			w.Errorf("%+v", acq)
		}
		if d.Status != analysislock.Failed || d.Error.Code != analysislock.Crashed || d.Lock.Attempts != 4 ||
			d.Lock.Token != 5 || d.Lock.FinishedBy != "i/5" || d.Cause().Code != analysislock.Crashed {
			w.Errorf("%+v, error %+v", d, d.Error)
		}
		if got := w.outcomes(); got != "crashed crashed crashed* crashed*" {
			w.Errorf("history %q", got)
		}
	})
}

// As in taskguard run, whose process runs nothing else.
func TestAnAnalysisThatAlwaysRunsAloneIsFailedAfterTwoCrashes(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		w.serve(w, lease.Policy{MaxAttempts: 10}, 0, nil)
		for _, owner := range []string{"i/1", "i/2"} {
			if acq := w.acquireWith(owner, analysislock.AcquireOptions{SkipSuspects: true, Alone: true}); !acq.Acquired {
				w.Fatalf("%s: %+v", owner, acq)
			}
			die(w)
		}
		acq := w.acquireWith("i/3", asDelivery)
		if d := w.doc(); acq.Reason != analysislock.Crashed || acq.Message != d.Error.Message || d.Lock.Attempts != 2 {
			w.Errorf("%+v, error %+v", acq, d.Error)
		}
		if got := w.outcomes(); got != "crashed* crashed*" {
			w.Errorf("history %q", got)
		}
	})
}

// Attempts that say nothing do not use up the two that a killer gets after a requeue.
func TestARequeuedKillerThatOnlyLosesItsLockIsNotFailed(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		w.serve(w, lease.Policy{MaxAttempts: 10}, 0, nil)
		for n, o := range []analysislock.AcquireOptions{asDelivery, asDelivery, asAlone, asAlone, asDelivery} {
			w.acquireWith(fmt.Sprint("i/", n), o)
			die(w)
		}
		if _, err := w.locks.Requeue(w.Context(), "x", "", nil, false, ""); err != nil {
			w.Fatal(err)
		}
		for n := range 3 {
			acq := w.acquireWith(fmt.Sprint("j/", n), asAlone)
			if !acq.Acquired {
				w.Fatalf("attempt %d after the requeue: %+v", n, acq)
			}
			w.check(acq.Hold.End(w.Context(), analysislock.Releasing(acq.Hold.Now(), analysislock.OutcomeLockLost, "", false)))
		}
	})
}

func TestARequeuedKillerHasTwoMoreAttemptsAlone(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		w.serve(w, lease.Policy{MaxAttempts: 10}, 0, nil)
		for _, o := range []analysislock.AcquireOptions{asDelivery, asDelivery, asAlone, asAlone, asDelivery} {
			w.acquireWith("i/"+time.Now().String(), o)
			die(w)
		}
		if _, err := w.locks.Requeue(w.Context(), "x", "", nil, false, ""); err != nil {
			w.Fatal(err)
		}
		for range 2 {
			if acq := w.acquireWith("i/a", asDelivery); acq.Reason != analysislock.Suspect {
				w.Fatalf("after a requeue: %+v, want a suspect", acq)
			}
			if acq := w.acquireWith("i/"+time.Now().String(), asAlone); !acq.Acquired {
				w.Fatalf("alone: %+v", acq)
			}
			die(w)
		}
		if acq := w.acquireWith("i/z", asAlone); acq.Reason != analysislock.Crashed {
			w.Errorf("%+v, want it FAILED", acq)
		}
	})
}

func TestWhatCountsAsACrash(t *testing.T) {
	crash := func(w *fixture) { w.acquireWith("i/"+time.Now().String(), asDelivery); die(w) }
	end := func(e func(now time.Time) analysislock.Ending) func(w *fixture) {
		return func(w *fixture) {
			h := w.acquireWith("i/"+time.Now().String(), analysislock.AcquireOptions{}).Hold
			if err := h.End(w.Context(), e(h.Now())); err != nil {
				w.Fatal(err)
			}
		}
	}
	released := func(outcome string) func(w *fixture) {
		return end(func(now time.Time) analysislock.Ending {
			return analysislock.Releasing(now, outcome, "", true)
		})
	}
	failed := end(func(now time.Time) analysislock.Ending {
		return analysislock.Retrying(now, "c", "m", time.Time{}, "", false)
	})
	unlock := func(held bool) func(w *fixture) {
		return func(w *fixture) {
			w.acquireWith("i/"+time.Now().String(), analysislock.AcquireOptions{})
			if !held {
				die(w)
			}
			if _, err := w.locks.Unlock(w.Context(), "x", "", nil, ""); err != nil {
				w.Fatal(err)
			}
		}
	}
	// by has the operator's name, which the history keeps.
	by := func(step func(w *fixture, who string) error) func(w *fixture) {
		return func(w *fixture) {
			if err := step(w, "me"); err != nil {
				w.Fatal(err)
			}
		}
	}
	requeue := by(func(w *fixture, who string) error {
		_, err := w.locks.Requeue(w.Context(), "x", who, nil, false, "")
		return err
	})
	unlockFree := by(func(w *fixture, who string) error {
		_, err := w.locks.Unlock(w.Context(), "x", who, nil, "")
		return err
	})
	for name, tc := range map[string]struct {
		steps   []func(w *fixture)
		suspect bool
	}{
		"one":                             {[]func(*fixture){crash}, false},
		"two":                             {[]func(*fixture){crash, crash}, true},
		"two, then a failure":             {[]func(*fixture){crash, crash, failed}, false},
		"a failure between":               {[]func(*fixture){crash, failed, crash}, false},
		"a continuation between":          {[]func(*fixture){crash, released(analysislock.OutcomeContinued), crash}, false},
		"a stop between":                  {[]func(*fixture){crash, released(analysislock.OutcomeShuttingDown), crash}, true},
		"two, then a stop":                {[]func(*fixture){crash, crash, released(analysislock.OutcomeShuttingDown)}, true},
		"an operator unlocked a live run": {[]func(*fixture){crash, unlock(true)}, false},
		"an operator unlocked a dead one": {[]func(*fixture){crash, unlock(false)}, true},
		"two, then an operator requeued":  {[]func(*fixture){crash, crash, requeue}, true},
		"an operator requeued between":    {[]func(*fixture){crash, requeue, crash, unlockFree}, true},
		"one, then an operator, often":    {[]func(*fixture){crash, requeue, unlockFree, requeue}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				w.serve(w, lease.Policy{MaxAttempts: 10}, 0, nil)
				for _, step := range tc.steps {
					step(w)
				}
				acq := w.acquireWith("i/last", asDelivery)
				if suspect := acq.Reason == analysislock.Suspect; suspect != tc.suspect || suspect == acq.Acquired {
					w.Errorf("%+v; history %q", acq, w.outcomes())
				}
			})
		})
	}
}

func TestOnlyTheLastTwoAttemptsAloneMakeAKiller(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		w.serve(w, lease.Policy{MaxAttempts: 10}, 0, nil)
		for _, o := range []analysislock.AcquireOptions{asDelivery, asDelivery, asAlone, {}, asAlone} {
			if acq := w.acquireWith("i/"+time.Now().String(), o); !acq.Acquired {
				w.Fatalf("%+v; history %q", acq, w.outcomes())
			}
			die(w)
		}
		if acq := w.acquireWith("i/6", asAlone); !acq.Acquired {
			w.Errorf("%+v; history %q: one attempt was beside others", acq, w.outcomes())
		}
	})
}

func TestADelayFreesTheLockAndIsCounted(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		for _, owner := range []string{"i/1", "i/2"} {
			w.acquireWith(owner, asDelivery)
			die(w)
		}
		task := func(time.Time) string { return "task" }
		for n := 1; n <= 10; n++ {
			skipped := w.acquireWith("i/x", asDelivery)
			if skipped.MustRun {
				w.Fatalf("it must run after %d delays", n-1)
			}
			next, err := w.locks.Delay(w.Context(), skipped, 15*time.Second, task)
			d := w.doc()
			if err != nil || !next.Equal(d.ReadAt.Add(15*time.Second).Truncate(time.Millisecond)) {
				w.Fatalf("delay: %v, %v", next, err)
			}
			if d.Lock.Owner != "" || d.Lock.Token != 2 || d.Lock.Attempts != 2 || d.Status != analysislock.Queued ||
				!d.NextAttemptAt.Equal(next) || d.BookedTask != "task" || d.History[1].Delays != n ||
				d.LastError.Code != analysislock.Crashed || w.outcomes() != "crashed crashed" {
				w.Fatalf("after delay %d: %+v", n, d)
			}
			if _, err := w.locks.Delay(w.Context(), skipped, time.Second, task); !errors.Is(err, lease.ErrConflict) {
				w.Fatalf("the delay of a stale reading: %v, want a conflict", err)
			}
			time.Sleep(15 * time.Second)
		}
		if skipped := w.acquireWith("i/x", asDelivery); !skipped.MustRun {
			w.Errorf("%+v after 10 delays, want MustRun", skipped)
		}
		if acq := w.acquireWith("i/3", analysislock.AcquireOptions{}); !acq.Acquired || w.doc().History[2].Alone {
			w.Errorf("%+v, history %+v", acq, w.doc().History)
		}
	})
}

func TestADelayWithoutAQueueIsCounted(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		for _, owner := range []string{"i/1", "i/2"} {
			w.acquireWith(owner, asDelivery)
			die(w)
		}
		if _, err := w.locks.Delay(w.Context(), w.acquireWith("i/x", asDelivery), time.Minute, nil); err != nil {
			w.Fatal(err)
		}
		if d := w.doc(); d.History[1].Delays != 1 || !d.NextAttemptAt.IsZero() || d.BookedTask != "" {
			w.Errorf("%+v", d)
		}
	})
}
