package worker

import (
	"context"
	"strconv"
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
	// 7 s, and what is not booked the queue retries by itself.
	replaceTimeout = time.Second
)

// follow books the delivery that comes when the lock in the way has expired.
// Its name is made of the lock as it is now, so many duplicates book one, and
// one that its holder has extended meanwhile books the next. That a name is
// taken counts as booked, unless it is the name of the delivery at hand: its
// acknowledgement would leave none.
func (g *Guard) follow(ctx context.Context, d Delivery, acq lease.Acquisition) bool {
	name := taskqueue.Name("follow", d.AnalysisID, strconv.FormatInt(acq.Grant.Token, 10), acq.ExpiresAt.UTC().Format(time.RFC3339Nano))
	if name == d.Task {
		return false
	}
	return g.book(ctx, followTimeout, taskqueue.Task{Name: name, AnalysisID: d.AnalysisID, At: acq.ExpiresAt.Add(followDelay)})
}

// replace books a delivery for now in the place of one whose run was stopped.
// A token is released once, so the name is used once.
func (g *Guard) replace(ctx context.Context, id string, token int64) bool {
	return g.book(ctx, replaceTimeout, taskqueue.Task{Name: taskqueue.Name("replace", id, strconv.FormatInt(token, 10)), AnalysisID: id})
}

// book reports whether t is in the queue. It goes on when ctx has ended.
func (g *Guard) book(ctx context.Context, limit time.Duration, t taskqueue.Task) bool {
	if g.Queue == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
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
