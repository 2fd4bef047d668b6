package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// A body may ignore its cancellation. The store is not called again for its lease, and nothing of
// the holder is written.
func TestALossIsReportedOnceAndTheStoreIsNotCalledAgain(t *testing.T) {
	finished := job{lease.Lease{Owner: "w/1", Token: 1, Finished: true}, "theirs"}
	for reason, others := range map[string]func(w *fixture){
		lease.Taken:    func(w *fixture) { w.rewrite(func(j *job) { j.Lease.Owner = "them" }) },
		lease.Finished: func(w *fixture) { w.memory.Put("a", finished) },
		lease.Deleted:  func(w *fixture) { w.memory.Delete("a") },
	} {
		inBubble(t, func(w *fixture) {
			h := w.acquire()
			others(w)
			before, err := w.memory.Load(w.Context(), "a", lease.OnlyLease)
			fatal(w, err)
			var all []renewal
			err = h.Run(w.Context(), func(ctx context.Context) error {
				<-ctx.Done()
				w.faulty.SetPlan(nil)
				w.at(1000 * time.Second)
				return nil
			}, w.recorder(&all))
			wantLost(w, err, reason)
			if len(all) != 1 {
				w.Errorf("renewals %+v; want one loss", all)
			}
			w.wantCalls(0, 0)
			wantLost(w, h.End(w.Context(), lease.Finishing(note("mine"))), reason)
			wantLost(w, h.End(w.Context(), lease.Releasing(true, note("mine"))), reason)
			after, err := w.memory.Load(w.Context(), "a", lease.OnlyLease)
			if fatal(w, err); after.Exists != before.Exists || after.Rev != before.Rev {
				w.Errorf("%s: %+v, then %+v; want no write", reason, before, after)
			}
		})
	}
}

// Else a body that ignores its cancellation would hold the lease for ever.
func TestALeaseThatWasNotRenewedInTimeStaysLost(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Every(leasetest.Swap, leasetest.DropBefore))
		time.AfterFunc(280*time.Second, func() { w.faulty.SetPlan(nil) })
		err := h.Run(w.Context(), func(context.Context) error {
			w.at(2000 * time.Second)
			w.takeOver("w/2")
			return errors.New("failed") // the loss is returned instead
		}, nil)
		wantLost(w, err, lease.OutOfTime)
	})
}

func TestAFinishAfterTrustHasEndedIsFenced(t *testing.T) {
	for name, taken := range map[string]bool{"not taken over": false, "another took over": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				h := w.acquire()
				w.at(time.Hour)
				want := job{lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"}, "result"}
				if taken {
					want = job{Lease: w.takeOver("w/2")}
				}
				if err := h.End(w.Context(), lease.Finishing(note("result"))); (err != nil) != taken {
					w.Errorf("finish: %v", err)
				} else if taken {
					wantLost(w, err, lease.Taken)
				}
				w.wantSame(want)
			})
		})
	}
}

// A holder loses its connection while its heartbeat is in transit, and another takes
// over. When the connection is back, nothing of the old holder is written.
func TestASupersededHolderThatReconnectsWritesNothing(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Any(leasetest.On(leasetest.Swap, leasetest.Late), leasetest.Always(leasetest.Unavailable)))
		var theirs job
		err := h.Run(w.Context(), func(context.Context) error {
			w.at(300 * time.Second)
			theirs = job{Lease: w.takeOver("w/2")}
			w.at(310 * time.Second)
			w.wantFaults(leasetest.Late, leasetest.Unavailable)
			w.faulty.SetPlan(nil)
			w.faulty.Deliver()
			return nil
		}, nil)
		wantLost(w, err, lease.OutOfTime)
		w.wantSame(theirs)
		wantLost(w, h.Renew(w.Context()), lease.Taken)
		wantLost(w, h.End(w.Context(), lease.Finishing(note("mine"))), lease.Taken)
		wantLost(w, h.End(w.Context(), lease.Releasing(true, note("mine"))), lease.Taken)
		w.wantSame(theirs)
	})
}

// A heartbeat in transit when the run ends does not restore the lease after its release.
func TestAHeartbeatInFlightDoesNotRestoreAReleasedLease(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Any(leasetest.On(leasetest.Swap, leasetest.Late), leasetest.Every(leasetest.Load, leasetest.Unavailable)))
		err := h.Run(w.Context(), func(context.Context) error {
			w.at(105 * time.Second)
			return nil
		}, nil)
		check(w, err)
		w.wantFaults(leasetest.Late)
		w.faulty.SetPlan(nil)
		check(w, h.End(w.Context(), lease.Releasing(false, unchanged)))
		w.faulty.Deliver()
		w.wantSame(job{Lease: lease.Lease{Token: 1, Attempts: 1}})
	})
}

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

func TestEachRenewalIsReportedUnlessTheRunsEndCancelsIt(t *testing.T) {
	const swap = leasetest.Swap
	for name, tc := range map[string]struct {
		plan leasetest.Plan
		end  time.Duration // of the run
		want []renewal
		lost bool // the run
	}{
		"it fails until the lease is lost": {leasetest.Every(swap, leasetest.Unavailable), time.Hour,
			[]renewal{{270 * time.Second, 170 * time.Second, lease.ErrUnavailable}}, true},
		"after a failure it is tried again in a tenth of a heartbeat": {leasetest.On(swap, leasetest.Refuse), 150 * time.Second,
			[]renewal{{100 * time.Second, 0, lease.ErrRefused}, {110 * time.Second, 0, nil}}, false},
		"it is in progress at the end": {leasetest.Every(swap, leasetest.Unavailable), 101 * time.Second, nil, false},
		"it succeeds after the end": {leasetest.On(swap, leasetest.SlowReply), 101 * time.Second,
			[]renewal{{105 * time.Second, 5 * time.Second, nil}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				w.faulty.Delay = 5 * time.Second
				h := w.acquire()
				w.faulty.SetPlan(tc.plan)
				var all []renewal
				err := h.Run(w.Context(), func(ctx context.Context) error {
					select {
					case <-ctx.Done():
					case <-time.After(tc.end):
					}
					return nil
				}, w.recorder(&all))
				if errors.Is(err, lease.ErrLost) != tc.lost || !tc.lost && err != nil || len(all) != len(tc.want) {
					w.Fatalf("run: %v; renewals %+v; want %+v", err, all, tc.want)
				}
				for i, got := range all {
					want := tc.want[i]
					if !errors.Is(got.err, want.err) || got.at.Truncate(time.Second) != want.at || got.took.Truncate(time.Second) != want.took {
						w.Errorf("renewals %+v; want %+v", all, tc.want)
					}
				}
			})
		})
	}
}

// A callback that blocks delays no cancellation.
func TestALossEndsTheRunBeforeItIsReported(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.rewrite(func(j *job) { j.Lease.Owner = "them" })
		slow := func(_ context.Context, _ time.Duration, err error) {
			var lost *lease.LostError
			if !errors.As(err, &lost) {
				w.Errorf("renewal: %v; want the loss", err)
			}
			time.Sleep(50 * time.Second)
		}
		if at := w.lostAt(h, lease.Taken, slow); at < 100*time.Second || at > 101*time.Second { // the heartbeat and its conflict's pause
			w.Errorf("ended at %v, want with the renewal, at 100s", at)
		}
	})
}

// A renewal that began before the watchdog's loss finds another's lease after it.
func TestTheFirstLossIsReported(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.rewrite(func(j *job) { j.Lease.Owner, j.Lease.Token = "them", 2 })
		w.faulty.Delay = 200 * time.Second
		w.faulty.SetPlan(leasetest.On(leasetest.Load, leasetest.SlowReply))
		wantLost(w, h.Run(w.Context(), func(context.Context) error {
			w.at(400 * time.Second)
			return nil
		}, nil), lease.OutOfTime)
	})
}

// Another has acquired and released the lease since the try that was dropped.
func TestAReleaseIsNotTakenForAnothers(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.DropBefore))
		w.rewrite(func(j *job) { j.Lease = lease.Lease{Token: 2, Attempts: 2} })
		wantLost(w, h.End(w.Context(), lease.Releasing(false, note("mine"))), lease.Taken)
	})
}

func TestALeaseThatIsReleasedBeforeTheCommitIsNotStolen(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.memory.Put("a", job{Lease: lease.Lease{Owner: "them", Token: 3, ExpiresAt: time.Unix(1, 0)}})
		w.faulty.SetPlan(func(c leasetest.Call) leasetest.Fault {
			if c.Op == leasetest.Swap && c.N == 1 {
				w.rewrite(func(j *job) { j.Lease = lease.Lease{Token: 3} })
			}
			return leasetest.None
		})
		if w.acquire().Stolen() {
			w.Error("stolen from nobody")
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
