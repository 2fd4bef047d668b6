package analysislock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
)

// NotStarted is the code of an analysis whose runs were started elsewhere, and none has taken the lock.
const NotStarted = "not_started"

// start is the rule of a start of its run elsewhere, at now: it counts the start, or makes the analysis
// FAILED and returns lease.ErrExhausted after limit starts; zero: no limit. An acquisition or a finish resets
// the count. After any other error nothing of d is written.
func (d *Analysis) start(now time.Time, by string, limit int) error {
	_, err := lease.Acquire(d.Lock, now, by, lease.Policy{}) // judges only; the run acquires the lock
	switch {
	case err != nil:
		return err
	case !lease.Due(d.NextAttemptAt, now):
		return errWaiting
	case limit > 0 && d.Starts >= limit:
		message := fmt.Sprintf("started %d times elsewhere, and no run has taken the lock", d.Starts)
		d.Lock, _ = lease.Cancel(d.Lock, by) // it is unfinished
		d.fail(NotStarted, message)
		return lease.ErrExhausted
	}
	d.Starts++
	d.NextAttemptAt = now.Truncate(time.Millisecond) // until one TTL after that, recovery books no other start
	return nil
}

// Start starts the run of an analysis elsewhere by begin. Before that, one commit counts the start: so
// recovery does not book another within one TTL, and runs that die before they take the lock are not started
// for ever. After MaxAttempts such starts the analysis becomes FAILED with NotStarted, by that owner. If begin
// fails, its start is not counted. Two deliveries at once may both begin a run; each start is counted.
//
// The Acquisition has no Reason if begin has succeeded. Otherwise it is a skip, as of AcquireAnalysisLock, or
// its Reason is NotStarted. It returns the error of begin, and the errors of AcquireAnalysisLock. After an error
// nothing is started.
func (l *Locks) Start(ctx context.Context, id, owner string, begin func(context.Context) error,
) (Acquisition, error) {
	exhausted := false
	count := func(d *Analysis, now time.Time) error {
		err := d.start(now, owner, l.records.Policy().MaxAttempts)
		if exhausted = errors.Is(err, lease.ErrExhausted); exhausted {
			return nil // FAILED is written
		}
		return err
	}
	d, err := l.editOwn(ctx, id, lease.OnlyLease, true, count, func(before, after Analysis) bool {
		return after.Starts > before.Starts || after.failedWith(NotStarted)
	})

	switch {
	case err != nil:
		return skip(&d, owner, err)
	case exhausted:
		return Acquisition{
			Reason: NotStarted, Status: Failed, Uncertain: d.OpenActs,
			Grant: lease.Grant{Owner: owner, Token: d.Lock.Token + 1},
		}, nil
	}

	if err := begin(ctx); err != nil {
		uncount := func(d *Analysis, _ time.Time) error {
			d.Starts = max(d.Starts-1, 0) // a run that has taken the lock has reset it
			return nil
		}
		_, _ = l.editOwn(context.WithoutCancel(ctx), id, lease.OnlyLease, true, uncount,
			func(before, after Analysis) bool { return after.Starts < before.Starts })
		return Acquisition{}, err
	}
	return Acquisition{Status: d.Status}, nil
}
