package projectlock

import (
	"context"
	"fmt"
	"time"
)

// Renew is one heartbeat of ls: up to RetryLimit attempts, of at most 3 s each
// and none after the lease has ceased to be trusted (R5). Its errors: LeaseStale,
// and the Locker is read-only; RenewFailed, likewise after the second heartbeat
// in a row, else the next is scheduled; the cause of ctx. It waits for a renewal
// or release under way, and after a loss up to 3 s for the removal of what is left.
func (l *Locker) Renew(ctx context.Context, ls Lease, o RenewOptions) (Lease, error) {
	h, end, err := l.begin(ctx, ls, beat)
	if err != nil {
		return Lease{}, err
	}
	defer end()
	l.mu.Lock()
	try, cancel := context.WithDeadline(ctx, h.lease.TrustedUntil)
	late := time.Since(h.lease.NextHeartbeatAt)
	l.mu.Unlock()
	defer cancel()
	if late > h.timing.heartbeat {
		l.during(Renewing, h, Event{Type: Warned, Warning: HeartbeatDelayed, Late: late}.of(h))
	}
	r := renewal{Locker: l, holding: h, tries: retries{o.RetryLimit, o.Backoff}.or(h.options.retries())}
	return r.run(ctx, try)
}

// begin waits for its turn and makes the transition sig, if ls is what is held.
func (l *Locker) begin(ctx context.Context, ls Lease, sig signal, events ...Event) (_ *holding, end func(), _ error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("projectlock: %s: %w", sig, context.Cause(ctx))
	}
	end = func() { <-l.turn }
	l.mu.Lock()
	h, s := l.held, l.state
	var err error
	switch {
	case h == nil || h.lease.ID != ls.ID:
		err = &Error{Code: LeaseStale, Cause: errOther}
	case h.lost != nil && sig == beat:
		err = h.lost
	case !l.move(sig):
		err = fmt.Errorf("%w: %s while %s", ErrState, sig, s)
	default:
		for i := range events {
			events[i].Lease = h.lease
			l.events.add(events[i].of(h))
		}
	}
	l.mu.Unlock()
	if err != nil {
		end()
		return nil, nil, err
	}
	l.events.tell()
	return h, end, nil
}

// renewal is one heartbeat.
type renewal struct {
	*Locker
	*holding
	tries retries
}

// run makes the attempts. try ends with the trust in the lease.
func (r renewal) run(ctx, try context.Context) (Lease, error) {
	for retry := 0; ; retry++ {
		if !r.during(Renewing, r.holding, Event{Type: Attempt, Retry: retry}.of(r.holding)) {
			return Lease{}, r.loss()
		}
		ls, err := r.attempt(try)
		if err == nil {
			return ls, nil
		}
		failed := renewError(err).with("strategy", r.lease.Strategy).with("retry", retry)
		switch {
		case failed.Code == LeaseStale:
			r.lose(failed, retry)
			return Lease{}, r.loss()
		case ctx.Err() != nil:
			return Lease{}, r.postpone(fmt.Errorf("projectlock: renew: %w", context.Cause(ctx)))
		case try.Err() != nil:
			r.lose(&Error{Code: LeaseStale, Cause: fmt.Errorf("%w: %w", errTrust, err)}, retry)
			return Lease{}, r.loss()
		}
		if !r.during(Renewing, r.holding, Event{Type: Failed, Retry: retry, Err: failed}.of(r.holding)) {
			return Lease{}, r.loss()
		}
		if retry+1 >= r.tries.limit {
			return Lease{}, r.exhausted(failed, retry)
		}
		wait := r.tries.wait(retry)
		r.during(Renewing, r.holding, Event{Type: Waiting, Retry: retry, Wait: wait}.of(r.holding))
		sleep(try, wait)
	}
}

// attempt is one call to the store.
func (r renewal) attempt(try context.Context) (Lease, error) {
	ctx, cancel := context.WithTimeout(try, attemptTimeout)
	defer cancel()
	got, err := r.locks.Extend(ctx, r.room, r.owner)
	r.mu.Lock()
	defer r.events.tell() // after mu
	defer r.mu.Unlock()
	if err != nil {
		r.lease.RenewAttempt++
		return Lease{}, err
	}
	if r.held != r.holding || !r.move(renewed(r.lease.Strategy)) {
		return Lease{}, errTrust // it came too late
	}
	before := r.lease.RenewAttempt
	r.extend(got)
	r.events.add(Event{Type: Renewed, Lease: r.lease, Retry: before}.of(r.holding))
	r.queue(r.holding)
	return r.lease, nil
}

// exhausted ends a heartbeat none of whose attempts succeeded.
func (r renewal) exhausted(failed *Error, retry int) error {
	r.mu.Lock()
	r.missed++
	last := r.missed >= missedLimit
	r.mu.Unlock()
	if !last {
		return r.postpone(failed)
	}
	r.degrade(fall{from: r.holding, err: failed, retry: retry, onReadonly: r.options.OnReadonly})
	return r.loss()
}

// postpone leaves it to the next heartbeat.
func (r renewal) postpone(err error) error {
	r.mu.Lock()
	ok := r.held == r.holding && r.state == Renewing
	if ok {
		r.schedule()
		r.queue(r.holding)
	}
	r.mu.Unlock()
	r.events.tell()
	if !ok {
		return r.loss()
	}
	return err
}

// lose degrades for a reason that has not been told yet.
func (r renewal) lose(e *Error, retry int) {
	r.degrade(fall{from: r.holding, err: e, retry: retry, onReadonly: r.options.OnReadonly,
		first: []Event{Event{Type: Failed, Retry: retry, Err: e}.of(r.holding)}})
}

// loss is why the lease is not held any more.
func (r renewal) loss() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost == nil { // released meanwhile
		return &Error{Code: LeaseStale, Cause: errOther}
	}
	return r.lost
}
