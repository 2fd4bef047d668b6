package projectlock

import (
	"context"
	"time"
)

// fall is a degradation to read-only.
type fall struct {
	from       *holding // nil: an acquisition that failed
	err        *Error
	retry      int
	onReadonly func(ReadonlyInfo)
	first      []Event   // to be told before
	trust      time.Time // if not zero: only if this is where trust ends, and nobody is releasing
}

// outOfTime is what happens when the trust in h's lease ends, unless it has been
// renewed meanwhile.
func (l *Locker) outOfTime(h *holding, until time.Time) {
	l.mu.Lock()
	retry := h.lease.RenewAttempt
	l.mu.Unlock()
	e := &Error{Code: LeaseStale, Cause: errTrust}
	l.degrade(fall{from: h, err: e, retry: retry, onReadonly: h.options.OnReadonly, trust: until,
		first: []Event{Event{Type: Failed, Retry: retry, Err: e}.of(h)}})
}

// degrade enters read-only, once: it ends what runs under the lease, calls
// onReadonly, tells the events, and removes what is left of the lease unless
// WithProjectLock will.
func (l *Locker) degrade(f fall) {
	h := f.from
	l.mu.Lock()
	renewed := !f.trust.IsZero() && (l.state == Releasing || !h.lease.TrustedUntil.Equal(f.trust))
	if l.held != h || renewed || !l.move(degraded) {
		l.mu.Unlock()
		return
	}
	entered := Event{Type: ReadonlyEntered, Reason: f.err.Code, Retry: f.retry, Err: f.err}
	cancel := func(error) {}
	if h != nil {
		f.err.kill = h.timing.policy().KillAfter()
		entered.Lease = h.lease
		entered = entered.of(h)
		h.lost = f.err
		h.trust.Stop()
		if h.cancel != nil {
			cancel = h.cancel
		}
	}
	l.events.add(append(f.first, entered)...)
	l.mu.Unlock()
	cancel(f.err)
	if f.onReadonly != nil {
		f.onReadonly(ReadonlyInfo{Reason: f.err.Code, LastError: f.err})
	}
	l.events.tell()
	if h == nil {
		return
	}
	if !h.kept && f.err.Code != ReleaseFailed {
		l.tidy(h)
	}
	close(h.told)
}

// tidy removes what is left of a lost lease, if it is still ours (R1).
func (l *Locker) tidy(h *holding) {
	ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
	defer cancel()
	if err := l.remove(ctx, h, false); err != nil {
		l.log.WarnContext(ctx, "a lost lease could not be removed; it expires by itself", "resource", l.room, "err", err)
	}
}
