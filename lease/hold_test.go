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

func TestHold_Run(t *testing.T) {
	inBubble(t, "a long run costs one swap a heartbeat", func(w *fixture) {
		h := w.acquire()
		w.wantCalls(1, 1)
		w.faulty.SetPlan(nil)
		check(w, w.run(h, func(context.Context) { w.at(1050 * time.Second) }))
		w.wantCalls(0, 10)
		check(w, w.finish(h, "result"))
		w.wantCalls(0, 11)
		w.wantSame(completed("result"))
	})

	// A Hold with little time left when its run begins is renewed before that time ends. Without
	// any time left its run does not begin.
	inBubble(t, "a run that begins late is renewed in time", func(w *fixture) {
		h := w.acquire()
		w.at(250 * time.Second)
		check(w, w.run(h, func(context.Context) { w.at(1000 * time.Second) }))
	})
	inBubble(t, "a run that begins too late never begins", func(w *fixture) {
		h := w.acquire()
		w.at(270 * time.Second)
		wantLost(w, w.run(h, func(context.Context) { w.Error("it ran") }), lease.OutOfTime)
	})

	inBubble(t, "a body that panics leaves no goroutine", func(w *fixture) {
		h := w.acquire()
		func() {
			defer func() { same(w, "body", recover()) }()
			_ = w.run(h, func(context.Context) { panic("body") })
		}()
		w.faulty.SetPlan(nil)
		time.Sleep(time.Hour)
		w.wantCalls(0, 0)
	})

	inBubble(t, "the end of the caller's context ends the body's and no heartbeat", func(w *fixture) {
		h := w.acquire()
		why := errors.New("stopping")
		ctx, cancel := context.WithCancelCause(w.Context())
		check(w, h.Run(ctx, func(ctx context.Context) error {
			w.at(10 * time.Second)
			cancel(why)
			wantErr(w, context.Cause(ctx), why)
			w.at(1000 * time.Second) // winding up takes long
			if until := w.record().Lease.ExpiresAt; !time.Now().Before(until) {
				w.Errorf("the lease ended at %v", until)
			}
			return nil
		}, nil))
		check(w, h.End(ctx, lease.Finishing(note("result"))))
		w.wantSame(completed("result"))
	})

	inBubble(t, "stop ends the context of start", func(w *fixture) {
		h := w.acquire()
		ctx := h.Start(w.Context(), nil)
		check(w, h.Stop())
		wantErr(w, ctx.Err(), context.Canceled)
	})
}

// wantLostAt runs a body that waits for the end of its context, and checks when and why that ended.
func (w *fixture) wantLostAt(want time.Duration, h *lease.Hold[job]) {
	w.Helper()
	wantLost(w, w.run(h, func(ctx context.Context) {
		<-ctx.Done()
		w.wantSince(want)
		wantLost(w, context.Cause(ctx), lease.OutOfTime)
		if lost, ok := errors.AsType[*lease.LostError](context.Cause(ctx)); ok {
			same(w, 5*time.Second, lost.KillAfter())
		}
	}), lease.OutOfTime)
}

// Trust ends at t + (E − S) − margin: 270 s after the last reading, whatever the calls to the store do.
func TestHold_Trust(t *testing.T) {
	for _, fault := range []leasetest.Fault{
		leasetest.Unavailable, leasetest.SlowFailure, leasetest.RequestLost, leasetest.Conflict, leasetest.Refuse,
	} {
		inBubble(t, "the watchdog needs no store, "+string(fault), func(w *fixture) {
			w.faulty.Delay = time.Hour // a call comes back long after its context ended
			h := w.acquire()
			w.faulty.SetPlan(leasetest.Every(leasetest.Swap, fault))
			w.wantLostAt(270*time.Second, h)
			w.wantFaults(fault)
		})
	}

	// A heartbeat sent at 100 s and answered at 250 s proves the lease until 370 s, not until 520 s.
	inBubble(t, "a slow heartbeat does not extend trust", func(w *fixture) {
		w.faulty.Delay = 150 * time.Second
		h := w.acquire()
		slow := leasetest.On(leasetest.Swap, leasetest.SlowReply)
		w.faulty.SetPlan(leasetest.Any(slow, leasetest.Always(leasetest.Unavailable)))
		w.wantLostAt(370*time.Second, h)
		w.wantFaults(leasetest.SlowReply, leasetest.Unavailable)
	})

	// The store's clock jumps 200 s ahead, as it seems to a machine that was suspended: the next
	// heartbeat, at 100 s, leaves 100 s, less the margin. Later calls do not end with their context.
	inBubble(t, "trust that ends sooner is noticed", func(w *fixture) {
		ahead := w.clockAhead()
		h := w.acquire()
		w.faulty.SetPlan(func(c leasetest.Call) leasetest.Fault {
			if c.N == 1 {
				ahead.Store(int64(200 * time.Second))
				return leasetest.None
			}
			return leasetest.SlowFailure
		})
		w.faulty.Delay = time.Hour
		w.wantLostAt(170*time.Second, h)
	})

	for _, offset := range []time.Duration{-7 * time.Minute, 24 * 365 * time.Hour} {
		inBubble(t, "the store's clock may be set to anything, "+offset.String(), func(w *fixture) {
			w.clockAhead().Store(int64(offset))
			h := w.acquire()
			down := func() { w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable)) }
			time.AfterFunc(950*time.Second, down)
			w.wantLostAt(1170*time.Second, h) // 270 s after the heartbeat at 900 s
			w.at(1200*time.Second - 1)
			if _, err := w.takeOver("w/2"); !errors.As(err, new(*lease.HeldError)) {
				w.Errorf("acquire just before the expiry: %v", err)
			}
			w.at(1200 * time.Second)
			_, err := w.takeOver("w/3")
			check(w, err)
		})
	}
}

func TestHold_Send(t *testing.T) {
	inBubble(t, "a change brings the renewal forward", func(w *fixture) {
		h := w.acquire()
		check(w, w.run(h, func(context.Context) {
			w.at(10 * time.Second)
			w.send(h, "hour", time.Hour)
			w.at(11 * time.Second)
			w.send(h, "late", 30*time.Second) // 30 s after the acquisition
			w.at(12 * time.Second)
			w.send(h, "last", time.Hour)
			w.at(30*time.Second - 1)
			w.wantAnswers()
			w.at(30*time.Second + 1)
			w.wantAnswers("hour", "late", "last")
			w.wantNote("last")
			same(w, time.Now(), h.Now())
			w.at(40 * time.Second)
			w.send(h, "now", 0)
			w.at(129 * time.Second) // 100 s after the last would be 140 s
			w.wantAnswers("now")
		}))
		w.wantCalls(1, 3)
	})

	inBubble(t, "a change does not put off the one that it replaces", func(w *fixture) {
		h := w.acquire()
		w.send(h, "soon", 30*time.Second)
		w.send(h, "later", time.Hour)
		check(w, w.run(h, func(context.Context) {
			w.at(30*time.Second + 1)
			w.wantAnswers("soon", "later")
		}))
	})

	// The store refuses the renewals too, which are tried at their usual times.
	inBubble(t, "a change that cannot be written brings no other renewal forward", func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Every(leasetest.Swap, leasetest.Refuse))
		check(w, w.run(h, func(context.Context) {
			w.send(h, "late", 0)
			w.at(55 * time.Second)
		}))
		w.wantAnswers()
		w.wantCalls(2*6, 2*6) // with and without the change, each tenth of a heartbeat
	})

	// A run may report a checkpoint of a megabyte ten times a second while the store does not answer.
	inBubble(t, "a replaced change is not kept while a commit hangs", func(w *fixture) {
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

	inBubble(t, "a change that is sent during a commit waits for the next", func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(before(leasetest.Swap, 1, func() { w.send(h, "second", time.Hour) }))
		w.send(h, "first", 0)
		check(w, h.Flush(w.Context()))
		w.wantAnswers("first")
		w.wantNote("first")
		check(w, h.Flush(w.Context()))
		w.wantAnswers("second")
		w.wantNote("second")
	})

	inBubble(t, "of two changes of a part the later is called written", func(w *fixture) {
		h := w.acquire()
		for _, s := range []string{"old", "new"} {
			written := w.answer(s + " written")
			h.Send(lease.Change[job]{Part: "note", Set: note(s), Done: w.answer(s), Written: written})
		}
		check(w, h.Flush(w.Context()))
		w.wantAnswers("new written", "old", "new")
		check(w, h.Flush(w.Context())) // nothing waits
		w.wantCalls(1, 2)
	})

	// A change of a part replaces the whole of it, so it begins with what is pending.
	inBubble(t, "a change is decided on the record as earlier ones leave it", func(w *fixture) {
		h := w.acquire()
		for _, s := range []string{"a", "b", "c"} {
			add := func(d job) (func(*job), error) { return note(d.Note + s), nil }
			h.Send(lease.Change[job]{Part: "note", Decide: add})
		}
		own := func(j *job) { j.Note += "!" } // the last
		check(w, h.End(w.Context(), lease.Finishing(own)))
		w.wantNote("abc!")
	})
}

func TestHold_SendLost(t *testing.T) {
	// A body may wait for a change that it sends after the loss, as a last checkpoint.
	inBubble(t, "a change is answered as soon as the lease is lost", func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable))
		wantLost(w, w.run(h, func(ctx context.Context) {
			w.send(h, "before", 0)
			<-ctx.Done()
			synctest.Wait()
			w.wantAnswers("before lost unknown")
			w.send(h, "after", 0)
			synctest.Wait()
			w.wantAnswers("after lost")
		}), lease.OutOfTime)
	})

	// The renewal that goes on until the loss began without the change. Another one would reach no store.
	for range 20 { // the renewal and the watch end at one time, in any order
		inBubble(t, "a change that waits for a renewal until the loss is not unknown", func(w *fixture) {
			h := w.acquire()
			w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable))
			wantLost(w, w.run(h, func(ctx context.Context) {
				w.at(150 * time.Second) // the renewal began at 100 s
				w.send(h, "late", 0)
				<-ctx.Done()
				synctest.Wait()
				w.wantAnswers("late lost")
			}), lease.OutOfTime)
		})
	}

	// The work may send a change when it learns of the loss.
	inBubble(t, "a stop after a loss answers what was sent", func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable))
		<-h.Start(w.Context(), nil).Done()
		w.send(h, "late", 0)
		wantLost(w, h.Stop(), lease.OutOfTime)
		w.wantAnswers("late lost")
	})

	// Whoever takes the lease after a commit whose reply was lost may have overwritten it.
	for name, c := range map[string]struct {
		first  leasetest.Fault
		taken  leasetest.Op // before the first of these
		answer string
	}{
		"the reply is lost":            {leasetest.ReplyLost, leasetest.Load, "sent lost unknown"},
		"the lease is taken before":    {leasetest.None, leasetest.Swap, "sent lost"},
		"the store refuses the change": {leasetest.Refuse, leasetest.Load, "sent lost"},
	} {
		inBubble(t, "a change is unknown if it may have been written, "+name, func(w *fixture) {
			h := w.acquire()
			w.faulty.SetPlan(leasetest.Any(before(c.taken, 1, w.steal), leasetest.On(leasetest.Swap, c.first)))
			w.send(h, "sent", 0)
			wantErr(w, h.Renew(w.Context()), lease.ErrLost)
			w.wantAnswers(c.answer)
		})
	}

	// The outcome of a change counts for the change that it has replaced, which a failed renewal may
	// have written.
	inBubble(t, "a change that replaces an unknown one is unknown", func(w *fixture) {
		h := w.acquire()
		w.send(h, "old", time.Hour)
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		w.faulty.SetPlan(leasetest.Always(leasetest.Unavailable))
		wantErr(w, h.Renew(ctx), lease.ErrUnavailable)
		w.faulty.SetPlan(nil)
		w.send(h, "new", time.Hour)
		w.steal()
		wantErr(w, h.Renew(w.Context()), lease.ErrLost)
		w.wantAnswers("old lost unknown", "new lost unknown")
	})

	inBubble(t, "a loss found by the caller's heartbeat answers what is pending", func(w *fixture) {
		h := w.acquire()
		watched := h.Watch(w.Context())
		w.send(h, "late", time.Hour)
		w.steal()
		w.rewrite(func(j *job) { j.Note, j.Lease.ExpiresAt = "theirs", j.Lease.ExpiresAt.Add(time.Hour) })
		wantErr(w, h.Renew(w.Context()), lease.ErrLost)
		w.wantAnswers("late lost")
		same(w, "theirs", h.Doc().Note)
		<-watched.Done()
		w.wantSince(270 * time.Second) // the end of trust in ours
		wantLost(w, context.Cause(watched), lease.OutOfTime)
		wantLost(w, h.Stop(), lease.OutOfTime)
	})
}

func TestHold_End(t *testing.T) {
	for name, end := range map[string]lease.Ending[job]{
		"a finish":  lease.Finishing(unchanged),
		"a release": lease.Releasing(true, unchanged),
	} {
		inBubble(t, name+" writes what was sent", func(w *fixture) {
			h := w.acquire()
			w.send(h, "sent", time.Hour)
			w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.ReplyLost))
			check(w, h.End(w.Context(), end))
			w.wantAnswers("sent")
			w.wantNote("sent")
		})
	}

	// The run ends during the commit of the first change. The second change has replaced that one.
	inBubble(t, "it writes what a renewal could not", func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Every(leasetest.Swap, leasetest.Unavailable))
		check(w, w.run(h, func(context.Context) {
			w.send(h, "old", 0)
			time.Sleep(time.Second)
			w.send(h, "new", 0)
			time.Sleep(time.Second)
		}))
		w.wantAnswers()
		w.faulty.SetPlan(nil)
		check(w, h.End(w.Context(), lease.Finishing(unchanged)))
		w.wantAnswers("old", "new")
		w.wantNote("new")
	})

	inBubble(t, "its first change gives way before what was sent", func(w *fixture) {
		h := w.acquire()
		add := func(s string) func(*job) { return func(j *job) { j.Note += s } }
		h.Send(lease.Change[job]{Part: "note", Set: add("sent "), Delay: time.Hour, Done: w.answer("sent")})
		w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse))
		check(w, h.End(w.Context(), lease.Releasing(false, add("first"), add("second"))))
		w.wantAnswers("sent")
		w.wantNote("sent second")
	})

	// The store refuses the finish's own change, also without what is pending.
	inBubble(t, "a refused finish keeps what is pending for the next", func(w *fixture) {
		h := w.acquire()
		w.send(h, "sent", time.Hour)
		w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse, leasetest.Refuse))
		wantErr(w, w.finish(h, "too large"), lease.ErrRefused)
		w.wantAnswers()
		check(w, h.End(w.Context(), lease.Finishing(unchanged)))
		w.wantAnswers("sent")
		w.wantNote("sent")
	})

	for name, taken := range map[string]bool{"not taken over": false, "another took over": true} {
		inBubble(t, "a finish after trust has ended is fenced, "+name, func(w *fixture) {
			h := w.acquire()
			w.at(time.Hour)
			if !taken {
				check(w, w.finish(h, "result"))
				w.wantSame(completed("result"))
				return
			}
			theirs, err := w.takeOver("w/2")
			check(w, err)
			wantLost(w, w.finish(h, "result"), lease.Taken)
			w.wantSame(job{Lease: theirs})
		})
	}

	// Another has acquired and released the lease since the try that was dropped.
	inBubble(t, "a release is not taken for another's", func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.RequestLost))
		w.rewrite(func(j *job) { j.Lease = lease.Lease{Token: 2, Attempts: 2} })
		wantLost(w, w.release(h, "mine"), lease.Taken)
	})
}

// It ends with its body, and the next renewal chooses its expiry in the same millisecond, which may be
// the acquisition's too.
func TestHold_Renew(t *testing.T) {
	for unseen, acquired := range map[int]time.Duration{1: 0, 3: time.Second} {
		inBubble(t, "one that was written unseen is not taken for the next, "+acquired.String(), func(w *fixture) {
			h := w.acquire()
			w.at(acquired)
			for range unseen {
				ctx, cancel := context.WithTimeout(w.Context(), time.Microsecond)
				w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.ReplyLost))
				wantErr(w, h.Renew(ctx), lease.ErrUnavailable)
				cancel()
			}
			w.faulty.SetPlan(nil)
			w.send(h, "sent", 0)
			check(w, h.Renew(w.Context()))
			w.wantAnswers("sent")
			w.wantNote("sent")
		})
	}
}
