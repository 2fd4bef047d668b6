package projectlock

import (
	"context"
	"errors"
	"time"
)

// WithProjectLock acquires the lock, runs fn while it renews it, and releases it
// when fn has returned, also by a panic. It answers the acquisition's error; or
// why the lock was lost while fn ran, whatever fn answered; or fn's error, joined
// with the release's. When the lock is lost fn's context ends with that *Error as
// its cause, when another goroutine releases it, with another; what is left of the
// lease is removed once fn has returned. The end
// of ctx reaches fn as it is; the lock is renewed until fn has returned.
//
// Where fn fails and KeepOnError is set, the lock stays, no longer renewed, for
// the caller to release.
func (l *Locker) WithProjectLock(ctx context.Context, o AcquireOptions, fn func(ctx context.Context, ls Lease) error) error {
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h, err := l.acquire(ctx, o, cancel)
	if err != nil {
		return err
	}
	l.mu.Lock()
	ls := h.lease
	l.mu.Unlock()
	stop := l.heartbeat(context.WithoutCancel(ctx), h, ls)
	returned := false
	defer func() {
		if !returned { // it panics
			stop()
			_ = l.finish(ctx, h, ls) // what it came to is told as events
		}
	}()
	err = fn(running, ls)
	returned = true
	stop()
	if lost := l.settled(h); lost != nil {
		return lost
	}
	if err != nil && o.KeepOnError {
		return errors.Join(err, l.leave(h))
	}
	return errors.Join(err, l.finish(ctx, h, ls))
}

// settled is why h was lost, once that has been told and its rest removed; nil if
// it is not.
func (l *Locker) settled(h *holding) error {
	l.mu.Lock()
	lost := h.lost
	l.mu.Unlock()
	if lost == nil {
		return nil
	}
	<-h.told
	l.tidy(h)
	return lost
}

// leave hands h over to the caller, unless it is lost.
func (l *Locker) leave(h *holding) error {
	l.mu.Lock()
	h.cancel = nil
	l.mu.Unlock()
	return l.settled(h)
}

// finish releases h, unless fn has done so, or it is lost at the last moment.
func (l *Locker) finish(ctx context.Context, h *holding, ls Lease) error {
	err := l.Release(context.WithoutCancel(ctx), ls, ReleaseOptions{})
	if errors.Is(err, ErrState) || errors.Is(err, errOther) {
		return l.settled(h)
	}
	return err
}

// heartbeat renews h until it is lost or stop is called, which waits for it.
func (l *Locker) heartbeat(ctx context.Context, h *holding, ls Lease) (stop func()) {
	ctx, end := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			left, ours := l.nextBeat(h)
			switch {
			case !ours, left > 0 && !sleep(ctx, left), ctx.Err() != nil:
				return
			case left <= 0:
				// What it comes to is told as events, and decides what is next.
				_, _ = l.Renew(ctx, ls)
			}
		}
	}()
	return func() { end(); <-done }
}

// nextBeat is how long until a heartbeat of h is due; false: none will be.
func (l *Locker) nextBeat(h *holding) (left time.Duration, ours bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(h.lease.NextHeartbeatAt), l.held == h && h.lost == nil && l.state != Releasing
}
