package lease

import (
	"context"
	"errors"
	"sync"
	"time"
)

// keeper renews a Hold while its body runs. Heartbeat and watchdog are separate
// goroutines, so that a call to the store that does not return delays no
// cancellation.
type keeper[D any] struct {
	hold       *Hold[D]
	cancelBody context.CancelCauseFunc
	end        context.CancelFunc
	stopped    chan struct{} // closed by stop
	done       sync.WaitGroup

	mu   sync.Mutex
	lost *LostError
}

// keep starts both goroutines. ctx must not end before stop.
func (h *Hold[D]) keep(ctx context.Context, cancelBody context.CancelCauseFunc,
	beat func(ctx context.Context, k *keeper[D]),
) *keeper[D] {
	ctx, end := context.WithCancel(ctx)
	k := &keeper[D]{hold: h, cancelBody: cancelBody, end: end, stopped: make(chan struct{})}
	if time.Until(h.TrustedUntil()) <= 0 {
		k.lose(&LostError{Reason: OutOfTime})
		return k
	}
	k.done.Go(func() { k.watch(ctx) })
	k.done.Go(func() { beat(ctx, k) })
	return k
}

// stop ends both goroutines and waits for them.
func (k *keeper[D]) stop() {
	close(k.stopped)
	k.end()
	k.done.Wait()
}

// loss returns why the lease was lost, or nil.
func (k *keeper[D]) loss() *LostError {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lost
}

func (k *keeper[D]) lose(e *LostError) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost == nil {
		k.lost = &LostError{Reason: e.Reason, Grace: k.hold.lessor.policy.KillAfter()}
		k.cancelBody(k.lost)
		k.end()
	}
}

// watch waits for the end of trust. Each heartbeat moves that end: to an earlier time if the
// new expiry was computed from an estimate behind the store's clock.
func (k *keeper[D]) watch(ctx context.Context) {
	for {
		left := time.Until(k.hold.TrustedUntil())
		if left <= 0 {
			k.lose(&LostError{Reason: OutOfTime})
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-k.hold.moved:
		case <-time.After(left):
		}
	}
}

// due returns when the next renewal is due: in one heartbeat, or sooner if the trust
// ends so soon that a heartbeat would be too late.
func (k *keeper[D]) due() time.Time {
	return time.Now().Add(min(k.hold.lessor.policy.Heartbeat, time.Until(k.hold.TrustedUntil())/2))
}

// beat renews until the lease is lost or stop is called. After a renewal that failed
// for another reason, it tries again after a tenth of a heartbeat. Once the lease is lost, it
// reports the loss to every caller of Carry until stop is called: the body may wait for that.
func (k *keeper[D]) beat(ctx context.Context, renewed []Renewed) {
	for next := k.due(); k.wait(ctx, next); {
		began := time.Now()
		try, cancel := context.WithDeadline(ctx, k.hold.TrustedUntil())
		err := k.hold.Renew(try, 0)
		cancel()
		took := time.Since(began)

		var lost *LostError
		switch { // first: the callbacks may block
		case errors.As(err, &lost):
			k.lose(lost)
		case time.Until(k.hold.TrustedUntil()) <= 0: // the next renewal would reach nothing
			k.lose(&LostError{Reason: OutOfTime})
		}
		// A renewal that the end of the body cancelled has not failed.
		if err == nil || errors.Is(err, ErrLost) || ctx.Err() == nil || k.loss() != nil {
			for _, report := range renewed {
				report(context.WithoutCancel(ctx), took, err)
			}
		}

		if next = k.due(); err != nil {
			next = time.Now().Add(k.hold.lessor.policy.Heartbeat / 10)
		}
	}

	for lost := k.loss(); lost != nil; {
		k.hold.take().settle(lost)
		select {
		case <-k.hold.wake:
		case <-k.stopped:
			return
		}
	}
}

// wait waits until next, or until a carried change is due if that is sooner. It reports
// false if ctx has ended.
func (k *keeper[D]) wait(ctx context.Context, next time.Time) bool {
	for {
		at := next
		if due := k.hold.pending().due; !due.IsZero() && due.Before(at) {
			at = due
		}
		select {
		case <-ctx.Done():
			return false
		case <-k.hold.wake:
		case <-time.After(time.Until(at)):
			return ctx.Err() == nil
		}
	}
}

// sleep reports whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return ctx.Err() == nil
	}
}
