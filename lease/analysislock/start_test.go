package analysislock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// start starts the run of x elsewhere, by begin.
func (w *fixture) start(begin func(context.Context) error) (analysislock.Acquisition, error) {
	return w.locks.Start(w.Context(), "x", "w/start", begin)
}

var errBegin = errors.New("no quota")

func begins(context.Context) error { return nil }
func fails(context.Context) error  { return errBegin }

// The policy of the fixture has three attempts.
func TestRunsThatAreStartedElsewhereAndDieBeforeTheyHaveTheLockAreNotStartedForEver(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		for n := 1; n <= 3; n++ {
			if acq, err := w.start(begins); err != nil || acq.Reason != "" {
				w.Fatalf("start %d: %+v, %v", n, acq, err)
			}
			d := w.doc()
			if d.Starts != n || d.NextAttemptAt.IsZero() || lease.Late(d.NextAttemptAt, w.now(), lease.DefaultTTL) {
				w.Errorf("after start %d: %d starts, next %v", n, d.Starts, d.NextAttemptAt)
			}
			time.Sleep(lease.DefaultTTL + time.Minute)
		}
		if _, err := w.start(fails); err != nil {
			w.Errorf("the fourth start calls begin: %v", err)
		}
		d := w.doc()
		if d.Status != analysislock.Failed || d.Error.Code != analysislock.NotStarted {
			w.Fatalf("%s %+v", d.Status, d.Error)
		}
		if d.Starts != 0 || d.Lock.FinishedBy != "w/start" || d.Lock.Token == 0 {
			w.Errorf("%d starts, %+v", d.Starts, d.Lock)
		}
		if d.Error.Message != "started 3 times elsewhere, and no run has taken the lock" {
			w.Errorf("message %q", d.Error.Message)
		}
		if acq, err := w.start(fails); err != nil || acq.Reason != analysislock.AlreadyFinished {
			w.Errorf("after that: %+v, %v", acq, err)
		}
	})
}

func TestStartsAreCountedFromAnewAfter(t *testing.T) {
	for name, reset := range map[string]func(w *fixture){
		"an acquisition": func(w *fixture) { w.acquire("w/run") },
		"a requeue": func(w *fixture) {
			_, err := w.locks.Requeue(w.Context(), "x", "", nil, false, "")
			w.check(err)
		},
		"a finish": func(w *fixture) {
			_, err := w.locks.Cancel(w.Context(), "x", "me", nil)
			w.check(err)
		},
		"a begin that fails": func(w *fixture) {
			if _, err := w.start(fails); !errors.Is(err, errBegin) || w.doc().Starts != 1 {
				w.Errorf("error %v, %d starts", err, w.doc().Starts)
			}
			w.acquire("w/run")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				_, err := w.start(begins)
				w.check(err)
				if reset(w); w.doc().Starts != 0 {
					w.Errorf("%d starts", w.doc().Starts)
				}
			})
		})
	}
}

func TestNothingIsStartedThatIsHeldOrWaits(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		h := w.acquire("w/run").Hold
		if acq, err := w.start(fails); err != nil || acq.Reason != analysislock.Locked || acq.Grant.Owner != "w/run" {
			w.Errorf("held: %+v, %v", acq, err)
		}
		next := h.Now().Add(time.Minute)
		w.check(h.End(w.Context(), analysislock.Retrying(h.Now(), "c", "m", next, "", false)))
		acq, err := w.start(fails)
		if err != nil || acq.Reason != analysislock.Waiting || !acq.ExpiresAt.Equal(next) || acq.Remaining <= 0 {
			w.Errorf("waiting: %+v, %v", acq, err)
		}
		if n := w.doc().Starts; n != 0 {
			w.Errorf("%d starts", n)
		}
	})
}
