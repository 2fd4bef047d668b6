package delivery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"taskguard/lease/analysislock"
)

// startTimeout limits one call of Delivery.Start. A queue waits for this answer.
const startTimeout = 30 * time.Second

// start begins the run elsewhere, unless the analysis is finished, locked or not due. It takes no lock: the
// run that it begins does. Two deliveries may both begin a run before one of them has the lock. The other
// then finds it held. A run that dies before or after that is found by recovery.
func (a *attempt) start(ctx context.Context) Result {
	failed := error(nil)
	acq, err := a.runner.Locks.Start(ctx, a.id, a.owner, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		failed = a.delivery.Start(ctx, a.id)
		return failed
	})
	a.acq = acq

	switch {
	case failed != nil:
		return Result{Reason: Unavailable, Err: fmt.Errorf("the run was not started: %w", failed)}
	case err == nil && acq.Reason == "":
		return Result{Reason: Started}
	case acq.Reason == analysislock.NotStarted:
		a.logOpenActs(ctx, acq.Uncertain, nil)
		return Result{Reason: Failed, Err: errNotStarted, Code: acq.Reason}
	case acq.Reason == analysislock.Waiting && a.delivery.Task == a.nextTask(acq.ExpiresAt):
		// This is the task itself, too early: its name cannot be booked again, so the queue must repeat it.
		a.next.RetryAt, a.next.RetryIn = acq.ExpiresAt, acq.Remaining
		return Result{Reason: Waiting}
	}
	return a.skip(ctx, err)
}

var errNotStarted = errors.New("worker: runs were started elsewhere, and none has taken the lock")
