package delivery

import (
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// slotSuffix ends the name of the task of a parked analysis, for which a slot was free.
const slotSuffix = "-slot"

// startSlot renews the slot of the analysis's key, if there is one, until stop. The context that it returns
// also ends when the slot is lost. The lock is then released, as if the time of the lock had run out.
func (a *attempt) startSlot(ctx context.Context) (held context.Context, stop func() error) {
	slot := a.acq.Slot
	if slot == nil {
		return ctx, func() error { return nil }
	}
	return slot.Start(ctx, nil), func() error {
		if slot.Stop() == nil {
			return nil
		}
		return &lease.LostError{Reason: lease.OutOfTime}
	}
}

// leaveKey frees the slot of this delivery with the result r, after its lock, and books the parked analyses
// that can run now. If it fails, the slot expires, and recovery books them.
func (a *attempt) leaveKey(ctx context.Context, r Result) {
	acq := a.acq
	if acq.Key == "" {
		return
	}
	runner := a.runner
	leaving, cancel := untilStop(ctx, leaveTimeout)
	defer cancel()

	parked, err := acq.Next, error(nil)
	switch finished := r.Reason == AlreadyFinished || r.Reason == Failed; {
	case acq.Slot != nil:
		parked, err = runner.Keys.Leave(leaving, acq.Slot, a.holdUntil(r))
	case r.Reason == KeyBusy:
	case strings.HasSuffix(a.delivery.Task, slotSuffix), finished && runner.HoldKeys:
		parked, err = runner.Keys.Wake(leaving, acq.Key, a.id, finished)
	}
	if err != nil {
		runner.Log.WarnContext(ctx, "slot not freed", "analysis_id", a.id, "error", err)
	}
	booking, cancel := untilStop(ctx, bookTimeout)
	defer cancel()
	var all errgroup.Group
	all.SetLimit(maxBookings)
	for i := range parked {
		all.Go(func() error {
			runner.bookNext(booking, parked[i].ID, taskqueue.Task{Name: runner.slotName(&parked[i])})
			return nil
		})
	}
	_ = all.Wait() // bookNext has logged its errors
}

// leaveTimeout is how long a delivery tries to free its slot: many runs that end together take turns.
const leaveTimeout = 30 * time.Second

// holdUntil returns when the next attempt is due if the slot is kept for it, and otherwise zero. An interrupted run
// keeps its slot, so that the next analysis does not run between its halves.
func (a *attempt) holdUntil(r Result) time.Time {
	keeps := r.Reason == Retry && a.runner.HoldKeys || r.Reason == Continued || r.Reason == ShuttingDown
	switch {
	case !keeps || !a.next.Booked():
		return time.Time{}
	case a.next.RetryAt.IsZero(): // now
		return a.hold.Now()
	}
	return a.next.RetryAt
}

// slotName returns the name of the task of a parked analysis. It is new each time that it is parked.
func (runner *Runner) slotName(d *analysislock.Analysis, more ...string) string {
	return runner.Names.Task(append([]string{"slot", d.ID, iso8601.Format(d.ParkedAt)}, more...)...) + slotSuffix
}

// wakeAll books the parked analyses for which a slot is free. The end of a run has not, or its booking was
// lost.
func (r *recovery) wakeAll(ctx context.Context) error {
	if r.Keys == nil {
		return nil
	}
	parked, err := r.Keys.Wakeable(ctx)
	var all errgroup.Group
	all.SetLimit(maxBookings)
	for i := range parked {
		all.Go(func() error { return r.wake(ctx, &parked[i]) })
	}
	return errors.Join(err, all.Wait())
}

// wake books a parked analysis. If the name of its task is used up, because the queue was purged, it books
// another, at most one in five minutes.
func (r *recovery) wake(ctx context.Context, d *analysislock.Analysis) error {
	already, err := r.Book(ctx, d.ID, taskqueue.Task{Name: r.slotName(d)})
	if err == nil && already {
		if found, err := r.Queue.Find(ctx, r.slotName(d), d.ReadAt); err != nil || found != taskqueue.Absent {
			return nil //nolint:nilerr // the next call finds it again
		}
		again := r.slotName(d, iso8601.Format(d.ReadAt.Truncate(5*time.Minute)))
		already, err = r.Book(ctx, d.ID, taskqueue.Task{Name: again})
	}
	if err == nil && !already {
		r.booked.Add(1)
	}
	return err
}
