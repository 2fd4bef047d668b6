package lease

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Renewed is called after each renewal of Start, with the time that all its tries took together and
// the error of Renew. ctx is Start's without its cancellation. The goroutine that renews calls it,
// never after Stop has returned; while it blocks, the lease is not renewed.
type Renewed func(ctx context.Context, took time.Duration, err error)

// keeping keeps a lease from Start or Watch until Stop. The watchdog is a goroutine of its own, so
// that a call to the store that does not return delays no cancellation.
type keeping struct {
	cancel  context.CancelCauseFunc // ends the context of Start
	end     context.CancelFunc      // ends the goroutines
	stopped chan struct{}           // closed by Stop
	done    sync.WaitGroup

	mu   sync.Mutex
	lost *LostError
}

// Start renews the lease until Stop, and writes what is sent. It returns a context that ends with
// ctx, or with a *LostError as its cause as soon as the lease is lost; KillAfter is for work that
// ignores it. The end of ctx does not end the renewals: only Stop does. renewed may be nil.
func (h *Hold[D]) Start(ctx context.Context, renewed Renewed) context.Context {
	return h.keep(ctx, func(ctx context.Context, k *keeping) { h.renewUntilStop(ctx, k, renewed) })
}

// Watch is Start for a caller that calls Renew itself.
func (h *Hold[D]) Watch(ctx context.Context) context.Context { return h.keep(ctx, nil) }

func (h *Hold[D]) keep(ctx context.Context, write func(ctx context.Context, k *keeping)) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	working, end := context.WithCancel(context.WithoutCancel(ctx))
	k := &keeping{cancel: cancel, end: end, stopped: make(chan struct{})}
	h.keeping = k
	if time.Until(h.TrustedUntil()) <= 0 {
		h.lose(k, OutOfTime)
		return ctx
	}

	k.done.Go(func() { h.watch(working, k) })
	if write != nil {
		k.done.Go(func() { write(working, k) })
	}
	return ctx
}

// Stop ends what Start or Watch has begun, and its context. It returns a *LostError if the lease
// was lost before.
func (h *Hold[D]) Stop() error {
	k := h.keeping
	close(k.stopped)
	k.end()
	k.done.Wait()
	k.cancel(nil)

	lost := k.loss()
	if lost == nil {
		return nil
	}
	h.receive()
	h.settle(lost)
	return lost
}

// loss returns why the lease was lost, or nil.
func (k *keeping) loss() *LostError {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lost
}

// lose ends the context of Start, once.
func (h *Hold[D]) lose(k *keeping, reason string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost == nil {
		k.lost = &LostError{Reason: reason, Grace: h.records.policy.KillAfter()}
		k.cancel(k.lost)
		k.end()
	}
}

// watch waits for the end of trust. Each heartbeat moves that end: to an earlier time if the new
// expiry was computed from an estimate behind the store's clock.
func (h *Hold[D]) watch(ctx context.Context, k *keeping) {
	for {
		rest := time.Until(h.TrustedUntil())
		if rest <= 0 {
			h.lose(k, OutOfTime)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-h.trustMoved:
		case <-time.After(rest):
		}
	}
}

// renewUntilStop is the writer. After a renewal that failed without a loss, it tries again after a
// tenth of a heartbeat. Once the lease is lost, it answers each change with the loss until Stop: the
// work may wait for that.
func (h *Hold[D]) renewUntilStop(ctx context.Context, k *keeping, renewed Renewed) {
	for next := h.nextHeartbeat(); h.wait(ctx, next); {
		began := time.Now()
		try, cancel := context.WithDeadline(ctx, h.TrustedUntil())
		err := h.Renew(try)
		cancel()
		took := time.Since(began)

		switch lost, ok := errors.AsType[*LostError](err); {
		case ok:
			h.lose(k, lost.Reason)
		case time.Until(h.TrustedUntil()) <= 0: // the next renewal would reach nothing
			h.lose(k, OutOfTime)
		}
		stopped := err != nil && ctx.Err() != nil && k.loss() == nil // then the renewal has not failed
		if renewed != nil && !stopped {
			renewed(context.WithoutCancel(ctx), took, err)
		}

		if next = h.nextHeartbeat(); err != nil {
			next = time.Now().Add(h.records.policy.Heartbeat / 10)
		}
	}

	for lost := k.loss(); lost != nil; {
		h.receive()
		h.settle(lost)
		select {
		case <-h.wake:
		case <-k.stopped:
			return
		}
	}
}

// nextHeartbeat returns when the next renewal is due: in one heartbeat, or sooner if the trust
// ends so soon that a heartbeat would be too late.
func (h *Hold[D]) nextHeartbeat() time.Time {
	return time.Now().Add(min(h.records.policy.Heartbeat, time.Until(h.TrustedUntil())/2))
}

// wait waits until next, or until a pending change wants its commit if that is sooner. It reports
// false if ctx has ended.
func (h *Hold[D]) wait(ctx context.Context, next time.Time) bool {
	for {
		h.receive()
		due := next
		if !h.forward.IsZero() && h.forward.Before(due) {
			due = h.forward
		}
		select {
		case <-ctx.Done():
			return false
		case <-h.wake:
		case <-time.After(time.Until(due)):
			return ctx.Err() == nil
		}
	}
}
