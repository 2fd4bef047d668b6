package worker

import (
	"context"
	"errors"
	"strconv"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/worker/taskqueue"
)

// Queue books deliveries; taskqueue.Queue does.
type Queue interface {
	// Book makes sure that t is in the queue. already: its name was taken.
	Book(ctx context.Context, t taskqueue.Task) (already bool, err error)
}

const (
	// followDelay is how long after a lock's expiry its follow-up comes, so that
	// it does not come too early by the queue's clock.
	followDelay = 2 * time.Second
	// bookTimeout bounds the booking of a follow-up, and of what replaces a stopped
	// run where the stop has no deadline.
	bookTimeout = 2 * time.Second
)

// follow books the delivery that comes when the lock in the way has expired.
// Its name is made of the lock as the store has it, so many duplicates book
// one, and one that its holder has extended meanwhile books the next. Where the
// lock is known from this process's own memory, it is read for that.
//
// That a name is taken counts as booked: its task is yet to come, or has left
// the matter to one for a later lock, and so on, which must not be the delivery
// at hand. So its own name does not count; and what is named was read after the
// delivery came, so that nothing for a later lock can have come before it.
func (g *Guard) follow(ctx context.Context, d Delivery, acq analysislock.Acquisition) (o Outcome) {
	o = Outcome{Case: Locked, ID: d.AnalysisID, HeldBy: acq.Grant.Owner, RetryAt: acq.ExpiresAt, RetryIn: acq.Remaining}
	if g.Queue == nil {
		return o
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bookTimeout)
	defer cancel()
	if acq.Own {
		seen, err := g.Locks.PeekAnalysisLock(ctx, d.AnalysisID)
		if err != nil {
			return o
		}
		o.HeldBy, o.RetryAt, o.RetryIn = seen.Grant.Owner, seen.ExpiresAt, seen.Remaining
		if acq = seen; acq.Reason != analysislock.Locked {
			return o // it has just been freed
		}
	}
	name := taskqueue.Name("follow", d.AnalysisID, strconv.FormatInt(acq.Grant.Token, 10), acq.ExpiresAt.UTC().Format(time.RFC3339Nano))
	if name != d.Task && g.book(ctx, taskqueue.Task{Name: name, AnalysisID: d.AnalysisID, At: acq.ExpiresAt.Add(followDelay)}) {
		o.Case = LockedBooked
	}
	return o
}

// stopped releases the lock of a run that the stop of ctx has ended, and books a
// delivery for now in its place; both share what is left until the deadline of the
// stop. An owner is stopped once, so the name is used once. What is not booked the
// queue retries by itself.
func (g *Guard) stopped(ctx context.Context, id, owner string) Outcome {
	stop := &StopError{Deadline: time.Now().Add(bookTimeout)}
	_ = errors.As(context.Cause(ctx), &stop)
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), stop.Deadline)
	defer cancel()
	o := Outcome{Case: ShuttingDown, Err: ErrStopping}
	if g.release(ctx, id, owner, true) && g.Queue != nil &&
		g.book(ctx, taskqueue.Task{Name: taskqueue.Name("replace", id, owner), AnalysisID: id}) {
		o.Case = ShuttingDownBooked
	}
	return o
}

// book reports whether t is in the queue, or was under the same name.
func (g *Guard) book(ctx context.Context, t taskqueue.Task) bool {
	t.Deadline = DispatchDeadline(g.RunTimeout)
	if _, err := g.Queue.Book(ctx, t); err != nil {
		g.Log.WarnContext(ctx, "no delivery booked", "analysis_id", t.AnalysisID, "error", err)
		return false
	}
	return true
}

// DefaultRunTimeout is what RUN_TIMEOUT is where it is not set.
const DefaultRunTimeout = 25 * time.Minute

// DispatchDeadline is that of a delivery whose run may take timeout: a minute
// is for the answer. Under Cloud Tasks' own default, 10 min, a longer run would
// be delivered again in its middle.
func DispatchDeadline(timeout time.Duration) time.Duration { return timeout + time.Minute }
