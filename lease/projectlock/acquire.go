package projectlock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"taskguard/lease"
	"taskguard/lease/documentlock"
)

// Acquire takes the lock: the remote lease, or project/.lock where that is
// unavailable, which is not where it is held (R6). Each attempt lasts at most
// 3 s. Where the remote store does not answer, the file is taken no sooner than
// 25 s, or the TTL if that is longer, after the beginning: by then whoever held
// the remote lease in the same outage has lost it.
//
// Its errors are an *Error, after which the Locker is read-only; the cause of ctx,
// after which it is idle; and ErrState if it is not idle now. What failed attempts
// may have left behind is removed, for which it goes on for up to 3 s. The caller
// heartbeats by Renew, or has WithProjectLock do it; where nobody does, a timer
// enters read-only when trust ends.
func (l *Locker) Acquire(ctx context.Context, o AcquireOptions) (Lease, error) {
	h, err := l.acquire(ctx, o, nil)
	if err != nil {
		return Lease{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return h.lease, nil
}

// acquire is Acquire; cancel is called if the lease is lost or released.
func (l *Locker) acquire(ctx context.Context, o AcquireOptions, cancel context.CancelCauseFunc) (*holding, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o = o.filled()
	h := &holding{id: newID(), options: o, began: time.Now(), cancel: cancel, told: make(chan struct{}), written: map[Strategy]lease.Store[documentlock.Lock]{}}
	h.owner = ownerOf(o.OwnerID, h.id)
	if err := l.want(h, o.Preferred.acquiring()); err != nil {
		return nil, err
	}
	retry, err := l.acquireBy(ctx, h, o.Preferred, o.RetryLimit)
	if e := told(err); l.fallsBack(h, e) && e.Code == AcquireTimeout {
		retry, err = l.outwait(ctx, h, e, retry)
	}
	if e := told(err); l.fallsBack(h, e) {
		l.step(h, AcquireWebLock, append(h.failing(e, retry), Event{Type: Waiting, Strategy: FileLock})...)
		l.step(h, AcquireFileLock, Event{Type: FallbackEngaged, Strategy: FileLock, Reason: e.Code})
		retry, err = l.acquireBy(ctx, h, FileLock, o.RetryLimit)
	}
	switch failed := told(err); {
	case err == nil:
		return h, nil
	case failed != nil:
		_ = l.lose(h, failed, retry) // it is failed
		l.tidy(h)
	default:
		l.tidy(h)
		l.step(h, Idle)
	}
	return nil, err
}

// want makes h what is to be held.
func (l *Locker) want(h *holding, s State) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != Idle {
		return fmt.Errorf("%w: acquire while %s", ErrState, l.state)
	}
	l.state, l.held = s, h
	return nil
}

// fallsBack: the file may be taken instead (R6).
func (l *Locker) fallsBack(h *holding, e *Error) bool {
	return e != nil && h.strategy == WebLock && fallsBack(e) && !h.taken
}

// outwait waits in an outage until whoever held the remote lease at its beginning
// has lost it, and asks once more: it may be over.
func (l *Locker) outwait(ctx context.Context, h *holding, e *Error, retry int) (int, error) {
	wait := max(0, time.Until(h.began.Add(max(WebLockTTL, h.policy.TTL)-attemptTimeout)))
	e.Retryable = true
	l.step(h, AcquireWebLock, append(h.failing(e, retry), Event{Type: Waiting, Retry: retry, Wait: wait})...)
	if !sleep(ctx, wait) {
		return retry, fmt.Errorf("projectlock: %s: %w", AcquireWebLock, context.Cause(ctx))
	}
	return l.acquireBy(ctx, h, WebLock, 1)
}

// acquireBy attempts to acquire by one strategy.
func (l *Locker) acquireBy(ctx context.Context, h *holding, s Strategy, limit int) (retry int, _ error) {
	h.strategy, h.policy, h.store = s, h.options.policy(s), l.remote
	if s == FileLock {
		h.store = l.files
	}
	counted := 0
	return l.attempts(ctx, h, s.acquiring(), func(ctx context.Context) error {
		got, err := l.take(ctx, h)
		if err == nil {
			l.grant(h, got)
		}
		return err
	}, func(_ int, err error) (*Error, bool) {
		failed := acquireError(s, err)
		held := errors.As(err, new(*documentlock.HeldError))
		h.taken = h.taken || held
		if !held || time.Since(h.began) >= h.options.Wait {
			counted++
		}
		failed.Retryable = failed.Retryable && counted < limit
		return failed, failed.Retryable
	})
}

// take is one attempt.
func (l *Locker) take(ctx context.Context, h *holding) (got documentlock.State, err error) {
	if h.store == nil {
		return got, errNoRemote
	}
	if h.locks, err = documentlock.New(h.store, h.policy.TTL); err != nil {
		return got, err
	}
	got, err = h.locks.Acquire(ctx, l.room, h.owner)
	if err == nil && !got.Mine {
		err = errGone // it took longer than it lasts
	}
	if err != nil && (hopeless(err) || errors.As(err, new(*documentlock.HeldError))) {
		return got, err // not written
	}
	h.written[h.strategy] = h.store
	if err == nil && h.strategy == WebLock {
		err = l.checkFile(ctx)
	}
	if err != nil && got.Mine {
		l.tidy(h)
	}
	return got, err
}

// checkFile is for who has the remote lease: another on this machine may hold the
// file since an outage, and goes first.
func (l *Locker) checkFile(ctx context.Context) error {
	c, err := l.files.Load(ctx, l.room)
	switch {
	case errors.Is(err, lease.ErrRefused) && !errors.Is(err, fs.ErrPermission):
		return nil // a link, or no directory: nobody can have the file there
	case err != nil:
		return err
	case lease.Held(c.Doc.Lease, c.At):
		held := lease.HeldError{Owner: c.Doc.Owner, Token: c.Doc.Token, ExpiresAt: c.Doc.ExpiresAt, Remaining: c.Doc.ExpiresAt.Sub(c.At)}
		return fmt.Errorf("project/%s: %w", lockFile, &documentlock.HeldError{HeldError: held, LockedAt: c.Doc.LockedAt})
	}
	return nil
}

// grant makes h the holder.
func (l *Locker) grant(h *holding, got documentlock.State) {
	l.mu.Lock()
	h.acquired = time.Now()
	h.written = map[Strategy]lease.Store[documentlock.Lock]{h.strategy: h.store}
	h.lease = Lease{
		ID: h.id, Strategy: h.strategy, Resource: l.room, Token: got.Lock.Token, AcquiredAt: got.Lock.LockedAt,
		TTL: h.policy.TTL, ViaFallback: h.strategy != h.options.Preferred,
	}
	l.extend(h, Acquired, got)
	l.mu.Unlock()
	l.events.tell()
}

// extend takes what a store has answered, and tells of it, with mu held.
func (l *Locker) extend(h *holding, how EventType, got documentlock.State) {
	l.move(h.strategy.active())
	before := h.lease.RenewAttempt
	h.lease.ExpiresAt, h.lease.TrustedUntil, h.lease.RenewAttempt = got.Lock.ExpiresAt, got.Until, 0
	h.missed = 0
	h.schedule()
	l.add(h, Event{Type: how, Lease: h.lease, Retry: before})
	l.queue(h)
}

// schedule chooses the time of the next heartbeat (R3).
func (h *holding) schedule() {
	expires := h.lease.TrustedUntil.Add(h.policy.Margin()) // by the local clock
	h.lease.NextHeartbeatAt = nextHeartbeat(h.policy, time.Now(), expires)
}

// queue tells of the next heartbeat and watches the end of trust, with mu held.
func (l *Locker) queue(h *holding) {
	l.move(HeartbeatQueued)
	l.add(h, Event{Type: RenewScheduled, Lease: h.lease, Wait: max(0, time.Until(h.lease.NextHeartbeatAt))})
	until := h.lease.TrustedUntil
	if h.trust != nil {
		h.trust.Stop()
	}
	h.trust = time.AfterFunc(time.Until(until), func() { l.outOfTime(h, until) })
}

// ownerOf is who the store says holds the lease.
func ownerOf(name, id string) string {
	if name == "" {
		return id
	}
	return name + "/" + id
}
