package projectlock

import (
	"context"
	"errors"
	"time"

	"taskguard/lease/documentlock"
)

// Release ends ls: up to RetryLimit attempts of at most 3 s each, and then
// ReleaseFailed and read-only (P12). LeaseStale, and read-only, if the lease
// had ended or was another's by then. It waits for a renewal under way.
//
// With Force, which also leads out of read-only, there is one attempt; to find
// the lease gone is no error; and project/.lock is removed too, unless another
// holds it, which is left alone.
func (l *Locker) Release(ctx context.Context, ls Lease, o ReleaseOptions) error {
	sig := release
	if o.Force {
		sig = force
	}
	h, end, err := l.begin(ctx, ls, sig, Event{Type: ReleaseRequested, Force: o.Force})
	if err != nil {
		return err
	}
	defer end()
	l.mu.Lock()
	h.trust.Stop() // whoever releases has stopped writing
	l.mu.Unlock()
	tries := retries{o.RetryLimit, o.Backoff}.or(h.options.retries())
	if o.Force {
		tries.limit = 1
	}
	return l.release(ctx, h, tries, o.Force)
}

func (l *Locker) release(ctx context.Context, h *holding, tries retries, force bool) error {
	for retry := 0; ; retry++ {
		l.during(Releasing, h, Event{Type: Attempt, Retry: retry}.of(h))
		err := l.free(ctx, h, force)
		if err == nil || retry > 0 && errors.Is(err, errGone) { // gone by an attempt whose answer was lost
			l.step(released, Event{Type: Released, Lease: h.lease, Duration: time.Since(h.acquired)}.of(h))
			return nil
		}
		failed := &Error{Code: ReleaseFailed, Retryable: !force, Cause: err}
		failed = failed.with("strategy", h.lease.Strategy).with("retry", retry).with("force", force)
		told := []Event{
			Event{Type: ReleaseAttempt, Lease: h.lease, Retry: retry, Force: force, Err: failed}.of(h),
			Event{Type: Failed, Retry: retry, Err: failed}.of(h),
		}
		if errors.Is(err, errGone) {
			failed = &Error{Code: LeaseStale, Cause: err}
			told = []Event{Event{Type: Failed, Retry: retry, Err: failed}.of(h)}
		}
		if failed.Code == LeaseStale || retry+1 >= tries.limit || ctx.Err() != nil {
			l.unreleased(h, failed, retry, told)
			return failed
		}
		wait := tries.wait(retry)
		l.during(Releasing, h, append(told, Event{Type: Waiting, Retry: retry, Wait: wait}.of(h))...)
		sleep(ctx, wait)
	}
}

// unreleased ends a release in read-only; from where it was forced, that is told
// no second time.
func (l *Locker) unreleased(h *holding, failed *Error, retry int, told []Event) {
	l.mu.Lock()
	again := h.lost != nil
	if again {
		l.move(degraded)
		l.events.add(told...)
	}
	l.mu.Unlock()
	if again {
		l.events.tell()
		return
	}
	l.degrade(fall{from: h, err: failed, retry: retry, onReadonly: h.options.OnReadonly, first: told})
}

// free is one attempt to release.
func (l *Locker) free(ctx context.Context, h *holding, force bool) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if !force {
		gone, err := h.locks.Release(ctx, l.room, h.owner)
		if errors.Is(err, documentlock.ErrNotYours) || err == nil && !gone {
			return errGone
		}
		return err
	}
	err := l.remove(ctx, h, false)
	file := *h
	file.store = l.files
	return errors.Join(err, l.remove(ctx, &file, true))
}
