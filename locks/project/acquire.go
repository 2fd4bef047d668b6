package project

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"taskguard/internal/clock"
	"taskguard/lease"
	"taskguard/locks/document"
)

// Acquire takes the remote lease or, if the remote store is unavailable, the file
// project/.lock. If the remote lease is held, the acquisition fails. Each attempt
// lasts at most 3 s. If the remote store does not answer, the file is taken no sooner
// than 25 s, or the TTL if that is longer, after the first attempt: by then any
// holder of the remote lease in the same outage has lost it.
//
// Its errors are an *Error, after which the Locker is read-only; the cause of ctx,
// after which it is idle; and ErrState if it is not idle now. The record of an aborted
// attempt is removed, which may take 3 s more. The caller renews the lease by
// Renew, or uses WithProjectLock; otherwise the Locker becomes read-only when trust
// in the lease ends (SEEDS R6).
func (l *Locker) Acquire(ctx context.Context, o AcquireOptions) (Lease, error) {
	h, err := l.acquire(ctx, o, false)
	if err != nil {
		return Lease{}, err
	}
	ls, _ := l.current(h)
	return ls, nil
}

func (l *Locker) acquire(ctx context.Context, o AcquireOptions, automatic bool) (*holding, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o = o.filled()
	h := &holding{
		id: newID(), options: o, began: time.Now(), automatic: automatic, done: make(chan struct{}),
	}
	h.owner = ownerOf(o.OwnerID, h.id)

	l.mu.Lock()
	if l.state != Idle {
		defer l.mu.Unlock()
		return nil, fmt.Errorf("%w: acquire while %s", ErrState, l.state)
	}
	l.state, l.held = acquiring[o.Preferred], h
	l.mu.Unlock()

	err := l.acquireWith(ctx, h, o.Preferred)
	e := asError(err)
	if e != nil && h.fallsBack(e) {
		l.step(h, AcquireWebLock, Event{Type: Waiting, Strategy: FileLock, Retry: e.retry})
		l.step(h, AcquireFileLock, Event{Type: FallbackEngaged, Strategy: FileLock, Reason: e.Code})
		err = l.acquireWith(ctx, h, FileLock)
		e = asError(err)
	}

	switch {
	case err == nil:
		return h, nil
	case e == nil:
		l.removeRecord(h)
		l.step(h, Idle)
	default:
		l.mu.Lock()
		l.lose(h, e)
		l.mu.Unlock()
		l.announce(h)
	}
	return nil, err
}

// acquireWith makes the attempts with one strategy.
func (l *Locker) acquireWith(ctx context.Context, h *holding, s Strategy) error {
	h.strategy, h.policy, h.written = s, h.options.policy(s), false
	return l.attempts(ctx, h, acquiring[s], h.options.RetryLimit, func(once context.Context) error {
		err := l.take(once, h)
		if err == nil {
			l.acquired(ctx, h)
		}
		return err
	})
}

// take makes one attempt.
func (l *Locker) take(ctx context.Context, h *holding) error {
	store := l.stores[h.strategy]
	if store == nil {
		return errNoRemote
	}

	locks, err := document.New(observed{store, func(err error) { l.failed(h, err) }}, h.policy.TTL)
	if err != nil {
		return err
	}
	h.hold, err = locks.Hold(ctx, l.room, h.owner)
	if err != nil && (permanent(err) || heldByOther(err)) {
		return err // nothing was written
	}
	h.written = true

	if err == nil && h.strategy == WebLock {
		if err = l.checkFile(ctx, h); err != nil {
			l.removeRecord(h)
		}
	}
	return err
}

// observed reports the failed writes of a store: a heartbeat that tries again until the lease is lost returns
// no error.
type observed struct {
	lease.Store[document.Lock]
	failed func(error)
}

func (s observed) Swap(ctx context.Context, key string, prev lease.Cell[document.Lock], next document.Lock,
) (lease.Cell[document.Lock], error) {
	c, err := s.Store.Swap(ctx, key, prev, next)
	if err != nil && ctx.Err() == nil && !errors.Is(err, lease.ErrConflict) {
		s.failed(err)
	}
	return c, err
}

// failed notes why a write of h's lease failed.
func (l *Locker) failed(h *holding, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.failing = err
}

// checkFile fails while another program on this machine holds the file, since an
// outage: that program has priority.
func (l *Locker) checkFile(ctx context.Context, h *holding) error {
	c, err := l.stores[FileLock].Load(ctx, l.room, lease.OnlyLease)
	switch {
	case errors.Is(err, lease.ErrRefused) && !errors.Is(err, fs.ErrPermission):
		return nil // a link, or no directory: no program can have the file there
	case err != nil:
		return err
	}
	if _, err = lease.Acquire(c.Doc.Lease, c.At, h.owner, h.policy); err != nil {
		err = fmt.Errorf("project/%s: %w", lockFile, err)
	}
	return err
}

// acquired makes h the holder, and begins to keep its lease. ctx is the acquisition's.
func (l *Locker) acquired(ctx context.Context, h *holding) {
	kept, endKeep := context.WithCancelCause(context.WithoutCancel(ctx))
	running, endRunning := context.WithCancelCause(ctx)

	l.mu.Lock()
	h.acquired, h.running = time.Now(), running
	h.end = func(cause error) { endRunning(cause); endKeep(cause) }
	doc := h.hold.Doc()
	h.lease = Lease{
		ID: h.id, Strategy: h.strategy, Resource: l.room, Token: doc.Token, AcquiredAt: doc.HeartbeatAt,
		TTL: h.policy.TTL, ViaFallback: h.strategy != h.options.Preferred,
	}
	l.extended(h, Acquired)
	l.mu.Unlock()

	go l.keep(kept, h)
	l.deliver()
}

// attempts makes up to limit attempts of one operation, in the state s, with the
// waits between them. try is one attempt, of at most 3 s. It returns nil, the
// *Error of the last attempt, why h was lost, or the cause of ctx.
func (l *Locker) attempts(ctx context.Context, h *holding, s State, limit int, try func(context.Context) error) error {
	for retry, counted := 0, 0; ; retry++ {
		if ctx.Err() != nil {
			return aborted(ctx, s)
		}
		if !l.step(h, s, Event{Type: Attempt, Retry: retry}) {
			return &Error{Code: LeaseStale, Cause: errOther} // released
		}

		once, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := try(once)
		cancel()
		if err == nil {
			return nil
		}
		e := h.failure(s, err, retry)
		if ctx.Err() != nil && e.Code != LeaseStale {
			return aborted(ctx, s)
		}

		held := heldByOther(err)
		h.denied = h.denied || held
		if !held || time.Since(h.began) >= h.options.Wait {
			counted++
		}
		wait, another := h.nextAttempt(e, limit-counted)
		if s == acquiring[h.strategy] {
			e.Retryable = another
		}
		l.step(h, s, h.failed(e)...)
		if !another {
			return e
		}

		l.step(h, s, Event{Type: Waiting, Retry: retry, Wait: wait})
		clock.Sleep(ctx, wait)
	}
}

// nextAttempt decides whether another attempt follows the failure e, of which remaining
// are left, and how long to wait for it. In an outage of the remote store there is
// one more, when trust in any lease from before the outage has ended.
func (h *holding) nextAttempt(e *Error, remaining int) (wait time.Duration, another bool) {
	switch {
	case !e.Retryable || remaining < 0:
		return 0, false
	case remaining > 0:
		return h.options.backoff(e.retry), true
	}
	lastAttempt := h.began.Add(max(WebLockTTL, h.policy.TTL) - attemptTimeout)
	return max(0, time.Until(lastAttempt)), e.Code == AcquireTimeout && h.fallsBack(e)
}

// fallsBack reports whether the file may be taken instead: the remote lease is
// unavailable, rather than held (SEEDS R6).
func (h *holding) fallsBack(e *Error) bool {
	return h.strategy == WebLock && (e.Code == Unsupported || e.Code == AcquireTimeout) && !h.denied
}
