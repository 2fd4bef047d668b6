package delivery

import (
	"context"
	"errors"
	"strings"

	"taskguard/internal/telemetry"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// lockLost settles a run that has lost its lock because of err. A finished or deleted analysis needs no
// other delivery. For any other, a follow-up is booked for the time after the lock's expiry. That lock is
// another owner's, or still this attempt's if the loss is lease.OutOfTime and its release failed.
func (a *attempt) lockLost(ctx context.Context, err error) Result {
	r, last := Result{Reason: LockLost, Err: err}, a.hold.Doc()
	lost, ok := errors.AsType[*lease.LostError](err)
	if !ok {
		lost = &lease.LostError{}
	}
	if !a.hold.Adoptable() { // otherwise adopt, which is next, finishes the analysis
		a.countLoss(ctx, lost.Reason, last)
	}

	switch lost.Reason {
	case lease.Finished:
		r.Status, a.next.Needless = last.Status, a.runner.Queue != nil
	case lease.Deleted:
		a.next.Needless = a.runner.Queue != nil
	default:
		a.followUp(ctx, last.Lock.Token, last.Lock.ExpiresAt)
	}
	return r
}

// countLoss measures the loss of the lock of an analysis, which was last read as last.
func (a *attempt) countLoss(ctx context.Context, reason string, last analysislock.Analysis) {
	a.measures.Lost = strings.ReplaceAll(reason, " ", "_")
	if reason == lease.Finished && last.Error != nil && last.Error.Code == analysislock.Cancelled {
		a.measures.Lost = analysislock.Cancelled
	}
	a.runner.Telemetry.Record(ctx, telemetry.Losses, 1, telemetry.ByReason(a.measures.Lost))
}

// adopt settles a run whose analysis another program, such as the analyzer, has finished under this
// run's lock: it frees the lock, and drops the run's own result r. It returns r for any other run, and
// if the lock was lost meanwhile.
func (a *attempt) adopt(ctx context.Context, r Result) Result {
	if !a.hold.Adoptable() {
		return r
	}
	status := a.hold.Doc().Status
	err := a.end(ctx, telemetry.Finish, analysislock.Adopting(a.hold.Now()))
	switch {
	case errors.Is(err, lease.ErrLost):
		return r
	case err != nil:
		return Result{Reason: FinishUnknown, Err: err}
	}

	a.runner.Log.WarnContext(ctx, "the run's own result is dropped", "analysis_id", a.id,
		"problem", "the status was set to "+status+" during the run")
	if status == analysislock.Failed {
		return Result{Reason: Failed, Status: status}
	}
	return Result{Reason: Completed, Status: status}
}
