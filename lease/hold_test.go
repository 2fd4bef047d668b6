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

// lostAt runs a body that waits for the end of its context, and returns when that was. It checks
// that the context and the run ended because the lease was lost for reason.
func (w *fixture) lostAt(h *lease.Hold[job], reason string, renewed ...lease.Renewed) (at time.Duration) {
	w.Helper()
	err := h.Run(w.Context(), func(ctx context.Context, _ job, _ lease.Grant) error {
		<-ctx.Done()
		at = w.since()
		wantLost(w, context.Cause(ctx), reason)
		if lost, ok := errors.AsType[*lease.LostError](context.Cause(ctx)); ok && lost.KillAfter() != 5*time.Second {
			w.Errorf("kill after %v; want 5s", lost.KillAfter())
		}
		return nil
	}, renewed...)
	wantLost(w, err, reason)
	return at
}

// inBubble runs f in virtual time.
func inBubble(t *testing.T, f func(w *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(newFixture(t, lease.Policy{})) })
}

func TestALongRunCostsOneSwapAHeartbeat(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.wantCalls(1, 1)
		w.faulty.SetPlan(nil)
		err := h.Run(w.Context(), func(ctx context.Context, _ job, _ lease.Grant) error {
			w.at(1050 * time.Second)
			return ctx.Err()
		})
		check(w, err)
		w.wantCalls(0, 10)
		check(w, h.Finish(w.Context(), note("result")))
		w.wantCalls(0, 11)
		w.wantSame(job{lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"}, "result"})
	})
}

// Trust ends at t + (E − S) − margin: 270 s after the last reading, whatever
// the calls to the store do.
func TestTheWatchdogNeedsNoStore(t *testing.T) {
	for name, fault := range map[string]leasetest.Fault{
		"unavailable": leasetest.Unavailable,
		"slow":        leasetest.SlowFailure,
		"dropping":    leasetest.DropBefore,
		"conflict":    leasetest.Conflict,
		"refusing":    leasetest.Refuse,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				w.faulty.Delay = time.Hour // a call comes back long after its context ended
				h := w.acquire()
				w.faulty.SetPlan(leasetest.Every(leasetest.Swap, fault))
				if at := w.lostAt(h, lease.OutOfTime); at != 270*time.Second {
					w.Errorf("cancelled after %v; want 270s", at)
				}
				w.wantFaults(fault)
			})
		})
	}
}

// A heartbeat sent at 100 s and answered at 250 s proves the lease until 370 s,
// not until 520 s.
func TestASlowHeartbeatDoesNotExtendTrust(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.faulty.Delay = 150 * time.Second
		h := w.acquire()
		w.faulty.SetPlan(func(c leasetest.Call) leasetest.Fault {
			if c.Op == leasetest.Swap && c.N == 1 {
				return leasetest.SlowReply
			}
			return leasetest.Unavailable
		})
		if at := w.lostAt(h, lease.OutOfTime); at != 370*time.Second {
			w.Errorf("cancelled after %v; want 370s", at)
		}
		w.wantFaults(leasetest.SlowReply, leasetest.Unavailable)
	})
}

// The store's clock jumps 200 s ahead, as it seems to a machine that was suspended:
// the next heartbeat writes a near expiry, and trust ends sooner than before.
func TestTrustThatEndsSoonerIsNoticed(t *testing.T) {
	inBubble(t, func(w *fixture) {
		ahead := w.clockAhead()
		h := w.acquire()
		w.faulty.SetPlan(func(c leasetest.Call) leasetest.Fault {
			if c.N == 1 {
				ahead.Store(int64(200 * time.Second))
				return leasetest.None
			}
			return leasetest.Unavailable
		})
		if at := w.lostAt(h, lease.OutOfTime); at != 170*time.Second { // the heartbeat at 100 s left 100 s, less the margin
			w.Errorf("cancelled after %v; want 170s", at)
		}
	})
}

// A Hold with little time left when its run begins is renewed before that time ends. Without
// any time left its run does not begin.
func TestARunThatBeginsLateIsRenewedInTimeOrNeverBegins(t *testing.T) {
	for begin, lost := range map[time.Duration]bool{250 * time.Second: false, 270 * time.Second: true} {
		inBubble(t, func(w *fixture) {
			h, ran := w.acquire(), false
			w.at(begin)
			err := h.Run(w.Context(), func(ctx context.Context, _ job, _ lease.Grant) error {
				ran = true
				w.at(1000 * time.Second)
				return context.Cause(ctx)
			})
			if ran == lost || (err != nil) != lost || lost && !errors.Is(err, lease.ErrLost) {
				w.Errorf("begun after %v: ran %v, %v; want it lost: %v", begin, ran, err, lost)
			}
		})
	}
}

func TestABodyThatPanicsLeavesNoGoroutine(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		func() {
			defer func() {
				if recover() == nil {
					w.Error("the panic was swallowed")
				}
			}()
			_ = h.Run(w.Context(), func(context.Context, job, lease.Grant) error { panic("body") })
		}()
		w.faulty.SetPlan(nil)
		time.Sleep(time.Hour)
		w.wantCalls(0, 0)
	})
}

func TestTheEndOfTheCallersContextEndsTheBodysAndNoHeartbeat(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		why := errors.New("stopping")
		ctx, cancel := context.WithCancelCause(w.Context())
		err := h.Run(ctx, func(ctx context.Context, _ job, _ lease.Grant) error {
			w.at(10 * time.Second)
			cancel(why)
			if got := context.Cause(ctx); !errors.Is(got, why) {
				w.Errorf("cause = %v; want %v", got, why)
			}
			w.at(1000 * time.Second) // winding up takes long
			if until := w.record().Lease.ExpiresAt; !time.Now().Before(until) {
				w.Errorf("the lease ended at %v", until)
			}
			return nil
		})
		check(w, err)
		check(w, h.Finish(ctx, note("result")))
		w.wantSame(job{lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"}, "result"})
	})
}

func TestTheStoresClockMayBeSetToAnything(t *testing.T) {
	for _, offset := range []time.Duration{7 * time.Minute, -7 * time.Minute, 24 * 365 * time.Hour} {
		inBubble(t, func(w *fixture) {
			w.memory.Now = func() time.Time { return time.Now().Add(offset) }
			h := w.acquire()
			time.AfterFunc(950*time.Second, func() { w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable)) })
			if at := w.lostAt(h, lease.OutOfTime); at != 1170*time.Second { // 270 s after the heartbeat at 900 s
				w.Errorf("offset %v: cancelled after %v; want 1170s", offset, at)
			}
			w.at(1200*time.Second - 1)
			if _, _, err := w.lessorOn(w.memory, lease.Policy{}).Acquire(w.Context(), "a", "w/2", nil); !errors.As(err, new(*lease.HeldError)) {
				w.Errorf("offset %v: acquire just before the expiry: %v", offset, err)
			}
			w.at(1200 * time.Second)
			w.takeOver("w/3")
		})
	}
}

// A renewal by a TTL shorter than the Policy's margin is trusted by its own.
func TestARenewalIsTrustedByItsOwnMargin(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		fatal(w, h.Renew(w.Context(), 25*time.Second))
		check(w, h.Run(w.Context(), func(context.Context, job, lease.Grant) error { return nil }))
		if err := h.Renew(w.Context(), -1); err == nil {
			w.Error("a renewal by a negative time")
		}
	})
}

func TestRunByEndsWithTheBodysErrorOrWithItsHeartbeatsLoss(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		own, beats := errors.New("own"), 0
		body := func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(10 * time.Second):
				return own
			}
		}
		beat := func(context.Context) (time.Duration, error) { beats++; return 2 * time.Second, nil }
		if err := h.RunBy(w.Context(), body, 3*time.Second, beat); !errors.Is(err, own) || beats != 4 {
			w.Errorf("%v after %d heartbeats, want the body's error after 4", err, beats)
		}
		began := time.Now()
		err := h.RunBy(w.Context(), body, time.Second, func(context.Context) (time.Duration, error) {
			return 0, &lease.LostError{Reason: lease.Taken}
		})
		if !errors.Is(err, lease.ErrLost) || time.Since(began) != time.Second {
			w.Errorf("%v after %v, want the loss after 1 s", err, time.Since(began))
		}
	})
}

// outcome is a call of Carry's done.
type outcome struct {
	at  time.Duration
	err error
}

// carry carries note(s), and appends the outcome to a list.
func (w *fixture) carry(h *lease.Hold[job], s string, every time.Duration, to *[]outcome) {
	h.Carry(every, func(err error) { *to = append(*to, outcome{w.since(), err}) }, note(s))
}

func TestACarriedChangeBringsTheRenewalForward(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		var all []outcome
		err := h.Run(w.Context(), func(context.Context, job, lease.Grant) error {
			w.at(10 * time.Second)
			w.carry(h, "hour", time.Hour, &all)
			w.carry(h, "late", 30*time.Second, &all) // 30 s after the acquisition
			w.carry(h, "last", time.Hour, &all)
			w.at(40 * time.Second)
			if got, now := w.record().Note, h.Now(); got != "last" || !now.Equal(time.Now()) {
				w.Errorf("the record has %q at %v by the hold", got, now)
			}
			w.carry(h, "now", 0, &all)
			w.at(135 * time.Second) // 100 s after the last would be 140 s
			return nil
		})
		if err != nil || len(all) != 2 || all[0] != (outcome{30 * time.Second, nil}) || all[1] != (outcome{40 * time.Second, nil}) {
			w.Errorf("%v; outcomes %v", err, all)
		}
		w.wantCalls(1, 3)
	})
}

func TestAFloodOfCarriedChangesIsOneCommitAnInterval(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		var all []outcome
		if err := h.Run(w.Context(), func(context.Context, job, lease.Grant) error {
			for w.since() < 301*time.Second {
				w.carry(h, w.since().String(), 30*time.Second, &all)
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		}); err != nil {
			w.Error(err)
		}
		w.wantCalls(1, 1+10)
	})
}

// The store refuses the renewals too, which are tried at their usual times.
func TestACarriedChangeThatCannotBeWrittenBringsNoOtherRenewalForward(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Every(leasetest.Swap, leasetest.Refuse))
		var all []outcome
		if err := h.Run(w.Context(), func(context.Context, job, lease.Grant) error {
			w.carry(h, "late", 0, &all)
			w.at(55 * time.Second)
			return nil
		}); err != nil || len(all) != 0 {
			w.Errorf("%v; outcomes %v", err, all)
		}
		w.wantCalls(2*6, 2*6) // with and without the change, each tenth of a heartbeat
	})
}

func TestFinishAndReleaseWriteWhatIsCarried(t *testing.T) {
	for name, end := range map[string]func(h *lease.Hold[job], ctx context.Context) error{
		"finish":  func(h *lease.Hold[job], ctx context.Context) error { return h.Finish(ctx, nil) },
		"release": func(h *lease.Hold[job], ctx context.Context) error { return h.Release(ctx, nil, true) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				h := w.acquire()
				var all []outcome
				w.carry(h, "last", time.Hour, &all)
				w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.DropAfter))
				if err := end(h, w.Context()); err != nil || len(all) != 1 || all[0].err != nil || w.record().Note != "last" {
					w.Errorf("%v; outcomes %v; note %q", err, all, w.record().Note)
				}
			})
		})
	}
}

// A body may wait for a change that it carries after the loss, as a last checkpoint.
func TestACarriedChangeIsRefusedAsSoonAsTheLeaseIsLost(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable))
		wantLost(w, h.Run(w.Context(), func(ctx context.Context, _ job, _ lease.Grant) error {
			for n := range 2 { // before the loss, where it may have been written, and after it
				refused := make(chan error, 1)
				h.Carry(0, func(err error) { refused <- err }, note("late"))
				err := <-refused
				if !errors.Is(err, lease.ErrLost) || ctx.Err() == nil {
					w.Errorf("%v; the body's context: %v", err, ctx.Err())
				}
				if unknown := errors.Is(err, lease.ErrUnavailable); unknown != (n == 0) {
					w.Errorf("change %d: unknown = %v", n, unknown)
				}
			}
			return nil
		}), lease.OutOfTime)
	})
}

// The renewal that goes on until the loss began without the change. Another one would reach no store.
func TestACarriedChangeThatWaitsForARenewalUntilTheLossIsNotUnknown(t *testing.T) {
	for range 20 { // the renewal and the watch end at one time, in any order
		inBubble(t, func(w *fixture) {
			h := w.acquire()
			w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable))
			wantLost(w, h.Run(w.Context(), func(context.Context, job, lease.Grant) error {
				w.at(150 * time.Second) // the renewal began at 100 s
				refused := make(chan error, 1)
				h.Carry(0, func(err error) { refused <- err }, note("late"))
				if err := <-refused; !errors.Is(err, lease.ErrLost) || errors.Is(err, lease.ErrUnavailable) {
					w.Errorf("%v, want that it was not written", err)
				}
				return nil
			}), lease.OutOfTime)
		})
	}
}

// Whoever takes the lease after a commit whose reply was lost may have overwritten it.
func TestACarriedChangeIsUnknownIfItMayHaveBeenWritten(t *testing.T) {
	for name, tc := range map[string]struct {
		first   leasetest.Fault
		unknown bool
	}{
		"written, the reply lost":      {leasetest.DropAfter, true},
		"not written, the answer lost": {leasetest.DropBefore, true},
		"not written":                  {leasetest.None, false},
		"refused by the store":         {leasetest.Refuse, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				h := w.acquire()
				take := func() { w.rewrite(func(j *job) { j.Lease.Owner, j.Lease.Token = "them", 2 }) }
				if tc.first == leasetest.None {
					take()
				}
				w.faulty.SetPlan(func(c leasetest.Call) leasetest.Fault {
					if c.Op == leasetest.Load && c.N == 1 && tc.first != leasetest.None {
						take()
					}
					return leasetest.On(leasetest.Swap, tc.first)(c)
				})
				var all []outcome
				w.carry(h, "carried", 0, &all)
				wantErr(w, h.Renew(w.Context(), 0), lease.ErrLost)
				if len(all) != 1 || errors.Is(all[0].err, lease.ErrUnavailable) != tc.unknown {
					w.Errorf("outcomes %v, want unknown %v", all, tc.unknown)
				}
			})
		})
	}
}

// The second commit begins during the first, without the change, and fails after it.
func TestACarriedChangeStaysUnknownAfterAnotherCommit(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Every(leasetest.Swap, leasetest.Unavailable))
		var all []outcome
		w.carry(h, "carried", time.Hour, &all)
		for i := range 2 {
			go func() {
				ctx, cancel := context.WithTimeout(w.Context(), time.Duration(i+1)*time.Second)
				defer cancel()
				wantErr(w, h.Renew(ctx, 0), lease.ErrUnavailable)
			}()
			synctest.Wait()
		}
		time.Sleep(3 * time.Second)

		w.faulty.SetPlan(nil)
		w.rewrite(func(j *job) { j.Lease.Owner, j.Lease.Token = "them", 2 })
		wantErr(w, h.Renew(w.Context(), 0), lease.ErrLost)
		if len(all) != 1 || !errors.Is(all[0].err, lease.ErrUnavailable) {
			w.Errorf("outcomes %v, want unknown", all)
		}
	})
}

// The run ends during the commit of the first change. If a second change has replaced the
// first one, done of the first is not called.
func TestWhatARenewalCouldNotWriteIsWrittenByTheFinishUnlessItIsReplaced(t *testing.T) {
	for name, notes := range map[string][]string{"alone": {"old"}, "replaced": {"old", "new"}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				h := w.acquire()
				w.faulty.SetPlan(leasetest.Every(leasetest.Swap, leasetest.Unavailable))
				var all []outcome
				err := h.Run(w.Context(), func(context.Context, job, lease.Grant) error {
					for _, s := range notes {
						w.carry(h, s, 0, &all)
						time.Sleep(time.Second)
					}
					return nil
				})
				if err != nil || len(all) != 0 || !h.Carries() {
					w.Errorf("%v; outcomes %v, want none before the commit", err, all)
				}
				w.faulty.SetPlan(nil)
				if err := h.Finish(w.Context(), nil); err != nil || len(all) != 1 || all[0].err != nil || h.Carries() {
					w.Errorf("%v; outcomes %v", err, all)
				}
				if got, want := w.record().Note, notes[len(notes)-1]; got != want {
					w.Errorf("the record has %q, want %q", got, want)
				}
			})
		})
	}
}

// The store refuses the finish's own change, as it does without what is carried.
func TestARefusedFinishKeepsWhatIsCarriedForTheNext(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		var all []outcome
		w.carry(h, "carried", time.Hour, &all)
		w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse, leasetest.Refuse))
		if wantErr(w, h.Finish(w.Context(), note("too large")), lease.ErrRefused); len(all) != 0 {
			w.Errorf("outcomes %v of what was not refused", all)
		}
		if err := h.Finish(w.Context(), nil); err != nil || len(all) != 1 || all[0].err != nil || w.record().Note != "carried" {
			w.Errorf("%v; outcomes %v; note %q", err, all, w.record().Note)
		}
	})
}

func TestALossFoundByTheCallersHeartbeatRefusesWhatIsCarried(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		var all []outcome
		err := h.RunBy(w.Context(), func(ctx context.Context) error {
			<-ctx.Done()
			w.carry(h, "late", time.Hour, &all)
			return nil
		}, time.Second, func(ctx context.Context) (time.Duration, error) {
			w.rewrite(func(j *job) { j.Lease.Owner, j.Lease.Token, j.Note = "them", 2, "theirs" })
			return 0, h.Renew(ctx, 0)
		})
		if !errors.Is(err, lease.ErrLost) || len(all) != 1 || !errors.Is(all[0].err, lease.ErrLost) || h.Doc().Note != "theirs" {
			w.Errorf("%v; outcomes %v; read %+v", err, all, h.Doc())
		}
	})
}

// It ends with its body, and the next renewal chooses its expiry in the same millisecond.
func TestARenewalWrittenUnseenIsNotTakenForTheNext(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.at(time.Second)
		for range 3 {
			ctx, cancel := context.WithTimeout(w.Context(), time.Microsecond)
			w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.DropAfter))
			err := h.Renew(ctx, 0)
			cancel()
			if !errors.Is(err, lease.ErrUnavailable) {
				w.Errorf("error %v, want ErrUnavailable", err)
			}
		}
		w.faulty.SetPlan(nil)
		var all []outcome
		w.carry(h, "carried", 0, &all)
		if err := h.Renew(w.Context(), 0); err != nil || len(all) != 1 || all[0].err != nil || w.record().Note != "carried" {
			w.Errorf("%v; outcomes %v; note %q", err, all, w.record().Note)
		}
	})
}
