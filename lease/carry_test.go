package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

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
			for range 2 { // before the loss, and after it
				refused := make(chan error, 1)
				h.Carry(0, func(err error) { refused <- err }, note("late"))
				if err := <-refused; !errors.Is(err, lease.ErrLost) || ctx.Err() == nil {
					w.Errorf("%v; the body's context: %v", err, ctx.Err())
				}
			}
			return nil
		}), lease.OutOfTime)
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
