package lease_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// lostAt runs a body that waits for the end of its context, and returns when that was. It checks
// that the context and the run ended because the lease was lost for reason.
func (w *fixture) lostAt(h *lease.Hold[job], reason string, renewed lease.Renewed) (at time.Duration) {
	w.Helper()
	err := h.Run(w.Context(), func(ctx context.Context) error {
		<-ctx.Done()
		at = w.since()
		wantLost(w, context.Cause(ctx), reason)
		if lost, ok := errors.AsType[*lease.LostError](context.Cause(ctx)); ok && lost.KillAfter() != 5*time.Second {
			w.Errorf("kill after %v; want 5s", lost.KillAfter())
		}
		return nil
	}, renewed)
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
		err := h.Run(w.Context(), func(ctx context.Context) error {
			w.at(1050 * time.Second)
			return ctx.Err()
		}, nil)
		check(w, err)
		w.wantCalls(0, 10)
		check(w, h.End(w.Context(), lease.Finishing(note("result"))))
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
				if at := w.lostAt(h, lease.OutOfTime, nil); at != 270*time.Second {
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
		if at := w.lostAt(h, lease.OutOfTime, nil); at != 370*time.Second {
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
			return leasetest.SlowFailure // a call that does not end with its context
		})
		w.faulty.Delay = time.Hour
		if at := w.lostAt(h, lease.OutOfTime, nil); at != 170*time.Second { // the heartbeat at 100 s left 100 s, less the margin
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
			err := h.Run(w.Context(), func(ctx context.Context) error {
				ran = true
				w.at(1000 * time.Second)
				return context.Cause(ctx)
			}, nil)
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
			_ = h.Run(w.Context(), func(context.Context) error { panic("body") }, nil)
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
		err := h.Run(ctx, func(ctx context.Context) error {
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
		}, nil)
		check(w, err)
		check(w, h.End(ctx, lease.Finishing(note("result"))))
		w.wantSame(job{lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"}, "result"})
	})
}

func TestTheStoresClockMayBeSetToAnything(t *testing.T) {
	for _, offset := range []time.Duration{7 * time.Minute, -7 * time.Minute, 24 * 365 * time.Hour} {
		inBubble(t, func(w *fixture) {
			w.memory.Now = func() time.Time { return time.Now().Add(offset) }
			h := w.acquire()
			time.AfterFunc(950*time.Second, func() { w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable)) })
			if at := w.lostAt(h, lease.OutOfTime, nil); at != 1170*time.Second { // 270 s after the heartbeat at 900 s
				w.Errorf("offset %v: cancelled after %v; want 1170s", offset, at)
			}
			w.at(1200*time.Second - 1)
			if _, _, err := w.recordsOn(w.memory, lease.Policy{}).Acquire(w.Context(), "a", "w/2", lease.OnlyLease, nil); !errors.As(err, new(*lease.HeldError)) {
				w.Errorf("offset %v: acquire just before the expiry: %v", offset, err)
			}
			w.at(1200 * time.Second)
			w.takeOver("w/3")
		})
	}
}

// noted is a change of the note.
func noted(s string, delay time.Duration, done func(error)) lease.Change[job] {
	return lease.Change[job]{Part: "note", Set: note(s), Delay: delay, Done: done}
}

// outcome is a call of a change's Done.
type outcome struct {
	at  time.Duration
	err error
}

// send sends note(s), and appends the outcome to a list.
func (w *fixture) send(h *lease.Hold[job], s string, every time.Duration, to *[]outcome) {
	h.Send(noted(s, every, func(err error) { *to = append(*to, outcome{w.since(), err}) }))
}

func TestASentChangeBringsTheRenewalForward(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		var all []outcome
		err := h.Run(w.Context(), func(context.Context) error {
			w.at(10 * time.Second)
			w.send(h, "hour", time.Hour, &all)
			w.send(h, "late", 30*time.Second, &all) // 30 s after the acquisition
			w.send(h, "last", time.Hour, &all)
			w.at(40 * time.Second)
			if got, now := w.record().Note, h.Now(); got != "last" || !now.Equal(time.Now()) {
				w.Errorf("the record has %q at %v by the hold", got, now)
			}
			w.send(h, "now", 0, &all)
			w.at(135 * time.Second) // 100 s after the last would be 140 s
			return nil
		}, nil)
		if err != nil || len(all) != 4 || all[0] != (outcome{30 * time.Second, nil}) || all[2] != all[0] || all[3] != (outcome{40 * time.Second, nil}) {
			w.Errorf("%v; outcomes %v", err, all)
		}
		w.wantCalls(1, 3)
	})
}

func TestAFloodOfSentChangesIsOneCommitAnInterval(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		var all []outcome
		if err := h.Run(w.Context(), func(context.Context) error {
			for w.since() < 301*time.Second {
				w.send(h, w.since().String(), 30*time.Second, &all)
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		}, nil); err != nil {
			w.Error(err)
		}
		w.wantCalls(1, 1+10)
	})
}

// The store refuses the renewals too, which are tried at their usual times.
func TestASentChangeThatCannotBeWrittenBringsNoOtherRenewalForward(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Every(leasetest.Swap, leasetest.Refuse))
		var all []outcome
		if err := h.Run(w.Context(), func(context.Context) error {
			w.send(h, "late", 0, &all)
			w.at(55 * time.Second)
			return nil
		}, nil); err != nil || len(all) != 0 {
			w.Errorf("%v; outcomes %v", err, all)
		}
		w.wantCalls(2*6, 2*6) // with and without the change, each tenth of a heartbeat
	})
}

func TestFinishAndReleaseWriteWhatWasSent(t *testing.T) {
	for name, end := range map[string]func(h *lease.Hold[job], ctx context.Context) error{
		"finish": func(h *lease.Hold[job], ctx context.Context) error { return h.End(ctx, lease.Finishing(unchanged)) },
		"release": func(h *lease.Hold[job], ctx context.Context) error {
			return h.End(ctx, lease.Releasing(true, unchanged))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				h := w.acquire()
				var all []outcome
				w.send(h, "last", time.Hour, &all)
				w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.DropAfter))
				if err := end(h, w.Context()); err != nil || len(all) != 1 || all[0].err != nil || w.record().Note != "last" {
					w.Errorf("%v; outcomes %v; note %q", err, all, w.record().Note)
				}
			})
		})
	}
}

// A body may wait for a change that it sends after the loss, as a last checkpoint.
func TestASentChangeIsRefusedAsSoonAsTheLeaseIsLost(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable))
		wantLost(w, h.Run(w.Context(), func(ctx context.Context) error {
			for n := range 2 { // before the loss, where it may have been written, and after it
				refused := make(chan error, 1)
				h.Send(noted("late", 0, func(err error) { refused <- err }))
				err := <-refused
				if !errors.Is(err, lease.ErrLost) || ctx.Err() == nil {
					w.Errorf("%v; the body's context: %v", err, ctx.Err())
				}
				if unknown := errors.Is(err, lease.ErrUnavailable); unknown != (n == 0) {
					w.Errorf("change %d: unknown = %v", n, unknown)
				}
			}
			return nil
		}, nil), lease.OutOfTime)
	})
}

// The renewal that goes on until the loss began without the change. Another one would reach no store.
func TestASentChangeThatWaitsForARenewalUntilTheLossIsNotUnknown(t *testing.T) {
	for range 20 { // the renewal and the watch end at one time, in any order
		inBubble(t, func(w *fixture) {
			h := w.acquire()
			w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable))
			wantLost(w, h.Run(w.Context(), func(context.Context) error {
				w.at(150 * time.Second) // the renewal began at 100 s
				refused := make(chan error, 1)
				h.Send(noted("late", 0, func(err error) { refused <- err }))
				if err := <-refused; !errors.Is(err, lease.ErrLost) || errors.Is(err, lease.ErrUnavailable) {
					w.Errorf("%v, want that it was not written", err)
				}
				return nil
			}, nil), lease.OutOfTime)
		})
	}
}

// A run may report a checkpoint of a megabyte ten times a second while the store does not answer.
func TestAReplacedChangeIsNotKeptWhileACommitHangs(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable))
		h.Start(w.Context(), nil)
		w.at(150 * time.Second) // the renewal began at 100 s
		send := func() weak.Pointer[[1 << 20]byte] {
			large := new([1 << 20]byte)
			h.Send(lease.Change[job]{Part: "note", Set: func(j *job) { j.Note = string(large[:]) }})
			return weak.Make(large)
		}
		replaced, newest := send(), send()
		runtime.GC()
		if replaced.Value() != nil || newest.Value() == nil {
			w.Errorf("kept: the replaced %t, the newest %t", replaced.Value() != nil, newest.Value() != nil)
		}
		check(w, h.Stop())
	})
}

// Whoever takes the lease after a commit whose reply was lost may have overwritten it.
func TestASentChangeIsUnknownIfItMayHaveBeenWritten(t *testing.T) {
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
				w.send(h, "sent", 0, &all)
				wantErr(w, h.Renew(w.Context()), lease.ErrLost)
				if len(all) != 1 || errors.Is(all[0].err, lease.ErrUnavailable) != tc.unknown {
					w.Errorf("outcomes %v, want unknown %v", all, tc.unknown)
				}
			})
		})
	}
}

// The run ends during the commit of the first change. If a second change has replaced the
// first one, both are done with it.
func TestWhatARenewalCouldNotWriteIsWrittenByTheFinishUnlessItIsReplaced(t *testing.T) {
	for name, notes := range map[string][]string{"alone": {"old"}, "replaced": {"old", "new"}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				h := w.acquire()
				w.faulty.SetPlan(leasetest.Every(leasetest.Swap, leasetest.Unavailable))
				var all []outcome
				err := h.Run(w.Context(), func(context.Context) error {
					for _, s := range notes {
						w.send(h, s, 0, &all)
						time.Sleep(time.Second)
					}
					return nil
				}, nil)
				if err != nil || len(all) != 0 {
					w.Errorf("%v; outcomes %v, want none before the commit", err, all)
				}
				w.faulty.SetPlan(nil)
				if err := h.End(w.Context(), lease.Finishing(unchanged)); err != nil || len(all) != len(notes) || all[len(notes)-1].err != nil {
					w.Errorf("%v; outcomes %v", err, all)
				}
				if got, want := w.record().Note, notes[len(notes)-1]; got != want {
					w.Errorf("the record has %q, want %q", got, want)
				}
			})
		})
	}
}

func TestStopEndsTheContextOfStart(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		ctx := h.Start(w.Context(), nil)
		check(w, h.Stop())
		wantErr(w, ctx.Err(), context.Canceled)
	})
}

// The outcome of a change counts for the change that it has replaced, which a failed renewal may have written.
func TestAChangeThatReplacesAnUnknownOneIsUnknown(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		var all []outcome
		w.send(h, "old", time.Hour, &all)
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable))
		wantErr(w, h.Renew(ctx), lease.ErrUnavailable)
		w.faulty.SetPlan(nil)
		w.send(h, "new", time.Hour, &all)
		w.rewrite(func(j *job) { j.Lease.Owner, j.Lease.Token = "them", 2 })
		wantErr(w, h.Renew(w.Context()), lease.ErrLost)
		if len(all) != 2 || !errors.Is(all[0].err, lease.ErrUnavailable) || all[1] != all[0] {
			w.Errorf("outcomes %v; want two that are unknown", all)
		}
	})
}

// The work may send a change when it learns of the loss.
func TestTheStopAfterALossAnswersWhatWasSent(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable))
		<-h.Start(w.Context(), nil).Done()
		var all []outcome
		w.send(h, "late", 0, &all)
		wantLost(w, h.Stop(), lease.OutOfTime)
		if len(all) != 1 || !errors.Is(all[0].err, lease.ErrLost) || errors.Is(all[0].err, lease.ErrUnavailable) {
			w.Errorf("outcomes %v; want the loss", all)
		}
	})
}

// A change of a part replaces the whole of it, so it begins with what is pending.
func TestAChangeIsDecidedOnTheRecordAsEarlierOnesLeaveIt(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		for _, s := range []string{"a", "b", "c"} {
			add := func(d job) (func(*job), error) { return note(d.Note + s), nil }
			h.Send(lease.Change[job]{Part: "note", Decide: add})
		}
		err := h.End(w.Context(), lease.Finishing(func(j *job) { j.Note += "!" })) // its own change is the last
		if err != nil || w.record().Note != "abc!" {
			w.Errorf("%v; note %q, want abc!", err, w.record().Note)
		}
	})
}

// The first of an end's own changes gives way before what was sent.
func TestAnEndPrefersWhatWasSentToItsFirstChange(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		var all []outcome
		other := noted("sent", time.Hour, func(err error) { all = append(all, outcome{w.since(), err}) })
		other.Set = func(j *job) { j.Note += "sent " }
		h.Send(other)
		w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse))
		add := func(s string) func(*job) { return func(j *job) { j.Note += s } }
		check(w, h.End(w.Context(), lease.Releasing(false, add("first"), add("second"))))
		if w.record().Note != "sent second" || len(all) != 1 || all[0].err != nil {
			w.Errorf("note %q; outcomes %v", w.record().Note, all)
		}
	})
}

// The store refuses the finish's own change, as it does without what is carried.
func TestARefusedFinishKeepsWhatIsCarriedForTheNext(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		var all []outcome
		w.send(h, "sent", time.Hour, &all)
		w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse, leasetest.Refuse))
		if wantErr(w, h.End(w.Context(), lease.Finishing(note("too large"))), lease.ErrRefused); len(all) != 0 {
			w.Errorf("outcomes %v of what was not refused", all)
		}
		if err := h.End(w.Context(), lease.Finishing(unchanged)); err != nil || len(all) != 1 || all[0].err != nil || w.record().Note != "sent" {
			w.Errorf("%v; outcomes %v; note %q", err, all, w.record().Note)
		}
	})
}

func TestALossFoundByTheCallersHeartbeatRefusesWhatIsPending(t *testing.T) {
	inBubble(t, func(w *fixture) {
		h := w.acquire()
		var all []outcome
		watched := h.Watch(w.Context())
		w.send(h, "late", time.Hour, &all)
		w.rewrite(func(j *job) { j.Lease.Owner, j.Lease.Token, j.Note = "them", 2, "theirs" })
		w.rewrite(func(j *job) { j.Lease.ExpiresAt = j.Lease.ExpiresAt.Add(time.Hour) }) // not the trust in ours
		err := h.Renew(w.Context())
		if !errors.Is(err, lease.ErrLost) || len(all) != 1 || !errors.Is(all[0].err, lease.ErrLost) || h.Doc().Note != "theirs" {
			w.Errorf("%v; outcomes %v; read %+v", err, all, h.Doc())
		}
		if <-watched.Done(); w.since() != 270*time.Second {
			w.Errorf("ended at %v; want the end of trust, at 270s", w.since())
		}
		wantLost(w, context.Cause(watched), lease.OutOfTime)
		wantLost(w, h.Stop(), lease.OutOfTime)
	})
}

// It ends with its body, and the next renewal chooses its expiry in the same millisecond, which may be
// the acquisition's too.
func TestARenewalWrittenUnseenIsNotTakenForTheNext(t *testing.T) {
	for unseen, acquired := range map[int]time.Duration{1: 0, 3: time.Second} {
		inBubble(t, func(w *fixture) {
			h := w.acquire()
			w.at(acquired)
			for range unseen {
				ctx, cancel := context.WithTimeout(w.Context(), time.Microsecond)
				w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.DropAfter))
				err := h.Renew(ctx)
				cancel()
				if !errors.Is(err, lease.ErrUnavailable) {
					w.Errorf("error %v, want ErrUnavailable", err)
				}
			}
			w.faulty.SetPlan(nil)
			var all []outcome
			w.send(h, "sent", 0, &all)
			if err := h.Renew(w.Context()); err != nil || len(all) != 1 || all[0].err != nil || w.record().Note != "sent" {
				w.Errorf("%v after %v; outcomes %v; note %q", err, acquired, all, w.record().Note)
			}
		})
	}
}
