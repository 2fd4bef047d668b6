package delivery

import (
	"context"
	"errors"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// aloneWait is how long a suspect waits for the end of the other runs, before it is delayed.
const aloneWait = 10 * time.Second

// acquireAlone acquires the lock of a suspect as soon as this process runs nothing else. After many delays
// it waits for that as long as another run may take, and then runs beside others, so that it is not starved.
// Otherwise it returns the suspect as it was skipped. The end of stop ends only the wait.
func (a *attempt) acquireAlone(ctx, stop context.Context, o analysislock.AcquireOptions,
	skipped analysislock.Acquisition,
) (analysislock.Acquisition, error) {
	wait, began := aloneWait, time.Now()
	if skipped.MustRun {
		wait = a.runner.RunTimeout
	}
	o.SkipSuspects, o.Alone = false, a.delivery.Place.Alone(stop, wait)
	a.waited = time.Since(began)

	waitedInVain := a.waited >= wait // less: another suspect waits here
	switch {
	case stop.Err() != nil:
		return skipped, ErrStopping
	case o.Alone || skipped.MustRun && waitedInVain:
		return a.runner.Locks.AcquireAnalysisLock(ctx, a.id, a.owner, 0, o)
	}
	return skipped, nil
}

// The delay of a suspect is the least one and a part of the range.
const (
	leastDelay = 15 * time.Second
	delayRange = 30 * time.Second
)

// delay books the next delivery of a suspect that could not run alone. The commit of the delay records its
// time and name, as in retry. If the analysis has changed meanwhile, the queue repeats this delivery.
func (a *attempt) delay(ctx context.Context) Result {
	var name func(next time.Time) string
	if a.runner.Queue != nil {
		name = a.nextTask
	}
	wait := leastDelay + time.Duration(spread(a.id, time.Now().UnixNano())*float64(delayRange))
	next, err := a.runner.Locks.Delay(context.WithoutCancel(ctx), a.acq, wait, name)
	changed := errors.Is(err, lease.ErrConflict) && !errors.Is(err, lease.ErrUnavailable)
	if err != nil && !changed {
		return a.skip(ctx, err)
	}
	a.next.RetryIn = wait
	if err == nil && name != nil && a.book(ctx, name(next), next) {
		a.next.RetryAt = next
	}
	return Result{Reason: Suspect}
}
