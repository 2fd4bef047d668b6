package projectlock

import (
	"context"
	"errors"
	"time"

	"taskguard/lease/documentlock"
)

// Renew is one heartbeat of ls: up to RetryLimit attempts, of at most 3 s each
// and none after the lease has ceased to be trusted (R5). Its errors: LeaseStale,
// and the Locker is read-only; RenewFailed, likewise after the second heartbeat
// in a row, else the next is scheduled; the cause of ctx; ErrState while
// OnReadonly is called. It waits for a renewal or release under way, and where
// another has taken the lease up to 3 s for the removal of what is left.
func (l *Locker) Renew(ctx context.Context, ls Lease) (Lease, error) {
	h, end, err := l.begin(ctx, ls, Renewing, false)
	if err != nil {
		return Lease{}, err
	}
	defer end()
	l.mu.Lock()
	ctx, cancel := context.WithDeadlineCause(ctx, h.lease.TrustedUntil, errTrust)
	late := time.Since(h.lease.NextHeartbeatAt)
	l.mu.Unlock()
	defer cancel()
	if late > h.policy.Heartbeat {
		l.step(h, Renewing, Event{Type: Warned, Warning: HeartbeatDelayed, Late: late})
	}
	retry, err := l.attempts(ctx, h, Renewing, func(ctx context.Context) (err error) {
		ls, err = l.renew(ctx, h)
		return err
	}, func(retry int, err error) (*Error, bool) {
		failed := renewError(err)
		return failed, failed.Retryable && retry+1 < h.options.RetryLimit
	})
	if err == nil {
		return ls, nil
	}
	return Lease{}, l.unrenewed(h, err, retry)
}

// renew is one attempt.
func (l *Locker) renew(ctx context.Context, h *holding) (Lease, error) {
	got, err := h.locks.Extend(ctx, l.room, h.owner)
	if err == nil && !got.Mine {
		err = documentlock.ErrNotLocked // it took longer than it lasts
	}
	l.mu.Lock()
	defer l.events.tell() // after mu
	defer l.mu.Unlock()
	switch {
	case err != nil:
		h.lease.RenewAttempt++
		return Lease{}, err
	case l.held != h || l.state != Renewing:
		return Lease{}, errTrust // it came too late
	}
	l.extend(h, Renewed, got)
	return h.lease, nil
}

// unrenewed ends a heartbeat none of whose attempts succeeded: it is left to the
// next, or the lease is lost.
func (l *Locker) unrenewed(h *holding, err error, retry int) error {
	failed := told(err)
	var told []Event
	switch {
	case failed != nil && failed.Code == LeaseStale:
		err = l.lose(h, failed, retry)
		if errors.Is(err, documentlock.ErrNotLocked) || errors.Is(err, documentlock.ErrNotYours) {
			l.tidy(h) // nobody's, or another's: it gives way to no one
		}
		return err
	case errors.Is(err, errTrust):
		return l.lose(h, &Error{Code: LeaseStale, Cause: err}, retry)
	case failed != nil:
		told = h.failing(failed, retry)
	}
	l.mu.Lock()
	if failed != nil {
		h.missed++
	}
	if h.missed >= missedLimit {
		l.mu.Unlock()
		return l.lose(h, failed, retry)
	}
	queued := l.held == h && l.state == Renewing
	if queued {
		l.add(h, told...)
		h.schedule()
		l.queue(h)
	}
	l.mu.Unlock()
	l.events.tell()
	if !queued {
		return l.loss(h)
	}
	return err
}
