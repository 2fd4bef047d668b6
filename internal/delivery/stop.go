package delivery

import (
	"context"
	"errors"
	"time"

	"taskguard/internal/clock"
)

// StopError is ErrStopping with the times of the stop. The stop of cmd/worker takes 8 s: a program with an
// open act gets SIGTERM at second 4 at the latest, acts end at second 6, and what still runs is killed at
// second 7, which leaves the time to release its lock.
type StopError struct {
	Deadline time.Time // for the release of locks and the booking of deliveries
	// Acts is when the context of acts ends: work that cannot be repeated, see orchestrator.Outlaster.
	// Zero: when the context of their run ends.
	Acts time.Time
}

func (e *StopError) Error() string { return ErrStopping.Error() }

// Unwrap makes errors.Is(err, ErrStopping) hold.
func (e *StopError) Unwrap() error { return ErrStopping }

// TermAfter returns how long a program may still go on with an open act before it gets SIGTERM.
func (e *StopError) TermAfter() time.Duration {
	if e.Acts.IsZero() {
		return 0
	}
	return time.Until(e.Acts) - 2*time.Second
}

// KillAfter returns how long what ignores the stop may still run.
func (e *StopError) KillAfter() time.Duration { return time.Until(e.Deadline) - 500*time.Millisecond }

// stoppable returns a copy of held, the context of a run, that also ends with ctx, when the process or
// the caller stops. After that, end ends held itself, in which acts go on: at the time of the StopError.
func stoppable(ctx, held context.Context, end context.CancelCauseFunc) (context.Context, context.CancelFunc) {
	running, cancel := context.WithCancelCause(held)
	if ctx.Err() != nil { // AfterFunc needs a moment, in which the analyzer could begin
		cancel(context.Cause(ctx))
	}
	unlink := context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		cancel(cause)
		if stop, ok := errors.AsType[*StopError](cause); ok {
			clock.Sleep(held, time.Until(stop.Acts))
		}
		end(cause)
	})
	return running, func() { unlink(); cancel(nil) }
}

// Outlast implements orchestrator.Outlaster.
func (r *reporter) Outlast(ctx context.Context) (context.Context, context.CancelFunc) {
	lasting, release := context.WithoutCancel(ctx), context.CancelFunc(func() {})
	if deadline, ok := ctx.Deadline(); ok { // it also counts after the stop
		lasting, release = context.WithDeadline(lasting, deadline)
	}
	lasting, cancel := context.WithCancelCause(lasting)

	unlink := context.AfterFunc(ctx, func() {
		ended := ctx
		if errors.Is(context.Cause(ctx), ErrStopping) {
			ended = r.held
			select {
			case <-ended.Done():
			case <-lasting.Done():
			}
		}
		if !errors.Is(ended.Err(), context.DeadlineExceeded) { // otherwise lasting ends with the same error
			cancel(context.Cause(ended))
		}
	})
	return lasting, func() { unlink(); cancel(nil); release() }
}
