package analysislock_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

func TestAcquire(t *testing.T) {
	inBubble(t, "a run keeps its lock and completes", func(w *fixture) {
		w.rewrite(func(d *analysis) {
			d.Checkpoint, d.Acts = &analysislock.Checkpoint{Value: "c"}, analysislock.Acts{"a": *done("null")}
			d.Starts = 1
		})
		acq, d := w.acquire("w/1"), w.doc()
		same(w, 0, d.Starts)
		same(w, analysislock.Processing, d.Status)
		same(w, d.Lock.Grant(), acq.Grant)
		same(w, 1, acq.Attempt)
		same(w, "first true, last false, stolen false, 0s",
			fmt.Sprintf("first %t, last %t, stolen %t, %v", acq.First, acq.Last, acq.Stolen, acq.RunTime))

		renewals := 0
		renewed := func(context.Context, time.Duration, error) { renewals++ }
		w.check(acq.Hold.Run(w.Context(), func(ctx context.Context) error {
			time.Sleep(lease.DefaultTTL * 5 / 6)
			work, err := w.locks.Work(ctx, acq.Hold)
			same(w, `7 "c" 1`, fmt.Sprintf("%s %s %d", work.Input, work.Checkpoint, len(work.Acts)))
			other := w.acquire("w/2")
			same(w, analysislock.Locked, other.Reason)
			same(w, acq.Grant, other.Grant)
			same(w, lease.DefaultTTL*5/6, other.Remaining) // since the heartbeat 50 s ago
			return err
		}, renewed))
		same(w, 2, renewals)

		w.end(acq.Hold, analysislock.Completing(acq.Hold.Now(), "done"))
		other := w.acquire("w/3")
		same(w, analysislock.AlreadyFinished, other.Reason)
		same(w, analysislock.Ready, other.Status)
	})

	// The reply to the last acquisition is lost.
	for most, want := range map[int]failure{
		2: {Code: analysislock.AttemptsExhausted, Message: "gave up after 2 attempts; last error: m"},
		3: {Code: analysislock.RunTimeExhausted, Message: "gave up 1h0m0s after the first attempt began"},
	} {
		inBubble(t, want.Code, func(w *fixture) {
			s := leasetest.NewFaulty[analysis](w, nil)
			w.serve(s, most, time.Hour)
			for i, left := range []time.Duration{time.Hour, time.Millisecond} {
				acq := w.acquire("w/1")
				same(w, left, acq.RunTime)
				same(w, i+1 == most, acq.Last)
				w.end(acq.Hold, retrying(acq.Hold))
				time.Sleep(left - time.Millisecond)
			}
			time.Sleep(time.Millisecond)
			s.SetPlan(leasetest.On(leasetest.Swap, leasetest.ReplyLost))
			acq, d := w.acquire("w/2"), w.doc()
			same(w, want.Code, acq.Reason)
			same(w, lease.Grant{Owner: "w/2", Token: 3}, acq.Grant)
			same(w, lease.Lease{Token: 3, Attempts: most, Finished: true, FinishedBy: "w/2"}, d.Lock)
			w.wantStatus(analysislock.Failed)
			same(w, &want, d.Error)
			same(w, &failure{Code: "c", Message: "m"}, d.LastError)
			same(w, 2, len(d.History))
		})
	}

	inBubble(t, "an input that has no JSON is an error of the work", func(w *fixture) {
		w.rewrite(func(d *analysis) { d.Input = math.NaN() })
		if _, err := w.locks.Work(w.Context(), w.acquire("w/1").Hold); err == nil {
			w.Error("no error")
		}
	})
	t.Run("a negative TTL is an error", func(t *testing.T) {
		if _, err := analysislock.New(&lease.Memory[analysis]{}, lease.Policy{TTL: -1}, 0, nil); err == nil {
			t.Error("no error")
		}
	})
}

// Another process refreshes and releases by owner.
func TestLocks_ByOwner(t *testing.T) {
	inBubble(t, "the holder's", func(w *fixture) {
		w.acquire("w/1")
		w.check(w.locks.RefreshAnalysisLock(w.Context(), "x", "w/1", time.Hour))
		same(w, w.now().Add(time.Hour), w.doc().Lock.ExpiresAt)
		w.faulty().SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse, leasetest.Refuse))
		wantErr(w, w.locks.RefreshAnalysisLock(w.Context(), "x", "w/1", 0), lease.ErrRefused)
		wantErr(w, w.locks.ReleaseAnalysisLock(w.Context(), "x", "w/1"), lease.ErrRefused)
		w.check(w.locks.ReleaseAnalysisLock(w.Context(), "x", "w/1"))
		same(w, lease.Lease{Token: 1, Attempts: 1}, w.doc().Lock)
		w.wantStatus(analysislock.Queued)
	})
	inBubble(t, "a superseded owner changes nothing", func(w *fixture) {
		w.acquire("w/1")
		time.Sleep(lease.DefaultTTL)
		same(w, true, w.acquire("w/2").Stolen)
		before := w.cell()
		wantErr(w, w.locks.RefreshAnalysisLock(w.Context(), "x", "w/1", 0), lease.ErrLost)
		w.check(w.locks.ReleaseAnalysisLock(w.Context(), "x", "w/1"))
		w.check(w.locks.ReleaseAnalysisLock(w.Context(), "missing", "w/1"))
		same(w, before.Rev, w.cell().Rev)
	})
}

// Firestore can hold an id of 1,500 bytes, without a slash.
func TestCheckID(t *testing.T) {
	wantErr(t, analysislock.CheckID(strings.Repeat("x", 1500)), nil)
	wantErr(t, analysislock.CheckID(strings.Repeat("x", 1501)), lease.ErrInvalidKey)
	inBubble(t, "each call checks it", func(w *fixture) {
		_, acquire := w.locks.AcquireAnalysisLock(w.Context(), "a/b", "w/1", 0, options{})
		_, unlock := w.locks.Unlock(w.Context(), "a/b", "", nil, "")
		refresh := w.locks.RefreshAnalysisLock(w.Context(), "a/b", "w/1", 0)
		release := w.locks.ReleaseAnalysisLock(w.Context(), "a/b", "w/1")
		for _, err := range []error{acquire, unlock, refresh, release} {
			wantErr(w, err, lease.ErrInvalidKey)
		}
		if _, err := w.locks.AcquireAnalysisLock(w.Context(), "x", "w/1", -1, options{}); err == nil {
			w.Error("a negative TTL is no error")
		}
	})
}

func TestAnalysis_Problem(t *testing.T) {
	d := analysis{Malformed: fmt.Errorf("lockToken is a string: %w", lease.ErrMalformed)}
	same(t, "lockToken is a string", d.Problem())
	same(t, "", (&analysis{}).Problem())
}
