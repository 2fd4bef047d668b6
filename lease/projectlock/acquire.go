package projectlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
	"taskguard/lease/documentlock"
)

// acquisition is an Acquire under way.
type acquisition struct {
	*Locker
	id      string
	options AcquireOptions
	began   time.Time
	tried   []*holding // whose store may have been written to
	taken   bool       // another was seen to hold it
}

// Acquire takes the lock: the remote lease, or project/.lock where that is
// unavailable, which is not where it is held (R6). Each attempt lasts at most
// 3 s. Its errors are an *Error, after which the Locker is read-only; the cause
// of ctx, after which it is idle and nothing is left behind that could be
// removed; and ErrState if it is not idle now. The caller heartbeats by Renew,
// or has WithProjectLock do it; where nobody does, a timer enters read-only when
// trust ends, and goes on for at most 3 s to remove what is left.
func (l *Locker) Acquire(ctx context.Context, o AcquireOptions) (Lease, error) {
	h, err := l.acquire(ctx, o, nil)
	if err != nil {
		return Lease{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return h.lease, nil
}

// acquire is Acquire; cancel is called if the lease is lost, and then says that
// WithProjectLock keeps it.
func (l *Locker) acquire(ctx context.Context, o AcquireOptions, cancel context.CancelCauseFunc) (*holding, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	a := &acquisition{Locker: l, id: newID(), options: o, began: time.Now()}
	strategy, begin := WebLock, wantWeb
	if o.Preferred == FileLock {
		strategy, begin = FileLock, wantFile
	}
	if !l.step(begin) {
		return nil, fmt.Errorf("%w: acquire while %s", ErrState, l.State())
	}
	h, retry, err := a.with(ctx, strategy, cancel)
	if unavailable := (*Error)(nil); strategy == WebLock && errors.As(err, &unavailable) && fallsBack(unavailable) && !a.taken {
		l.step(fallBack,
			Event{Type: Waiting, Strategy: FileLock},
			Event{Type: FallbackEngaged, Strategy: FileLock, Reason: unavailable.Code})
		h, retry, err = a.with(ctx, FileLock, cancel)
	}
	var failed *Error
	switch {
	case err == nil:
		return h, nil
	case errors.As(err, &failed):
		l.degrade(fall{err: failed, retry: retry, onReadonly: o.OnReadonly})
	default:
		a.abandon(ctx)
		l.step(aborted)
	}
	return nil, err
}

// with attempts to acquire by one strategy; retry is the number of the last
// attempt.
func (a *acquisition) with(ctx context.Context, s Strategy, cancel context.CancelCauseFunc) (h *holding, retry int, _ error) {
	tries := a.options.retries()
	for counted := 0; ; retry++ {
		if ctx.Err() != nil {
			return nil, retry, aborting(ctx)
		}
		a.tell(Event{Type: Attempt, Strategy: s, Retry: retry})
		h, err := a.attempt(ctx, s)
		switch {
		case err == nil:
			a.grant(h, cancel)
			return h, retry, nil
		case ctx.Err() != nil:
			return nil, retry, aborting(ctx)
		}
		failed := acquireError(s, err).with("strategy", s).with("retry", retry)
		if !a.waits(err) {
			counted++
		}
		failed.Retryable = failed.Retryable && counted < tries.limit
		if failed.Code == FallbackConflict {
			a.tell(Event{Type: Warned, Strategy: s, Warning: FallbackDegraded})
		}
		a.tell(Event{Type: Failed, Strategy: s, Retry: retry, Err: failed})
		if !failed.Retryable {
			return nil, retry, failed
		}
		wait := tries.wait(retry)
		a.tell(Event{Type: Waiting, Strategy: s, Retry: retry, Wait: wait})
		sleep(ctx, wait)
	}
}

// waits: the lock is held, and the caller wants to wait for it.
func (a *acquisition) waits(err error) bool {
	held := errors.As(err, new(*documentlock.HeldError))
	a.taken = a.taken || held
	return held && time.Since(a.began) < a.options.Wait
}

func (a *acquisition) tell(e Event) {
	a.events.add(e)
	a.events.tell()
}

func aborting(ctx context.Context) error {
	return fmt.Errorf("projectlock: acquire: %w", context.Cause(ctx))
}

// attempt is one attempt by one strategy.
func (a *acquisition) attempt(ctx context.Context, s Strategy) (*holding, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	h := &holding{owner: ownerOf(a.options.OwnerID, a.id), store: a.remote, options: a.options, timing: a.options.timing(s), told: make(chan struct{})}
	if s == FileLock {
		h.store = a.files
	}
	if h.store == nil {
		return nil, errNoRemote
	}
	var err error
	if h.locks, err = documentlock.New(h.store, h.timing.ttl); err != nil {
		return nil, err
	}
	got, err := h.locks.Acquire(ctx, a.room, h.owner)
	if err == nil && !got.Mine {
		err = errGone // it took longer than it lasts
	}
	if err != nil {
		a.tried = append(a.tried, h)
		return nil, err
	}
	h.acquired = time.Now()
	h.lease = Lease{
		ID: a.id, Strategy: s, Resource: a.room, Token: got.Lock.Token, AcquiredAt: got.Lock.LockedAt,
		TTL: h.timing.ttl, ViaFallback: s == FileLock && a.options.Preferred != FileLock,
	}
	h.extend(got)
	return h, nil
}

// grant makes h what is held.
func (a *acquisition) grant(h *holding, cancel context.CancelCauseFunc) {
	a.mu.Lock()
	h.cancel, h.kept = cancel, cancel != nil
	a.hold(h)
	a.events.add(Event{Type: Acquired, Lease: h.lease}.of(h))
	a.queue(h)
	a.mu.Unlock()
	a.events.tell()
}

// abandon removes what aborted attempts may have written.
func (a *acquisition) abandon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()
	for _, h := range a.tried {
		if err := a.remove(ctx, h, false); err != nil {
			a.log.WarnContext(ctx, "an aborted acquisition may have left a lease behind, until it expires", "resource", a.room, "err", err)
		}
	}
}

// extend takes what a store has answered, with mu held or h not yet shared.
func (h *holding) extend(got documentlock.State) {
	h.lease.ExpiresAt, h.lease.TrustedUntil, h.lease.RenewAttempt = got.Lock.ExpiresAt, got.Until, 0
	h.missed = 0
	h.schedule()
}

// schedule chooses the time of the next heartbeat (R3).
func (h *holding) schedule() {
	expires := h.lease.TrustedUntil.Add(h.timing.policy().Margin()) // by the local clock
	h.lease.NextHeartbeatAt = h.timing.nextHeartbeat(time.Now(), expires)
}

// queue tells of the next heartbeat and watches the end of trust, with mu held.
func (l *Locker) queue(h *holding) {
	l.move(queued)
	l.events.add(Event{Type: RenewScheduled, Lease: h.lease, Wait: max(0, time.Until(h.lease.NextHeartbeatAt))}.of(h))
	until := h.lease.TrustedUntil
	if h.trust != nil {
		h.trust.Stop()
	}
	h.trust = time.AfterFunc(time.Until(until), func() { l.outOfTime(h, until) })
}

// of is e about h.
func (e Event) of(h *holding) Event {
	e.LeaseID, e.Strategy = h.lease.ID, h.lease.Strategy
	return e
}

// ownerOf is who the store says holds the lease.
func ownerOf(name, id string) string {
	if name == "" {
		return id
	}
	return name + "/" + id
}

// remove frees what h holds in its store, expired or not, if it is still h's. With
// force it also removes a record that nobody holds.
func (l *Locker) remove(ctx context.Context, h *holding, force bool) error {
	_, err := lease.Edit(ctx, h.store, l.room, nil, func(c lease.Cell[documentlock.Lock]) (documentlock.Lock, error) {
		ours := c.Exists && c.Doc.Owner == h.owner
		dead := c.Exists && !lease.Held(c.Doc.Lease, c.At)
		if !ours && (!force || !dead) {
			return c.Doc, errOther
		}
		return documentlock.Lock{Lease: lease.Break(c.Doc.Lease)}, nil
	}, func(c lease.Cell[documentlock.Lock]) bool { return c.Doc.Owner != h.owner })
	if errors.Is(err, errOther) {
		return nil
	}
	return err
}
