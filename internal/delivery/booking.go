package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// Queue books deliveries; taskqueue.Queue does.
type Queue interface {
	// Book makes sure that t is in the queue. already reports that its name was taken.
	Book(ctx context.Context, t taskqueue.Task) (already bool, err error)
	// Find returns the state of the task of that name at now.
	Find(ctx context.Context, name string, now time.Time) (taskqueue.Presence, error)
}

const (
	// followDelay is the time from a lock's expiry to its follow-up, so that the
	// follow-up is not too early if the queue's clock is ahead.
	followDelay = 2 * time.Second
	// followSuffix ends the name of a follow-up; see attempt.acquire.
	followSuffix = "-follow-up"
	// bookTimeout limits the booking of a follow-up. It also limits the booking of the
	// replacement of a stopped run, if the stop has no deadline.
	bookTimeout = 2 * time.Second
)

// locked returns the outcome of an acquisition that met another owner's lock. It books a
// follow-up for the time after the lock's expiry.
func (a *attempt) locked(ctx context.Context) Outcome {
	return Outcome{
		Case: Locked, Settled: a.followUp(ctx, a.acq.Grant.Token, a.acq.ExpiresAt),
		ID: a.AnalysisID, HeldBy: a.acq.Grant.Owner, RetryAt: a.acq.ExpiresAt, RetryIn: a.acq.Remaining,
	}
}

// followUp books a delivery for the time after a lock's expiry, and reports whether it is booked.
// A lock that is not held has no expiry: the delivery is for now.
//
// The task's name contains the lock's token and expiry. So many duplicates book one task, and
// after a renewal the next duplicate books another.
//
// If the name is taken, the delivery counts as booked: that task is still to be delivered, or
// its delivery has booked the task of a later lock. The exception is the task that is being
// handled: it must not be acknowledged, so followUp returns false.
func (a *attempt) followUp(ctx context.Context, token int64, expires time.Time) bool {
	at := expires.UTC().Format(time.RFC3339Nano)
	name := a.Kind.Task("follow", a.AnalysisID, strconv.FormatInt(token, 10), at) + followSuffix
	if !expires.IsZero() {
		expires = expires.Add(followDelay)
	}
	return name != a.Task && a.bookAt(ctx, name, expires)
}

// stopped releases the lock of a run that was ended by a stop, and books an immediate
// delivery to replace it, both before the deadline of the stop. An owner is stopped
// once, so the name is used once. If nothing is booked, the queue retries by itself.
func (a *attempt) stopped(ctx context.Context) Outcome {
	stop := &StopError{Deadline: time.Now().Add(bookTimeout)}
	_ = errors.As(context.Cause(ctx), &stop) // otherwise the default remains
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), stop.Deadline)
	defer cancel()

	settled := a.replace(ctx, analysislock.OutcomeShuttingDown, "replace")
	return Outcome{Case: ShuttingDown, Settled: settled, Err: ErrStopping}
}

// replace releases the lock without counting the attempt, and books an immediate delivery. It
// reports whether both succeeded. The task's name begins with purpose.
func (a *attempt) replace(ctx context.Context, outcome, purpose string) bool {
	if a.Queue == nil {
		a.release(ctx, outcome, true, "")
		return false
	}
	name := a.Kind.Task(purpose, a.AnalysisID, a.owner)
	return a.release(ctx, outcome, true, name) && a.book(ctx, taskqueue.Task{Name: name})
}

// continued ends a run that has passed its deadline, if it has committed a new checkpoint:
// it releases the lock without counting the attempt, and books an immediate delivery, which
// continues from the checkpoint. ended is false without a new checkpoint.
func (a *attempt) continued(ctx context.Context) (o Outcome, ended bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*bookTimeout)
	defer cancel()

	err := a.hold.Flush(ctx) // an earlier checkpoint counts too
	switch {
	case errors.Is(err, lease.ErrLost):
		return a.lockLost(ctx, err), true
	case !a.hold.Advanced():
		return o, false
	}

	a.Telemetry.Record(ctx, telemetry.Timeouts, 1, telemetry.ByReason(analysislock.OutcomeContinued))
	settled := a.replace(ctx, analysislock.OutcomeContinued, "continue")
	return Outcome{Case: Continued, Settled: settled, Err: errDeadline}, true
}

// retry releases the lock after a temporary failure, and books the next attempt for the
// time that the same commit records. If the process dies between the two, the delivery is
// repeated and books the same task; see wait. asked is the wait that the analyzer has asked for;
// zero: none.
func (a *attempt) retry(ctx context.Context, code, message string, asked time.Duration) Outcome {
	var wait time.Duration
	var task func(next time.Time) string
	if a.Queue != nil {
		usual := backoff(a.acq.Attempt, a.RetryMin, a.RetryMax, spread(a.AnalysisID, a.acq.Grant.Token))
		wait, task = cmp.Or(asked, usual), a.nextTask
	}

	var next time.Time
	err := a.traced(ctx, telemetry.Release, func(ctx context.Context) (err error) {
		next, err = a.hold.Retry(ctx, code, message, wait, !a.counts(asked), task)
		return err
	})
	if errors.Is(err, lease.ErrLost) {
		return a.lockLost(ctx, err)
	}

	o := Outcome{Case: Retry, Err: errors.New(message), Code: code, RetryIn: asked}
	if a.released(ctx, err) && a.bookAt(ctx, a.nextTask(next), next) {
		o.Settled, o.RetryAt = true, next
	}
	return o
}

// wait handles a delivery that comes before the next attempt is due. It books the task of that
// attempt again: the document has all parts of its name. It may also have another bookedTask, which
// is used up, if a worker of an earlier version has run the analysis.
func (a *attempt) wait(ctx context.Context) Outcome {
	next := a.acq.ExpiresAt
	settled := a.bookAt(ctx, a.nextTask(next), next)
	return Outcome{
		Case: Waiting, Settled: settled, ID: a.AnalysisID, RetryAt: a.acq.ExpiresAt, RetryIn: a.acq.Remaining,
	}
}

// nextTask returns the name of the task of the next attempt, for the time next.
func (a *attempt) nextTask(next time.Time) string {
	return a.nextName(a.AnalysisID, a.acq.Grant.Token, next)
}

// isNext reports whether this delivery is the task that was booked for the next attempt. Its
// name cannot be booked again, so it must run even if the queue delivers it early.
func (a *attempt) isNext(d analysislock.Analysis) bool {
	return a.Task != "" && a.Task == a.nextName(a.AnalysisID, d.Lock.Token, d.NextAttemptAt)
}

func (g *Guard) nextName(id string, token int64, next time.Time) string {
	return g.Kind.Task("next", id, strconv.FormatInt(token, 10), iso8601.Format(next))
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

// bookAt is like book, within bookTimeout; without a queue it returns false.
func (a *attempt) bookAt(ctx context.Context, name string, at time.Time) bool {
	if a.Queue == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bookTimeout)
	defer cancel()
	return a.book(ctx, taskqueue.Task{Name: name, At: at})
}

// Book books a delivery of id, as Queue.Book does.
func (g *Guard) Book(ctx context.Context, id string, t taskqueue.Task) (already bool, err error) {
	t.AnalysisID, t.IDField, t.Path = id, g.Kind.IDField, g.Kind.Path
	t.Deadline = DispatchDeadline(g.RunTimeout)
	return g.Queue.Book(ctx, t)
}

// book reports whether t is in the queue, or was under the same name.
func (a *attempt) book(ctx context.Context, t taskqueue.Task) bool {
	ctx, span := a.Telemetry.Start(ctx, telemetry.FollowUp)
	already, err := a.Book(ctx, a.AnalysisID, t)

	outcome := "booked"
	if err != nil {
		outcome = "failed"
		a.Log.WarnContext(ctx, "no delivery booked", "analysis_id", a.AnalysisID, "error", err)
	}
	a.measured.FollowUp = outcome
	if already {
		outcome = "already"
	}
	a.Telemetry.Record(ctx, telemetry.FollowUps, 1, telemetry.ByOutcome(outcome))
	span.Close(outcome, err != nil)
	return err == nil
}

// forward books a delivery for a message. Each try of the message books the same task.
func (a *attempt) forward(ctx context.Context) Outcome {
	if err := analysislock.CheckID(a.AnalysisID); err != nil {
		return refusal(a.AnalysisID, err)
	}
	if !a.bookAt(ctx, a.Kind.Task("push", a.AnalysisID, a.Task), time.Time{}) {
		return Outcome{Case: Unavailable, ID: a.AnalysisID}
	}
	return Outcome{Case: Forwarded, ID: a.AnalysisID}
}

// DispatchDeadline returns the deadline of a delivery whose run may take timeout: it adds
// a minute for the answer. With Cloud Tasks' default of 10 min, a longer run would be
// delivered again before its end.
func DispatchDeadline(timeout time.Duration) time.Duration { return timeout + time.Minute }
