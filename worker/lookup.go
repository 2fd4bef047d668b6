package worker

import (
	"context"
	"errors"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Lookup returns the outcome of an operation and a key with one read, and runs nothing. Its errors are
// lease.ErrNotFound if there is no record; a *RunningError while a call runs the function; ErrUnfinished, also if an
// act of Once is uncertain; a *FailedError; and, as in Do, ErrParams, a *ResultError, lease.ErrInvalidKey,
// lease.ErrUnavailable and ErrStopping.
func Lookup[T any](ctx context.Context, g *Guard, operation, key string, o DoOptions) (out Outcome[T], err error) {
	defer g.lifecycle.Track()()
	r, err := g.record(operation, key, o)
	if err != nil {
		return out, err
	}

	d, err := r.read(ctx)
	out.Replayed, out.Token = analysislock.Finished(d.Status), d.Lock.Token // also with a *FailedError
	switch {
	case err != nil:
		return out, err
	case out.Replayed:
		out.Value, err = decode[T](r.id, d.Result)
		return out, err
	case lease.Held(d.Lock, d.ReadAt):
		return out, newRunningError(d.Lock.ExpiresAt, d.Lock.ExpiresAt.Sub(d.ReadAt))
	}
	return out, ErrUnfinished
}

// Reset opens a key again, whether its function has succeeded, failed or not finished. The next Do runs the function,
// without the last checkpoint and with the same Params as before; the Params in o are ignored. Its errors are
// lease.ErrNotFound if there is no record; a *RunningError while a call runs the function; ErrUncertain if an act of
// Once is uncertain; and, as in Do, lease.ErrInvalidKey, lease.ErrUnavailable and ErrStopping.
func Reset(ctx context.Context, g *Guard, operation, key string, o DoOptions) error {
	defer g.lifecycle.Track()()
	r, err := g.record(operation, key, o)
	if err != nil {
		return err
	}

	_, err = r.analyses.Requeue(ctx, r.id, "", nil, true, "")
	if held, ok := errors.AsType[*lease.HeldError](err); ok {
		err = newRunningError(held.ExpiresAt, held.Remaining)
	}
	return err
}
