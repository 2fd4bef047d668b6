package projectlock

import (
	"context"
	"errors"
	"time"

	"taskguard/lease"
	"taskguard/lease/documentlock"
)

// outOfTime is what happens when the trust in h's lease ends, unless it has been
// renewed meanwhile, or is being released.
func (l *Locker) outOfTime(h *holding, until time.Time) {
	l.mu.Lock()
	if l.state == Releasing || !h.lease.TrustedUntil.Equal(until) {
		l.mu.Unlock()
		return
	}
	l.degrade(h, &Error{Code: LeaseStale, Cause: errTrust}, h.lease.RenewAttempt)
}

// lose enters read-only because of e, and answers why h is lost: e, or what came
// before.
func (l *Locker) lose(h *holding, e *Error, retry int) error {
	l.mu.Lock()
	l.degrade(h, e, retry)
	return l.loss(h)
}

// degrade enters read-only, once: it ends what runs under the lease, calls
// OnReadonly, and tells the events. What is left of the lease stays: until it
// expires, what ignores its end has time to end. It is called with mu held, and
// frees it.
func (l *Locker) degrade(h *holding, e *Error, retry int) {
	if l.held != h || !l.move(Readonly) {
		l.mu.Unlock()
		return
	}
	l.add(h, h.failing(e, retry)...)
	if h.lost != nil { // a forced release has failed, which is told no second time
		l.mu.Unlock()
		l.events.tell()
		return
	}
	e.kill = h.policy.KillAfter()
	h.lost = e
	cancel := h.cancel
	if h.trust != nil {
		h.trust.Stop()
	}
	l.events.hold(1)
	l.add(h, Event{Type: ReadonlyEntered, Reason: e.Code, Retry: retry, Err: e, Lease: h.lease})
	l.mu.Unlock()
	if cancel != nil {
		cancel(e)
	}
	if h.options.OnReadonly != nil {
		h.options.OnReadonly(ReadonlyInfo{Reason: e.Code, LastError: e})
	}
	l.events.hold(-1)
	l.events.tell()
	close(h.told)
}

// loss is why h is not held any more, once that has been told.
func (l *Locker) loss(h *holding) error {
	l.mu.Lock()
	lost := h.lost
	l.mu.Unlock()
	if lost == nil { // released meanwhile
		return &Error{Code: LeaseStale, Cause: errOther}
	}
	<-h.told
	return lost
}

// tidy removes what is left of h where it may have been written (R1). Each store
// has 3 s for it.
func (l *Locker) tidy(h *holding) {
	for _, store := range h.written {
		ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
		if err := l.remove(ctx, store, h.owner, false); err != nil {
			l.log.WarnContext(ctx, "what is left of a lease could not be removed; it expires by itself", "resource", l.room, "err", err)
		}
		cancel()
	}
}

// remove frees what owner holds in a store, expired or not, if it is still its.
// With force it also removes a record that nobody holds.
func (l *Locker) remove(ctx context.Context, store lease.Store[documentlock.Lock], owner string, force bool) error {
	_, err := lease.Edit(ctx, store, l.room, nil, func(c lease.Cell[documentlock.Lock]) (documentlock.Lock, error) {
		ours := c.Exists && c.Doc.Owner == owner
		dead := c.Exists && !lease.Held(c.Doc.Lease, c.At)
		if !ours && (!force || !dead) {
			return c.Doc, errOther
		}
		return documentlock.Lock{Lease: lease.Break(c.Doc.Lease)}, nil
	}, func(c lease.Cell[documentlock.Lock]) bool { return c.Doc.Owner != owner })
	if errors.Is(err, errOther) {
		return nil
	}
	return err
}
