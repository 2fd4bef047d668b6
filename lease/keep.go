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

// term is the time from Start or Watch until Stop. The watchdog has its own goroutine, so that a call to
// the store that hangs delays no cancellation.
type term struct {
	cancel  context.CancelCauseFunc // ends the context of Start
	end     context.CancelFunc      // ends the goroutines
	stopped chan struct{}           // closed by Stop
	writes  bool                    // the Hold has a writer: by Start
	done    sync.WaitGroup

	mu   sync.Mutex
	lost *LostError
}

// Start renews the lease until Stop, and writes what is sent. It returns a context that ends with
// ctx, or with a *LostError as its cause as soon as the lease is lost; KillAfter is for work that
// ignores it. The end of ctx does not end the renewals: only Stop does. renewed may be nil.
func (h *Hold[D]) Start(ctx context.Context, renewed Renewed) context.Context {
	return h.begin(ctx, func(ctx context.Context, t *term) { h.renewUntilStop(ctx, t, renewed) })
}

// Watch is Start for a caller that calls Renew itself.
func (h *Hold[D]) Watch(ctx context.Context) context.Context { return h.begin(ctx, nil) }

// begin begins a term with the watchdog and, unless it is nil, the writer. The context that it returns
// is for the work. The goroutines have another, which only Stop or a loss ends.
func (h *Hold[D]) begin(ctx context.Context, writer func(ctx context.Context, t *term)) context.Context {
	work, cancel := context.WithCancelCause(ctx)
	own, end := context.WithCancel(context.WithoutCancel(ctx))
	t := &term{cancel: cancel, end: end, stopped: make(chan struct{}), writes: writer != nil}
	h.term = t
	if time.Until(h.TrustedUntil()) <= 0 {
		h.lose(t, OutOfTime)
		return work
	}

	t.done.Go(func() { h.watch(own, t) })
	if writer != nil {
		t.done.Go(func() { writer(own, t) })
	}
	return work
}

// Stop ends what Start or Watch has begun, and its context. It returns a *LostError if the lease
// was lost before. Otherwise the changes that are not written wait for Flush or End.
func (h *Hold[D]) Stop() error {
	t := h.term
	close(t.stopped)
	t.end()
	t.done.Wait()
	t.cancel(nil)

	lost := t.loss()
	switch {
	case lost == nil:
		return nil
	case t.writes: // otherwise the caller of Watch may still be in Renew
		h.receive()
		h.tellAll(lost)
	}
	return lost
}

// loss returns why the lease was lost, or nil.
func (t *term) loss() *LostError {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost
}

// lose ends the context of Start, once.
func (h *Hold[D]) lose(t *term, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost == nil {
		t.lost = &LostError{Reason: reason, Grace: h.records.policy.KillAfter()}
		t.cancel(t.lost)
		t.end()
	}
}

// watch waits for the end of trust. Each heartbeat moves that end: to an earlier time if the new
// expiry was computed from an estimate behind the store's clock.
func (h *Hold[D]) watch(ctx context.Context, t *term) {
	for {
		rest := time.Until(h.TrustedUntil())
		if rest <= 0 {
			h.lose(t, OutOfTime)
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
func (h *Hold[D]) renewUntilStop(ctx context.Context, t *term, renewed Renewed) {
	for next := h.nextHeartbeat(); h.wait(ctx, next); {
		began := time.Now()
		try, cancel := context.WithDeadline(ctx, h.TrustedUntil())
		err := h.Renew(try)
		cancel()
		took := time.Since(began)

		switch lost, ok := errors.AsType[*LostError](err); {
		case ok:
			h.lose(t, lost.Reason)
		case time.Until(h.TrustedUntil()) <= 0: // the next renewal would reach nothing
			h.lose(t, OutOfTime)
		}
		stopped := err != nil && ctx.Err() != nil && t.loss() == nil // then the renewal has not failed
		if renewed != nil && !stopped {
			renewed(context.WithoutCancel(ctx), took, err)
		}

		if next = h.nextHeartbeat(); err != nil {
			next = time.Now().Add(h.records.policy.Heartbeat / 10)
		}
	}

	lost := t.loss()
	if lost == nil {
		return
	}
	for {
		h.receive()
		h.tellAll(lost)
		select {
		case <-h.wake:
		case <-t.stopped:
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
