package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// renewal is one call of a Renewed.
type renewal struct {
	at, took time.Duration
	err      error
}

// recorder returns a Renewed that appends its calls to a list.
func (w *fixture) recorder(to *[]renewal) lease.Renewed {
	return func(ctx context.Context, took time.Duration, err error) {
		if ctx.Err() != nil {
			w.Errorf("its context has ended: %v", ctx.Err())
		}
		*to = append(*to, renewal{w.since(), took, err})
	}
}

func TestARenewalThatFailsIsReported(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Every(leasetest.Swap, leasetest.Unavailable))
		var all []renewal
		var when time.Duration
		var why error
		wantErr(w, h.Run(w.Context(), w.untilCancelled(&when, &why), w.recorder(&all)), lease.ErrLost)
		if len(all) != 1 || !errors.Is(all[0].err, lease.ErrUnavailable) {
			w.Errorf("renewals %+v; want one failure", all)
		}
	})
}

// A heartbeat is a third of the TTL: after two failures there would be no third try.
func TestARenewalThatFailsIsTriedAgainAfterATenthOfAHeartbeat(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse))
		var all []renewal
		if err := h.Run(w.Context(), func(context.Context, job, lease.Grant) error {
			w.at(150 * time.Second)
			return nil
		}, w.recorder(&all)); err != nil {
			w.Errorf("run: %v", err)
		}
		if len(all) != 2 || !errors.Is(all[0].err, lease.ErrRefused) || all[1].err != nil || all[1].at-all[0].at != 10*time.Second {
			w.Errorf("renewals %+v; want a refusal, and a renewal 10s later", all)
		}
	})
}

// A callback that blocks delays no cancellation.
func TestALossEndsTheRunBeforeItIsReported(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.rewrite(func(j *job) { j.Lease.Owner = "them" })
		var when time.Duration
		var why error
		slow := func(context.Context, time.Duration, error) { time.Sleep(50 * time.Second) }
		wantLost(w, h.Run(w.Context(), w.untilCancelled(&when, &why), slow), lease.Taken)
		if when < 100*time.Second || when > 101*time.Second { // the heartbeat and its conflict's pause
			w.Errorf("ended at %v, want with the renewal, at 100s", when)
		}
		var lost *lease.LostError
		if !errors.As(why, &lost) || lost.KillAfter() != 5*time.Second {
			w.Errorf("cause %#v; want one with KillAfter 5s", why)
		}
	})
}

// A renewal that is in progress when the run ends has not failed.
func TestARenewalThatTheRunsEndCancelsIsNotReported(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Every(leasetest.Swap, leasetest.Unavailable))
		var all []renewal
		err := h.Run(w.Context(), func(context.Context, job, lease.Grant) error {
			w.at(101 * time.Second)
			synctest.Wait()
			return nil
		}, w.recorder(&all))
		if err != nil || len(all) != 0 {
			w.Errorf("renewals %+v, %v; want none", all, err)
		}
	})
}

// A renewal that succeeds after the run has ended is reported like any other.
func TestARenewalThatSucceedsAsTheRunEndsIsReported(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.faulty.Delay = 5 * time.Second
		h := w.acquire()
		w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.SlowReply))
		var all []renewal
		err := h.Run(w.Context(), func(context.Context, job, lease.Grant) error {
			w.at(101 * time.Second)
			return nil
		}, w.recorder(&all))
		if err != nil || len(all) != 1 || all[0].err != nil || all[0].took != w.faulty.Delay {
			w.Errorf("renewals %+v, %v; want one", all, err)
		}
	})
}

func TestAStolenLeaseIsReportedAsStolen(t *testing.T) {
	for name, tc := range map[string]struct {
		was  lease.Lease
		want bool
	}{
		"never held": {lease.Lease{}, false},
		"released":   {lease.Lease{Token: 3, Attempts: 1}, false},
		"expired":    {lease.Lease{Owner: "them", Token: 3, ExpiresAt: time.Unix(1, 0)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				w.memory.Put("a", job{Lease: tc.was})
				w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.DropAfter)) // written, and its reply lost
				if got := w.acquire().Stolen(); got != tc.want {
					w.Errorf("stolen %v; want %v", got, tc.want)
				}
			})
		})
	}
}
