package analysislock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

// start starts the run of x elsewhere, by begin.
func (w *fixture) start(begin func(context.Context) error) analysislock.Acquisition {
	w.Helper()
	acq, err := w.locks.Start(w.Context(), "x", "w/start", begin)
	w.check(err)
	return acq
}

var errBegin = errors.New("no quota")

func begins(context.Context) error { return nil }
func fails(context.Context) error  { return errBegin }

func TestStart(t *testing.T) {
	inBubble(t, "runs that die before they have the lock are not started for ever", func(w *fixture) {
		for n := 1; n <= 3; n++ {
			same(w, "", w.start(begins).Reason)
			d := w.doc()
			same(w, n, d.Starts)
			if d.NextAttemptAt.IsZero() || lease.Late(d.NextAttemptAt, w.now(), lease.DefaultTTL) {
				w.Errorf("after start %d: next %v", n, d.NextAttemptAt)
			}
			time.Sleep(lease.DefaultTTL + time.Minute)
		}
		w.start(fails) // is not called
		d := w.doc()
		w.wantStatus(analysislock.Failed)
		same(w, analysislock.NotStarted, d.Error.Code)
		same(w, 0, d.Starts)
		same(w, lease.Lease{Token: 1, Finished: true, FinishedBy: "w/start"}, d.Lock)
		same(w, analysislock.AlreadyFinished, w.start(fails).Reason)
	})

	inBubble(t, "a begin that fails is not counted", func(w *fixture) {
		w.start(begins)
		_, err := w.locks.Start(w.Context(), "x", "w/start", fails)
		wantErr(w, err, errBegin)
		same(w, 1, w.doc().Starts)
	})

	inBubble(t, "nothing is started that is held or waits", func(w *fixture) {
		h := w.acquire("w/run").Hold
		acq := w.start(fails)
		same(w, analysislock.Locked, acq.Reason)
		same(w, "w/run", acq.Grant.Owner)

		next := h.Now().Add(time.Minute)
		w.end(h, analysislock.Retrying(h.Now(), "c", "m", next, "", false))
		d := w.doc()
		same(w, true, d.Waits())
		acq = w.start(fails)
		same(w, analysislock.Waiting, acq.Reason)
		same(w, next, acq.ExpiresAt)
		same(w, time.Minute, acq.Remaining)
		same(w, 0, w.doc().Starts)
	})

	inBubble(t, "two deliveries at once both begin, and both are counted", func(w *fixture) {
		w.overtake(func(rival *analysislock.Locks) {
			_, err := rival.Start(w.Context(), "x", "w/rival", begins)
			w.check(err)
		})
		same(w, "", w.start(begins).Reason)
		same(w, 2, w.doc().Starts)
	})

	inBubble(t, "and if the second request is lost too", func(w *fixture) {
		w.overtake(func(rival *analysislock.Locks) {
			_, err := rival.Start(w.Context(), "x", "w/rival", begins)
			w.check(err)
		}, leasetest.None, leasetest.RequestLost)
		same(w, "", w.start(begins).Reason)
		same(w, 2, w.doc().Starts)
	})

	inBubble(t, "the run that was started takes the lock meanwhile", func(w *fixture) {
		w.start(begins)
		time.Sleep(lease.DefaultTTL + time.Minute)
		w.overtake(func(rival *analysislock.Locks) {
			_, err := rival.AcquireAnalysisLock(w.Context(), "x", "w/run", 0, options{})
			w.check(err)
		})
		same(w, analysislock.Locked, w.start(fails).Reason)
	})

	inBubble(t, "a begin that fails does not uncount the start of another delivery", func(w *fixture) {
		_, err := w.locks.Start(w.Context(), "x", "w/1", func(context.Context) error {
			w.start(begins)
			return errBegin
		})
		wantErr(w, err, errBegin)
		same(w, 1, w.doc().Starts)
	})
}

// overtake lets another worker change x between the next reading and its write. The writes have these faults.
func (w *fixture) overtake(change func(rival *analysislock.Locks), faults ...leasetest.Fault) {
	w.Helper()
	rival := w.locks
	w.faulty().SetPlan(func(c leasetest.Call) leasetest.Fault {
		if c.Op == leasetest.Swap && c.N == 1 {
			change(rival)
		}
		return leasetest.On(leasetest.Swap, faults...)(c)
	})
}
