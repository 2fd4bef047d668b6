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
func TestLoss(t *testing.T) {
	for reason, others := range map[string]func(w *fixture){
		lease.Taken:    (*fixture).steal,
		lease.Finished: func(w *fixture) { w.rewrite(func(j *job) { j.Lease.Finished = true }) },
		lease.Deleted:  func(w *fixture) { w.memory.Delete("a") },
	} {
		inBubble(t, "it is reported once, "+reason, func(w *fixture) {
			h := w.acquire()
			others(w)
			before := w.cell()
			var all []renewal
			wantLost(w, h.Run(w.Context(), func(ctx context.Context) error {
				<-ctx.Done()
				w.faulty.SetPlan(nil)
				w.at(1000 * time.Second)
				return errors.New("failed") // the loss is returned instead
			}, w.recorder(&all)), reason)
			if len(all) != 1 {
				w.Errorf("renewals %+v; want one loss", all)
			}
			w.wantCalls(0, 0)
			wantLost(w, w.finish(h, "mine"), reason)
			wantLost(w, w.release(h, "mine"), reason)
			same(w, before.Rev, w.cell().Rev)
		})
	}

	// Else a body that ignores its cancellation would hold the lease for ever.
	inBubble(t, "a lease that was not renewed in time stays lost", func(w *fixture) {
		h := w.acquire()
		w.faulty.SetPlan(leasetest.Every(leasetest.Swap, leasetest.RequestLost))
		time.AfterFunc(280*time.Second, func() { w.faulty.SetPlan(nil) })
		wantLost(w, w.run(h, func(context.Context) {
			w.at(2000 * time.Second)
			_, err := w.takeOver("w/2")
			check(w, err)
		}), lease.OutOfTime)
	})

	// A renewal that began before the watchdog's loss finds another's lease after it.
	inBubble(t, "the first one is reported", func(w *fixture) {
		h := w.acquire()
		w.steal()
		w.faulty.Delay = 200 * time.Second
		w.faulty.SetPlan(leasetest.On(leasetest.Load, leasetest.SlowReply))
		wantLost(w, w.run(h, func(context.Context) { w.at(400 * time.Second) }), lease.OutOfTime)
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
		check(w, ctx.Err())
		*to = append(*to, renewal{w.since().Truncate(time.Second), took.Truncate(time.Second), err})
	}
}

// Each renewal is reported, unless the run's end cancels it.
func TestRenewed(t *testing.T) {
	const swap = leasetest.Swap
	for name, c := range map[string]struct {
		plan leasetest.Plan
		end  time.Duration // of the run
		want []renewal
	}{
		"it fails until the lease is lost": {
			leasetest.Every(swap, leasetest.Unavailable), time.Hour,
			[]renewal{{270 * time.Second, 170 * time.Second, lease.ErrUnavailable}},
		},
		"after a failure it is tried again in a tenth of a heartbeat": {
			leasetest.On(swap, leasetest.Refuse), 150 * time.Second,
			[]renewal{{100 * time.Second, 0, lease.ErrRefused}, {110 * time.Second, 0, nil}},
		},
		"it is in progress at the end": {leasetest.Every(swap, leasetest.Unavailable), 101 * time.Second, nil},
		"it succeeds after the end": {
			leasetest.On(swap, leasetest.SlowReply), 101 * time.Second,
			[]renewal{{105 * time.Second, 5 * time.Second, nil}},
		},
	} {
		inBubble(t, name, func(w *fixture) {
			w.faulty.Delay = 5 * time.Second
			h := w.acquire()
			w.faulty.SetPlan(c.plan)
			var all []renewal
			err := h.Run(w.Context(), func(ctx context.Context) error {
				select {
				case <-ctx.Done():
				case <-time.After(c.end):
				}
				return nil
			}, w.recorder(&all))
			if lost := errors.Is(err, lease.ErrLost); lost != (c.end == time.Hour) {
				w.Errorf("run: %v", err)
			}
			if len(all) != len(c.want) {
				w.Fatalf("renewals %+v; want %+v", all, c.want)
			}
			for i, got := range all {
				wantErr(w, got.err, c.want[i].err)
				got.err = c.want[i].err
				if got != c.want[i] {
					w.Errorf("renewals %+v; want %+v", all, c.want)
				}
			}
		})
	}

	// A callback that blocks delays no cancellation.
	inBubble(t, "a loss ends the run before it is reported", func(w *fixture) {
		h := w.acquire()
		w.steal()
		slow := func(_ context.Context, _ time.Duration, err error) {
			wantLost(w, err, lease.Taken)
			time.Sleep(50 * time.Second)
		}
		wantLost(w, h.Run(w.Context(), func(ctx context.Context) error {
			<-ctx.Done()
			same(w, 100*time.Second, w.since().Truncate(time.Second)) // with the heartbeat
			return nil
		}, slow), lease.Taken)
	})
}

func TestHold_Stolen(t *testing.T) {
	expired := lease.Lease{Owner: "them", Token: 3, ExpiresAt: time.Unix(1, 0)}
	released := lease.Lease{Token: 3, Attempts: 1}
	for name, c := range map[string]struct {
		was  lease.Lease
		want bool
	}{
		"never held": {lease.Lease{}, false},
		"released":   {released, false},
		"expired":    {expired, true},
	} {
		inBubble(t, name, func(w *fixture) {
			w.memory.Put("a", job{Lease: c.was})
			w.faulty.SetPlan(leasetest.On(leasetest.Swap, leasetest.ReplyLost)) // written, and its reply lost
			same(w, c.want, w.acquire().Stolen())
		})
	}
	inBubble(t, "released before the commit", func(w *fixture) {
		w.memory.Put("a", job{Lease: expired})
		w.faulty.SetPlan(before(leasetest.Swap, 1, func() { w.memory.Put("a", job{Lease: released}) }))
		same(w, false, w.acquire().Stolen())
	})
}
