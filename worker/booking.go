package worker

import (
	"context"
	"strconv"
	"strings"
	"time"

	"taskguard/lease"
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
	// followTimeout bounds the booking of a follow-up.
	followTimeout = 5 * time.Second
	// replaceTimeout bounds a booking on SIGTERM. A release has then ended within
	// 7 s, and at 8 s the process goes; what is not booked the queue retries by
	// itself.
	replaceTimeout = 700 * time.Millisecond
)

// followSuffix marks the names of follow-ups.
const followSuffix = "-after"

// follow books the delivery that comes when the lock in the way has expired.
// Its name is made of the lock as it is now, so many duplicates book one, and
// one that its holder has extended meanwhile books the next.
//
// That a name is taken counts as booked: its task is yet to come, or has left
// the matter to one for a later lock, and so on. That later one must never be
// the delivery at hand. So its own name does not count, and a follow-up, which
// may come early by the store's clock, is not answered from this process's own
// memory of the lock, which may be older than what its name is made of.
func (g *Guard) follow(ctx context.Context, d Delivery, acq lease.Acquisition) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), followTimeout)
	defer cancel()
	if acq.Own && strings.HasSuffix(d.Task, followSuffix) {
		var err error
		if acq, err = g.Locks.PeekAnalysisLock(ctx, d.AnalysisID); err != nil || acq.Reason != lease.Locked {
			return false
		}
	}
	name := taskqueue.Name("follow", d.AnalysisID, strconv.FormatInt(acq.Grant.Token, 10), acq.ExpiresAt.UTC().Format(time.RFC3339Nano)) + followSuffix
	if name == d.Task {
		return false
	}
	return g.book(ctx, taskqueue.Task{Name: name, AnalysisID: d.AnalysisID, At: acq.ExpiresAt.Add(followDelay)})
}

// replace books a delivery for now in the place of one whose run was stopped.
// An owner is stopped once, so the name is used once.
func (g *Guard) replace(ctx context.Context, id, owner string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), replaceTimeout)
	defer cancel()
	return g.book(ctx, taskqueue.Task{Name: taskqueue.Name("replace", id, owner), AnalysisID: id})
}

// book reports whether t is in the queue, or was under the same name.
func (g *Guard) book(ctx context.Context, t taskqueue.Task) bool {
	if g.Queue == nil {
		return false
	}
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
