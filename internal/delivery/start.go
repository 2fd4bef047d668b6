package delivery

import (
	"context"
	"fmt"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// startTimeout limits one call of Delivery.Start. A queue waits for this answer.
const startTimeout = 30 * time.Second

// start begins the run elsewhere, unless the analysis is finished, locked or not due. It takes no lock: the
// run that it begins does. Two deliveries may both begin a run before one of them has the lock. The other
// then finds it held. A run that dies before or after that is found by recovery.
func (a *attempt) start(ctx context.Context) Result {
	d, err := a.runner.Read(ctx, a.id)
	if err == nil {
		err = d.Malformed
	}
	if err != nil {
		return a.skip(ctx, err)
	}

	a.acq = analysislock.Acquisition{Status: d.Status, Grant: d.Lock.Grant(), ExpiresAt: d.Lock.ExpiresAt}
	switch {
	case d.Finished():
		a.acq.Reason = analysislock.AlreadyFinished
	case lease.Held(d.Lock, d.ReadAt):
		a.acq.Reason = analysislock.Locked
	case d.Waits() && a.runner.Queue != nil && !a.isNext(d):
		a.acq.Reason, a.acq.ExpiresAt = analysislock.Waiting, d.NextAttemptAt
	}
	if a.acq.Reason != "" {
		a.acq.Remaining = a.acq.ExpiresAt.Sub(d.ReadAt)
		return a.skip(ctx, nil)
	}

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := a.delivery.Start(ctx, a.id); err != nil {
		return Result{Reason: Unavailable, Err: fmt.Errorf("the run was not started: %w", err)}
	}
	return Result{Reason: Started}
}
