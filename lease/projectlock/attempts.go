package projectlock

import (
	"context"
	"fmt"
)

// begin waits for its turn and enters the state to, if ls is what is held: the
// release of a lease ends what runs under it.
func (l *Locker) begin(ctx context.Context, ls Lease, to State, force bool, events ...Event) (_ *holding, end func(), _ error) {
	if err := l.losing(to); err != nil {
		return nil, nil, err
	}
	if ctx.Err() != nil {
		return nil, nil, fmt.Errorf("projectlock: %s: %w", to, context.Cause(ctx))
	}
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("projectlock: %s: %w", to, context.Cause(ctx))
	}
	l.mu.Lock()
	h, from := l.held, l.state
	cancel := func(error) {}
	var err error
	switch {
	case h == nil || ls.ID == "" || h.lease.ID != ls.ID:
		err = &Error{Code: LeaseStale, Cause: errOther}
	case h.lost != nil && to == Renewing:
		err = h.lost
	case from == Readonly && !force, !l.move(to):
		err = fmt.Errorf("%w: %s while %s", ErrState, to, from)
	case to == Releasing:
		h.trust.Stop()
		if h.cancel != nil {
			cancel = h.cancel
		}
	}
	if err == nil {
		for i := range events {
			events[i].Lease = h.lease
		}
		l.add(h, events...)
	}
	l.mu.Unlock()
	if err != nil {
		<-l.turn
		return nil, nil, err
	}
	cancel(errReleased)
	l.events.tell()
	return h, func() { <-l.turn }, nil
}

// losing refuses an operation while a loss is being told: it may come from who is
// told, and whoever tells may have the turn.
func (l *Locker) losing(to State) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held
	if h == nil || h.lost == nil {
		return nil
	}
	select {
	case <-h.told:
		return nil
	default:
		return fmt.Errorf("%w: %s while a loss is told: %w", ErrState, to, h.lost)
	}
}

// attempts makes the attempts of one operation of h, which are made in state s,
// and answers the number of the last. once is one of them, of at most 3 s; meaning
// says what its error is, and whether there is to be another attempt. The error is
// that *Error, which is not told yet; the loss of h; or the cause of ctx.
func (l *Locker) attempts(ctx context.Context, h *holding, s State,
	once func(context.Context) error, meaning func(retry int, err error) (failed *Error, again bool),
) (retry int, _ error) {
	for ; ; retry++ {
		if ctx.Err() != nil {
			return retry, fmt.Errorf("projectlock: %s: %w", s, context.Cause(ctx))
		}
		if !l.step(h, s, Event{Type: Attempt, Retry: retry}) {
			return retry, l.loss(h)
		}
		try, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := once(try)
		cancel()
		if err == nil {
			return retry, nil
		}
		failed, again := meaning(retry, err)
		if ctx.Err() != nil && failed.Code != LeaseStale {
			return retry, fmt.Errorf("projectlock: %s: %w", s, context.Cause(ctx))
		}
		failed = failed.with("strategy", h.strategy).with("retry", retry)
		if !again {
			return retry, failed
		}
		wait := h.options.wait(retry)
		l.step(h, s, append(h.failing(failed, retry), Event{Type: Waiting, Retry: retry, Wait: wait})...)
		sleep(ctx, wait)
	}
}

// told is err if it is an *Error of this Locker's own: not one that is the cause of
// a context, which may be another Locker's loss.
func told(err error) *Error {
	e, _ := err.(*Error) //nolint:errorlint // what is wrapped is another's
	return e
}

// failing is what is told of a failed attempt.
func (h *holding) failing(e *Error, retry int) []Event {
	failed := Event{Type: Failed, Retry: retry, Err: e}
	switch e.Code {
	case FallbackConflict:
		return []Event{{Type: Warned, Warning: FallbackDegraded}, failed}
	case ReleaseFailed:
		return []Event{{Type: ReleaseAttempt, Lease: h.lease, Retry: retry, Force: !e.Retryable, Err: e}, failed}
	}
	return []Event{failed}
}
