package project

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"taskguard/internal/clock"
	"taskguard/lease"
)

// WithProjectLock acquires the lock, runs fn while it renews the lock, and
// releases it when fn has returned or panicked. It returns the acquisition's error;
// or why the lock was lost while fn ran, whatever fn returned; or fn's error, joined
// with the release's. When the lock is lost, fn's context ends with that *Error as
// its cause, and the lease's record is removed once fn has returned; when another
// goroutine releases the lock, fn's context ends with another cause. The end of ctx
// ends fn's context, but not the lease: the lock is renewed until fn has returned.
//
// If fn fails and KeepOnError is set, the lock stays and is no longer renewed; the
// caller releases it.
func (l *Locker) WithProjectLock(
	ctx context.Context, o AcquireOptions, fn func(ctx context.Context, ls Lease) error,
) (err error) {
	h, err := l.acquire(ctx, o, true)
	if err != nil {
		return err
	}
	ls, _ := l.current(h)
	defer func() { err = l.finish(ctx, h, ls, err) }() // also if fn panics
	return fn(h.running, ls)
}

// finish ends WithProjectLock after fn has returned err.
func (l *Locker) finish(ctx context.Context, h *holding, ls Lease, err error) error {
	l.mu.Lock()
	keep := err != nil && h.options.KeepOnError && h.lost == nil
	h.automatic = !keep
	l.mu.Unlock()
	if keep {
		return err
	}

	released := l.Release(context.WithoutCancel(ctx), ls, ReleaseOptions{})
	if !errors.Is(released, ErrState) && !errors.Is(released, errOther) {
		return errors.Join(err, released)
	}

	<-h.done // lost, or released by fn
	if _, lost := l.current(h); lost != nil {
		l.removeRecord(h)
		return lost
	}
	return err
}

// keep watches h's lease until it is lost or ctx ends, and reports a loss at once.
func (l *Locker) keep(ctx context.Context, h *holding) {
	defer close(h.done)
	watched := h.hold.Watch(ctx)
	var beats sync.WaitGroup
	beats.Go(func() { l.beat(watched, h) })

	<-watched.Done()
	l.reportLoss(h, context.Cause(watched)) // a heartbeat may still wait for its reply
	beats.Wait()
	l.reportLoss(h, h.hold.Stop())
}

// reportLoss makes the Locker read-only if h's lease was lost because of cause, and reports that.
func (l *Locker) reportLoss(h *holding, cause error) {
	l.mu.Lock()
	if l.state != Releasing && errors.Is(cause, lease.ErrLost) {
		e := &Error{Code: LeaseStale, Cause: h.why(cause), retry: h.lease.RenewAttempt}
		l.lose(h, e, h.failed(e)...)
	}
	l.mu.Unlock()
	l.announce(h)
}

// beat renews h's lease for WithProjectLock until ctx ends. Otherwise the caller renews.
func (l *Locker) beat(ctx context.Context, h *holding) {
	for wait := h.policy.Heartbeat; clock.Sleep(ctx, wait); {
		l.mu.Lock()
		automatic, ls := h.automatic, h.lease
		l.mu.Unlock()
		if wait = h.policy.TTL; automatic {
			_, _ = l.heartbeat(ctx, ls) // it has reported its error
			ls, _ = l.current(h)
			wait = time.Until(ls.NextHeartbeatAt)
		}
	}
}

// Renew makes one heartbeat of ls: up to RetryLimit attempts, of at most 3 s each
// and none after trust in the lease has ended. It waits for a renewal or release
// that is in progress. With the error LeaseStale the Locker is read-only. With
// RenewFailed it is read-only after the second such heartbeat in a row, and otherwise the
// next heartbeat is scheduled. Any other error is the cause of ctx (SEEDS R5).
func (l *Locker) Renew(ctx context.Context, ls Lease) (Lease, error) {
	h, err := l.heartbeat(ctx, ls)
	if h == nil {
		return Lease{}, err
	}
	ls, lost := l.current(h)
	if lost != nil {
		<-h.done // OnReadonly has returned
	}
	if err != nil {
		return Lease{}, err
	}
	return ls, nil
}

// heartbeat makes one heartbeat of ls. Its holding is nil if the heartbeat has not begun.
func (l *Locker) heartbeat(ctx context.Context, ls Lease) (*holding, error) {
	h, err := l.begin(ctx, ls, Renewing, false)
	if err != nil {
		return nil, err
	}
	defer func() { <-l.turn }()
	return h, l.renew(ctx, h)
}

// renew makes one heartbeat of h, in the state Renewing.
func (l *Locker) renew(ctx context.Context, h *holding) error {
	ls, _ := l.current(h)
	ctx, cancel := context.WithDeadline(ctx, ls.TrustedUntil)
	defer cancel()
	if late := time.Since(ls.NextHeartbeatAt); late > h.policy.Heartbeat {
		l.step(h, Renewing, Event{Type: Warned, Warning: HeartbeatDelayed, Late: late})
	}

	err := l.attempts(ctx, h, Renewing, h.options.RetryLimit, func(ctx context.Context) error {
		err := h.hold.Renew(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case err != nil:
			h.lease.RenewAttempt++
			if !errors.Is(err, lease.ErrLost) {
				h.failing = err
			}
		case l.held == h && l.state == Renewing:
			l.extended(h, Renewed)
		}
		return err
	})

	defer l.deliver()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.renewed(h, err)
}

// why adds to the cause of a loss the error of the renewals before it, such as a full disk.
func (h *holding) why(cause error) error {
	if h.failing == nil {
		return cause
	}
	return fmt.Errorf("%w: %w", cause, h.failing)
}

// renewed ends a heartbeat of h whose outcome is err, with mu held.
func (l *Locker) renewed(h *holding, err error) error {
	e := asError(err)
	if e != nil && e.Code == RenewFailed {
		h.missed++
	}
	switch {
	case h.lost != nil:
		return h.lost
	case err == nil || l.held != h:
		return err
	case !time.Now().Before(h.lease.TrustedUntil):
		e = &Error{Code: LeaseStale, Cause: h.why(&lease.LostError{Reason: lease.OutOfTime})}
		l.lose(h, e, h.failed(e)...)
		return e
	case e != nil && (e.Code == LeaseStale || h.missed >= missedLimit):
		l.lose(h, e)
	default:
		l.schedule(h)
	}
	return err
}

// extended records that h's lease was acquired or renewed, with mu held.
func (l *Locker) extended(h *holding, event EventType) {
	l.move(active[h.strategy])
	failures := h.lease.RenewAttempt
	h.lease.ExpiresAt, h.lease.TrustedUntil, h.lease.RenewAttempt = h.hold.Doc().ExpiresAt, h.hold.TrustedUntil(), 0
	h.missed, h.failing = 0, nil
	l.add(h, Event{Type: event, Retry: failures})
	l.schedule(h)
}

// schedule enters HeartbeatQueued and chooses the time of the next heartbeat
// (SEEDS R3), with mu held.
func (l *Locker) schedule(h *holding) {
	expires := h.lease.TrustedUntil.Add(h.policy.Margin()) // by the local clock
	h.lease.NextHeartbeatAt = nextHeartbeat(h.policy, time.Now(), expires)
	l.move(HeartbeatQueued)
	l.add(h, Event{Type: RenewScheduled, Wait: max(0, time.Until(h.lease.NextHeartbeatAt))})
}

// Release ends ls: up to RetryLimit attempts of at most 3 s each, and then
// ReleaseFailed and read-only. LeaseStale, and read-only, if the lease had
// ended or was another's by then. It waits for a renewal under way, and is not
// aborted once begun.
//
// With Force, which also leads out of read-only, there is one attempt; a lease
// that is gone is no error; and project/.lock is removed too, unless another
// holds it (SEEDS P12).
func (l *Locker) Release(ctx context.Context, ls Lease, o ReleaseOptions) error {
	h, err := l.begin(ctx, ls, Releasing, o.Force)
	if err != nil {
		return err
	}
	err = l.release(context.WithoutCancel(ctx), h, o.Force)
	<-l.turn
	l.announce(h)
	return err
}

// release releases h, in the state Releasing.
func (l *Locker) release(ctx context.Context, h *holding, force bool) error {
	l.mu.Lock()
	h.force = force
	lost := h.lost
	l.mu.Unlock()
	l.step(h, Releasing, Event{Type: ReleaseRequested, Force: force})
	h.end(errReleased) // fn's context ends before the lease
	if lost == nil {
		<-h.done
	}

	limit, stores := h.options.RetryLimit, []Strategy{h.strategy}
	if force {
		limit, stores = 1, []Strategy{FileLock, h.strategy}
	}
	tried := force // a lease that is gone is an error, unless an earlier attempt may have freed it
	try := func(ctx context.Context) (err error) {
		for _, s := range stores {
			if failed := l.remove(ctx, s, h.owner, force); !tried || !errors.Is(failed, errGone) {
				err = errors.Join(err, failed)
			}
		}
		tried = true
		return err
	}
	err := l.attempts(ctx, h, Releasing, limit, try)
	if err == nil {
		l.step(h, Idle, Event{Type: Released, Duration: time.Since(h.acquired)})
		return nil
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose(h, asError(err))
	return err
}
