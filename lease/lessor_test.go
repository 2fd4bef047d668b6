package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

func TestAcquireGivesUpAfterFifteenSeconds(t *testing.T) {
	inWorld(t, func(w *world) {
		w.line.SetPlan(leasetest.Always(leasetest.Unavailable))
		_, _, err := w.lessor.Acquire(w.Context(), "a", "w/1", nil)
		wantErr(w, err, lease.ErrUnavailable)
		if w.since() != 15*time.Second {
			w.Errorf("gave up after %v; want 15s", w.since())
		}
		w.wantSame(job{})
	})
}

func TestFinishTriesForAMinuteAndReleaseForTwoSeconds(t *testing.T) {
	for want, end := range map[time.Duration]func(w *world, h *lease.Hold[job]) error{
		time.Minute:     func(w *world, h *lease.Hold[job]) error { return h.Finish(w.Context(), nil) },
		2 * time.Second: func(w *world, h *lease.Hold[job]) error { return h.Release(w.Context(), nil, false) },
	} {
		inWorld(t, func(w *world) {
			h := w.acquire()
			w.line.SetPlan(leasetest.Always(leasetest.DropBefore))
			wantErr(w, end(w, h), lease.ErrUnavailable)
			if w.since() != want {
				w.Errorf("gave up after %v; want %v", w.since(), want)
			}
		})
	}
}

// A stop gives its releases all of the time that it has left, and a caller that has
// none left still frees the lease.
func TestAReleaseTriesUntilALaterDeadlineOfItsCaller(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{
		7500 * time.Millisecond: 7500 * time.Millisecond,
		time.Second:             2 * time.Second,
		-time.Second:            2 * time.Second,
	} {
		inWorld(t, func(w *world) {
			h := w.acquire()
			w.line.SetPlan(leasetest.Always(leasetest.Unavailable))
			ctx, cancel := context.WithTimeout(w.Context(), given)
			time.AfterFunc(500*time.Millisecond, cancel)
			wantErr(w, h.Release(ctx, nil, true), lease.ErrUnavailable)
			if w.since() != want {
				w.Errorf("given %v it gave up after %v; want %v", given, w.since(), want)
			}
		})
	}
}

func TestARefusedFinishKeepsTheHold(t *testing.T) {
	inWorld(t, func(w *world) {
		h := w.acquire()
		w.line.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse))
		wantErr(w, h.Finish(w.Context(), note("too large")), lease.ErrRefused)
		w.wantRecord(job{Lease: lease.Lease{Owner: "w/1", Token: 1, Attempts: 1}})
		w.line.SetPlan(nil)
		if err := h.Finish(w.Context(), note("failed")); err != nil {
			w.Errorf("finish: %v", err)
		}
		w.wantSame(job{lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"}, "failed"})
	})
}

func TestResume(t *testing.T) {
	inWorld(t, func(w *world) {
		h := w.acquire()
		other := w.near(w.memory, lease.Policy{})
		got, err := other.Resume(w.Context(), "a", "w/1")
		if err != nil || got.Grant() != h.Grant() {
			w.Fatalf("elsewhere: %v", err)
		}
		w.at(200 * time.Second)
		var when time.Duration
		if err := got.Run(w.Context(), func(ctx context.Context, _ job, _ lease.Grant) error {
			w.at(1000 * time.Second)
			when = w.since()
			return ctx.Err()
		}); err != nil || when == 0 {
			w.Errorf("run: %v", err)
		}
		for owner, reason := range map[string]string{"w/2": lease.Taken, "": lease.Taken} {
			_, err = other.Resume(w.Context(), "a", owner)
			wantLost(w, err, reason)
		}
		_, err = other.Resume(w.Context(), "missing", "w/1")
		wantErr(w, err, lease.ErrNotFound)
		if err := got.Finish(w.Context(), nil); err != nil {
			w.Fatal(err)
		}
		_, err = other.Resume(w.Context(), "a", "w/1")
		wantLost(w, err, lease.Finished)
	})
}

// Complete, Fail and Release give it a context without an end.
func TestResumeGivesUpOnAnUnavailableStoreAfter15Seconds(t *testing.T) {
	inWorld(t, func(w *world) {
		w.acquire()
		w.line.SetPlan(leasetest.Always(leasetest.Unavailable))
		ctx, cancel := context.WithTimeout(w.Context(), time.Hour)
		defer cancel()
		_, err := w.near(w.line, lease.Policy{}).Resume(ctx, "a", "w/1")
		wantErr(w, err, lease.ErrUnavailable)
		if w.since() != 15*time.Second {
			w.Errorf("gave up after %v; want 15s", w.since())
		}
	})
}

// What another program finished in the meantime is finished, not exhausted.
func TestAnAcquisitionWhoseReplyWasLostAndThatWasFinishedByAnotherIsFinished(t *testing.T) {
	inWorld(t, func(w *world) {
		w.line.SetPlan(leasetest.Any(leasetest.On(leasetest.Swap, leasetest.DropAfter), func(c leasetest.Call) leasetest.Fault {
			if c.Op == leasetest.Load && c.N == 2 {
				w.rewrite(func(j *job) { j.Lease.Finished = true }) // the status alone, as programs do that know no lease
			}
			return leasetest.None
		}))
		_, _, err := w.lessor.Acquire(w.Context(), "a", "w/1", nil)
		wantErr(w, err, lease.ErrFinished)
	})
}

func TestAnExhaustedRecordWhoseReplyWasLostIsExhausted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, lease.Policy{MaxAttempts: 2})
		w.rewrite(func(j *job) { j.Lease = lease.Lease{Token: 4, Attempts: 2} })
		w.line.SetPlan(leasetest.On(leasetest.Swap, leasetest.DropAfter))
		_, j, err := w.lessor.Acquire(t.Context(), "a", "w/1", note("gave up"))
		wantErr(t, err, lease.ErrExhausted)
		want := job{lease.Lease{Token: 5, Attempts: 2, Finished: true, FinishedBy: "w/1"}, "gave up"}
		w.wantSame(want)
		if j != want {
			t.Errorf("record = %+v; want %+v", j, want)
		}
		w.wantFaults(leasetest.DropAfter)
	})
}

// An owner finishes once: after its own end of attempts, which an operator has
// reopened before it knew, it must not acquire. A later finish of its own would
// be taken for written, because the record names it already.
func TestAnOwnerThatHasGivenUpDoesNotAcquireWhatWasReopened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, lease.Policy{MaxAttempts: 2})
		w.rewrite(func(j *job) { j.Lease = lease.Lease{Token: 4, Attempts: 2} })
		w.line.SetPlan(leasetest.Any(leasetest.On(leasetest.Swap, leasetest.DropAfter), func(c leasetest.Call) leasetest.Fault {
			if c.Op == leasetest.Load && c.N == 2 {
				w.rewrite(func(j *job) { j.Lease.Finished, j.Lease.Attempts = false, 0 })
			}
			return leasetest.None
		}))
		_, _, err := w.lessor.Acquire(t.Context(), "a", "w/1", nil)
		wantErr(t, err, lease.ErrExhausted)
		w.wantSame(job{lease.Lease{Token: 5, FinishedBy: "w/1"}, ""})
	})
}

func TestAnAcquisitionWithoutAnOwnerIsRefused(t *testing.T) {
	inWorld(t, func(w *world) {
		if _, _, err := w.lessor.Acquire(w.Context(), "a", "", nil); err == nil {
			w.Error("acquired for nobody")
		}
		w.wantSame(job{})
	})
}

func TestWithTTL(t *testing.T) {
	inWorld(t, func(w *world) {
		if l, err := w.lessor.WithTTL(0); err != nil || l != w.lessor {
			w.Errorf("zero: %p, %v; want the same", l, err)
		}
		for _, ttl := range []time.Duration{-time.Second, time.Millisecond} {
			if _, err := w.lessor.WithTTL(ttl); err == nil {
				w.Errorf("%v was accepted", ttl)
			}
		}
		l, err := w.lessor.WithTTL(30 * time.Second)
		if err != nil {
			w.Fatal(err)
		}
		if got, want := l.Policy(), (lease.Policy{TTL: 30 * time.Second, Heartbeat: 10 * time.Second}); got != want {
			w.Errorf("policy = %+v; want %+v", got, want)
		}
		if _, _, err = l.Acquire(w.Context(), "a", "w/1", nil); err != nil {
			w.Fatal(err)
		}
	})
}

func TestMemorysTimeNeverRunsBackwards(t *testing.T) {
	times := []time.Time{noon, noon.Add(-time.Hour), noon.Add(time.Second)}
	m := &lease.Memory[job]{Now: func() time.Time { now := times[0]; times = times[1:]; return now }}
	for _, want := range []time.Time{noon, noon, noon.Add(time.Second)} {
		if c, err := m.Load(t.Context(), "a"); err != nil || !c.At.Equal(want) {
			t.Errorf("at = %v, %v; want %v", c.At, err, want)
		}
	}
}
