package projectlock

import (
	"context"
	"errors"
	"time"

	"taskguard/lease/documentlock"
)

// Release ends ls: up to RetryLimit attempts of at most 3 s each, and then
// ReleaseFailed and read-only (P12). LeaseStale, and read-only, if the lease
// had ended or was another's by then; ErrState while OnReadonly is called. It
// waits for a renewal under way. The context of WithProjectLock's function, where
// that still runs, ends before the lease does.
//
// With Force, which also leads out of read-only, there is one attempt; to find
// the lease gone is no error; and project/.lock is removed too, unless another
// holds it, which is left alone.
func (l *Locker) Release(ctx context.Context, ls Lease, o ReleaseOptions) error {
	h, end, err := l.begin(ctx, ls, Releasing, o.Force, Event{Type: ReleaseRequested, Force: o.Force})
	if err != nil {
		return err
	}
	defer end()
	ctx, stop := besides(ctx, errReleased)
	defer stop()
	tried := false
	retry, err := l.attempts(ctx, h, Releasing, func(ctx context.Context) error {
		err := l.free(ctx, h, o.Force)
		if tried && errors.Is(err, errGone) {
			return nil // gone by an attempt whose answer was lost
		}
		tried = true
		return err
	}, func(retry int, err error) (*Error, bool) {
		if errors.Is(err, errGone) {
			return &Error{Code: LeaseStale, Cause: err}, false
		}
		failed := &Error{Code: ReleaseFailed, Retryable: !o.Force, Cause: err}
		return failed.with("force", o.Force), !o.Force && retry+1 < h.options.RetryLimit
	})
	if err == nil {
		l.step(h, Idle, Event{Type: Released, Lease: h.lease, Duration: time.Since(h.acquired)})
		return nil
	}
	failed := told(err)
	if failed == nil {
		failed = &Error{Code: ReleaseFailed, Retryable: !o.Force, Cause: err}
	}
	_ = l.lose(h, failed, retry) // where it was forced, for another reason
	return failed
}

// besides is ctx, but not ended by that cause.
func besides(ctx context.Context, cause error) (_ context.Context, stop func()) {
	beside, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	unwatch := context.AfterFunc(ctx, func() {
		if why := context.Cause(ctx); !errors.Is(why, cause) {
			cancel(why)
		}
	})
	return beside, func() { unwatch(); cancel(nil) }
}

// free is one attempt to release.
func (l *Locker) free(ctx context.Context, h *holding, force bool) error {
	if force {
		return errors.Join(l.remove(ctx, l.files, h.owner, true), l.remove(ctx, h.store, h.owner, false)) // the nearer first
	}
	freed, err := h.locks.Release(ctx, l.room, h.owner)
	if errors.Is(err, documentlock.ErrNotYours) || err == nil && !freed {
		return errGone
	}
	return err
}
