package delivery

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

const (
	// followDelay is the time from a lock's expiry to its follow-up, so that the
	// follow-up is not too early if the queue's clock is ahead.
	followDelay = 2 * time.Second
	// followSuffix ends the name of a follow-up; see attempt.acquire.
	followSuffix = "-follow-up"
	// bookTimeout limits the booking of a delivery. A stop without a deadline has this limit too.
	bookTimeout = 2 * time.Second
)

// Book books a delivery of id, as Queue.Book does.
func (runner *Runner) Book(ctx context.Context, id string, t taskqueue.Task) (already bool, err error) {
	t.AnalysisID, t.IDField, t.Path = id, runner.Names.IDField, runner.Names.Path
	t.Deadline = DispatchDeadline(runner.RunTimeout)
	return runner.Queue.Book(ctx, t)
}

// bookNext books the next delivery of id, logs a failure, and returns the Next.FollowUp.
func (runner *Runner) bookNext(ctx context.Context, id string, t taskqueue.Task) (followUp string) {
	ctx, span := runner.Telemetry.Start(ctx, telemetry.FollowUp)
	already, err := runner.Book(ctx, id, t)

	followUp = booked
	if err != nil {
		followUp = notBooked
		runner.Log.WarnContext(ctx, "could not enqueue a delivery", "analysis_id", id, "error", err)
	}
	outcome := followUp
	if already {
		outcome = "already"
	}
	runner.Telemetry.Record(ctx, telemetry.FollowUps, 1, telemetry.ByOutcome(outcome))
	span.Close(outcome, err != nil)
	return followUp
}

// followName returns the name of the follow-up for a lock with this token and expiry. So many
// duplicates book one task, and after a renewal the next duplicate books another.
func (runner *Runner) followName(id string, token int64, expires time.Time) string {
	at := expires.UTC().Format(time.RFC3339Nano)
	return runner.Names.Task("follow", id, strconv.FormatInt(token, 10), at) + followSuffix
}

// nextName returns the name of the task of the next attempt after the one with this token.
func (runner *Runner) nextName(id string, token int64, next time.Time) string {
	return runner.Names.Task("next", id, strconv.FormatInt(token, 10), iso8601.Format(next))
}

// backoff returns the wait after an attempt. The wait after attempt 1 is shortest. Each further
// attempt doubles it, up to longest. jitter, from 0 to 1, then adds up to a quarter.
func backoff(attempt int, shortest, longest time.Duration, jitter float64) time.Duration {
	wait := shortest
	for n := 1; n < attempt && wait < longest; n++ {
		wait *= 2
	}
	wait = min(wait, longest)
	return wait + time.Duration(jitter*float64(wait)/4)
}

// spread returns a number from 0 to 1 for an attempt, from a hash. So analyses that failed at
// the same time are tried again at different times.
func spread(id string, token int64) float64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintln(h, token, id) // a hash does not fail
	return float64(h.Sum64()) / (1 << 64)
}

// DispatchDeadline returns the deadline of a delivery whose run may take timeout: it adds
// a minute for the answer. With Cloud Tasks' default of 10 min, a longer run would be
// delivered again before its end.
func DispatchDeadline(timeout time.Duration) time.Duration { return timeout + time.Minute }

// isNext reports whether this delivery is the task that was booked for the next attempt. Its
// name cannot be booked again, so it must run even if the queue delivers it early.
func (a *attempt) isNext(d analysislock.Analysis) bool {
	return a.delivery.Task != "" && a.delivery.Task == a.runner.nextName(a.id, d.Lock.Token, d.NextAttemptAt)
}

// nextTask returns the name of the task of the next attempt, for the time next.
func (a *attempt) nextTask(next time.Time) string {
	return a.runner.nextName(a.id, a.acq.Grant.Token, next)
}

// book reports whether the queue has a delivery of this name, due at that time. It is false without a queue.
func (a *attempt) book(ctx context.Context, name string, due time.Time) bool {
	if a.runner.Queue == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bookTimeout)
	defer cancel()
	a.next.FollowUp = a.runner.bookNext(ctx, a.id, taskqueue.Task{Name: name, At: due})
	return a.next.FollowUp == booked
}

// followUp books a delivery for the time after a lock's expiry. A lock that is not held has no expiry:
// the delivery is for now. If the name is taken, that task is still to be delivered, or its delivery
// has booked the task of a later lock. It books nothing if this delivery's own task has the name: that
// task must not be acknowledged.
func (a *attempt) followUp(ctx context.Context, token int64, expires time.Time) {
	name := a.runner.followName(a.id, token, expires)
	if !expires.IsZero() {
		expires = expires.Add(followDelay)
	}
	if name != a.delivery.Task {
		a.book(ctx, name, expires)
	}
}
