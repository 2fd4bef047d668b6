package worker

import (
	"cmp"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/text"
	"taskguard/lease"
	"taskguard/orchestrator"
)

// UncertainError reports a side effect that an earlier attempt began and may have done; see Once.
//
//	Key   string    // the id of the document
//	Name  string    // the name of the act
//	Token int64     // the LockToken of the attempt that began it
//	Since time.Time // when it began, by Firestore's clock
type UncertainError = orchestrator.UncertainError

// Finder asks whether an act has been done; see Find.
type Finder[T any] struct {
	find func(ctx context.Context) (result T, found bool, err error)
}

// Find returns an option for Once: find asks the receiver, such as a payment provider, whether an earlier attempt did
// it. If found is true, its result is recorded. If found is false, the act is done again; that is safe only if no
// earlier request can still arrive, or if each request carries job.Key. If find returns an error, so does Once, and a
// later attempt asks again.
func Find[T any](find func(ctx context.Context) (result T, found bool, err error)) Finder[T] {
	return Finder[T]{find}
}

// ErrNoGuard reports that the job comes from no guard, for example because the request is not behind Idempotent, or has
// no key where keys are Optional. Check the ok of JobFromContext. In a unit test, use workertest.Job.
var ErrNoGuard = orchestrator.ErrNoGuard

// notDone is the error of an act that was not done.
type notDone struct {
	error

	cleared bool // Once has removed the marker: the error does not count for an outer act
}

// Unwrap returns the act's error.
func (e notDone) Unwrap() error { return e.error }

// NotDone wraps the error of an act that you know was not done, for example because the provider refused it. Once then
// removes the marker, so that a later call does the act. If an act calls another Once and returns its error, NotDone
// counts only for the inner one.
func NotDone(err error) error {
	return notDone{cmp.Or(err, errors.New("worker: the act was not done")), false}
}

// Once calls act, a side effect that must not be repeated, such as a charge. It commits a marker with the name of the
// act before the call and the result after it, both only while the lock is held. Once returns the result decoded from
// JSON, in the first call too.
//
// A later attempt finds the record. If it has the result, Once returns that result and does not call act. If it has
// only the marker, the act may have been done: the process died, or act returned an error without NotDone. Then Once
// asks Find, or returns an *UncertainError. A run that returns it becomes FAILED with the code effect_uncertain, until
// an operator answers with taskguard resolve. Do returns it to its caller.
//
// A name has up to 64 letters, digits, "_" and "-", and is not like __x__. Use each name once in a run: in a loop, add
// the id of the item. Retry inside act, not around Once. Only after NotDone may the run use the name again.
//
// When the process stops, an act or a Find that has begun goes on: its context ends two seconds before Shutdown's
// deadline. A lost lock, RunTimeout and the end of Do's ctx end it at once. No act begins after ctx has ended.
//
// Before act, Once can return ErrNoGuard, or a *PermanentError with one of these codes:
//
//   - act_name_reused: the run has used the name before.
//   - acts_full: the document has no room. It holds 16 acts and 64 KiB of results, with 4 KiB for each open act.
//   - act_in_self_test: the run is a self-test.
//   - act_name_invalid: the name is invalid.
//   - result_invalid: encoding/json can never encode a T.
//
// After the first three, the run ends with that code even if it ignores the error.
//
// After act, Once returns act's error. If act succeeded and the result is not stored, the error is a *NotStoredError
// with the value; it wraps lease.ErrLost if the lock was lost. If the result can never be stored, because encoding/json
// refuses it or the document has no room, the act is recorded as done, and each later call returns a *ResultError. So
// does a call whose T cannot decode the stored result. A run of a Kind that returns a *ResultError becomes FAILED with
// the code effect_result_invalid.
func Once[T any](ctx context.Context, job Job, name string, act func(ctx context.Context) (T, error),
	find ...Finder[T],
) (result T, err error) {
	if err := encodable(reflect.TypeFor[T](), map[reflect.Type]bool{}); err != nil {
		message := fmt.Sprintf("the result of the act %q cannot be stored: %v", name, err)
		return result, Permanent(orchestrator.CodeResultInvalid, message, err)
	}
	if err := orchestrator.CheckAct(name); err != nil {
		return result, Permanent(orchestrator.CodeActNameInvalid, text.Error(err), err)
	}
	record, err := job.Begin(ctx, name, false)
	if err != nil {
		return result, fmt.Errorf("worker: act %q: %w", name, err)
	}

	acting, release := orchestrator.Outlast(ctx, job)
	defer release()
	earlier := record != nil
	if earlier && !record.Done() {
		if len(find) == 0 {
			return result, job.Uncertain(name, record)
		}
		if ctx.Err() != nil { // a stop begins nothing, although acting has not ended
			return result, context.Cause(ctx)
		}
		result, found, err := find[0].find(acting)
		if err != nil {
			return result, fmt.Errorf("worker: find act %q: %w", name, err)
		}
		if found {
			return done(ctx, job, name, result)
		}
		if record, err = job.Begin(ctx, name, true); err != nil {
			return result, fmt.Errorf("worker: act %q: %w", name, err)
		}
	}
	if record != nil && record.ResultError != "" {
		err := errors.New("it was not stored: " + record.ResultError)
		return result, &ResultError{Record: name, Type: reflect.TypeFor[T]().String(), Err: err}
	}
	if record != nil {
		return decode[T](name, record.Result)
	}

	switch { // the lock may be lost, or the run stopped
	case ctx.Err() != nil && earlier: // its request may still arrive
		return result, context.Cause(ctx)
	case ctx.Err() != nil:
		return result, errors.Join(context.Cause(ctx), undo(ctx, job, name))
	}
	result, err = act(acting)
	var undone notDone
	switch {
	case err == nil:
		return done(ctx, job, name, result)
	case errors.As(err, &undone) && !undone.cleared:
		return result, errors.Join(notDone{err, true}, undo(ctx, job, name))
	}
	return result, err
}

// recordTime is how long the record of an act's end may take after the end of the run's context, or of an
// act that outlasts it: to say that a charge is not stored, although it is, invites the caller to make it void.
const recordTime = 5 * time.Second

// end is job.End, which does not give up as soon as ctx ends, unless the lock is lost.
func end(ctx context.Context, job Job, name string, done bool, result any) error {
	if errors.Is(context.Cause(ctx), lease.ErrLost) {
		return job.End(ctx, name, done, result)
	}

	ending, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		cause, limit := context.Cause(ctx), recordTime
		if stop, ok := errors.AsType[*delivery.StopError](cause); ok { // the release commits what is left
			limit = min(limit, stop.KillAfter())
		}
		time.AfterFunc(limit, func() { cancel(cause) })
	})()
	return job.End(ending, name, done, result)
}

// done records the result of an act, and returns it as decoded from JSON.
func done[T any](ctx context.Context, job Job, name string, result T) (T, error) {
	if err := end(ctx, job, name, true, result); err != nil {
		return result, &NotStoredError{Value: result, Err: fmt.Errorf("act %q: %w", name, err)}
	}
	return decode[T](name, result)
}

// undo removes the marker of an act that was not done.
func undo(ctx context.Context, job Job, name string) error {
	if err := end(ctx, job, name, false, nil); err != nil {
		return fmt.Errorf("worker: remove the marker of act %q: %w", name, err)
	}
	return nil
}

// encodable returns an error for a type that encoding/json cannot encode, or that has a part that it cannot:
// a channel, a function, a complex number, or a map by others than texts and integers. It looks at the
// type alone: a list with functions may be empty now. What an interface will hold is not known. seen are
// the types that need no other look.
func encodable(t reflect.Type, seen map[reflect.Type]bool) error {
	if seen[t] || marshals[json.Marshaler](t) || marshals[encoding.TextMarshaler](t) {
		return nil
	}
	seen[t] = true

	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		return &json.UnsupportedTypeError{Type: t}
	case reflect.Map:
		key := t.Key()
		integer := reflect.Int <= key.Kind() && key.Kind() <= reflect.Uintptr
		if !integer && key.Kind() != reflect.String && !key.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
			return &json.UnsupportedTypeError{Type: t}
		}
		return encodable(t.Elem(), seen)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return encodable(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Tag.Get("json") == "-" || !f.IsExported() && !f.Anonymous {
				continue
			}
			if err := encodable(f.Type, seen); err != nil {
				return err
			}
		}
	}
	return nil
}

// marshals reports whether t, or a pointer to a t, has the method of an M.
func marshals[M any](t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[M]()) || t.Implements(reflect.TypeFor[M]())
}
