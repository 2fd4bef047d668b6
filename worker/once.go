package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"taskguard/orchestrator"
)

// UncertainError reports that an attempt has begun an act, and that nobody knows whether it was
// done; see Once.
//
//	Key   string    // the id of the document
//	Name  string    // of the act
//	Token int64     // the LockToken of the attempt that began it
//	Since time.Time // the time when it began, by Firestore's clock
type UncertainError = orchestrator.UncertainError

// Finder asks whether an act has been done; see Find.
type Finder[T any] struct {
	find func(ctx context.Context) (result T, found bool, err error)
}

// Find returns an option of Once: find asks the receiver of the act, such as a payment provider,
// whether an earlier attempt has done it. If found is true, its result is recorded. If found is
// false, the act begins again; that is safe only if no request of an earlier attempt can still
// arrive, or if the receiver gets job.Key with each. If find returns an error, so does Once, and a
// later attempt asks again.
func Find[T any](find func(ctx context.Context) (result T, found bool, err error)) Finder[T] {
	return Finder[T]{find}
}

// notDone is the error of an act that surely was not done.
type notDone struct {
	error

	cleared bool // Once has removed the marker: the error does not count for an outer act
}

// Unwrap returns the act's error.
func (e notDone) Unwrap() error { return e.error }

// NotDone returns err for an act of Once that has surely not been done, for example because its
// receiver has refused it. Once removes the marker, so that a later attempt does the act. If an
// outer act returns the error of an inner Once, NotDone counts only for the inner one.
func NotDone(err error) error {
	return notDone{cmp.Or(err, errors.New("worker: the act was not done")), false}
}

// Once calls act, a side effect that must not be repeated, such as a charge. It commits a marker
// with the name of the act to the document before the call, and the result after it. Both
// commits are conditional on the lock. name has up to 64 letters, digits, "_" and "-". encoding/json
// must be able to encode the result.
//
// If an earlier call has recorded the result, Once returns it without calling act, as decoded
// from JSON. If an earlier call has left only the marker, because its process died or act returned
// an error that is not from NotDone, the act may have been done. Then Once uses Find, or returns an
// *UncertainError. A run that returns it becomes FAILED with the code effect_uncertain; Do returns
// it to its caller. An operator answers by taskguard resolve.
//
// Other errors: that of act; a *ResultError if the result that another version of the program or an
// operator has stored cannot be decoded as a T (a run of a Kind that returns this error becomes FAILED
// with the code effect_result_invalid); lease.ErrLost if the lock was lost; lease.ErrRefused or another
// error if the marker or the result cannot be stored: a document has at most 16 acts, and 64 KiB of
// their results. act is called only after its marker has been committed. A document must not have two
// calls of Once with the same name at the same time. For a job without a Reporter, as in a test,
// Once only calls act.
func Once[T any](ctx context.Context, job Job, name string, act func(ctx context.Context) (T, error),
	find ...Finder[T],
) (result T, err error) {
	effect, err := job.Begin(ctx, name, false)
	if err != nil {
		return result, fmt.Errorf("worker: act %q: %w", name, err)
	}

	earlier := effect != nil
	if earlier && !effect.Done {
		if len(find) == 0 {
			return result, job.Uncertain(name, effect)
		}
		result, found, err := find[0].find(ctx)
		if err != nil {
			return result, fmt.Errorf("worker: find act %q: %w", name, err)
		}
		if found {
			return result, ended(name, job.End(ctx, name, true, result))
		}
		if effect, err = job.Begin(ctx, name, true); err != nil {
			return result, fmt.Errorf("worker: act %q: %w", name, err)
		}
	}
	if effect != nil {
		return decode[T](name, effect.Result)
	}

	switch { // the lock may be lost
	case ctx.Err() != nil && earlier: // its request may still arrive
		return result, context.Cause(ctx)
	case ctx.Err() != nil:
		return result, errors.Join(context.Cause(ctx), ended(name, job.End(ctx, name, false, nil)))
	}
	result, err = act(ctx)
	var undone notDone
	switch {
	case err == nil:
		return result, ended(name, job.End(ctx, name, true, result))
	case errors.As(err, &undone) && !undone.cleared:
		return result, errors.Join(notDone{err, true}, ended(name, job.End(ctx, name, false, nil)))
	}
	return result, err
}

// ended returns the error of the record of an act's end.
func ended(name string, err error) error {
	if err != nil {
		return fmt.Errorf("worker: record the end of act %q: %w", name, err)
	}
	return nil
}
