package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/text"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// Outcome is the outcome of an operation and a key.
type Outcome[T any] struct {
	// Value is the stored result, decoded from JSON. With an error, it is what the function returned in this call.
	Value T
	// Replayed reports that the outcome was recorded before this call, or by another program. Ran reports that this
	// call has called the function.
	Replayed, Ran bool
	Token         int64 // fencing token of the last run; zero: unknown
}

// Do runs fn once for an operation and a key. It holds a lock while fn runs, stores the result in Firestore, and
// returns that result to every later call with the same operation and key, in any process. Each caller gets the result
// decoded from JSON, the first too. Do needs no Queue, and a finished key costs one read.
//
// The operation is a name such as "charge". The record's id is operation:key, so a charge and its refund with one key
// are two records. If a client chooses the key, begin it with the client's account: otherwise one account could get the
// result of another.
//
// If fn returns an error or panics, Do returns an error that wraps it, and the next call runs fn again. After a crash,
// the next call runs fn again once the lock has expired. Mark side effects in fn with Once, or send job.LockToken with
// them as a fencing token. fn can resume from job.Resume, the last checkpoint; if it passes RunTimeout after a new
// checkpoint, Do runs it again at once. If ctx ends, so does fn's context: Do waits for fn, releases the lock, and
// returns an error that wraps the cause of ctx and fn's error. A failed run is logged like a failed delivery.
//
// Other errors: a *RunningError while another call runs fn; a *FailedError; ErrParams; a *NotStoredError if fn returned
// a value that is not stored; a *ResultError; an *UncertainError that fn returns from Once; and lease.ErrInvalidKey for
// a key that cannot be a document's id, such as one with a slash. If this call did not call fn and the key has no
// outcome, the error matches ErrNotRun. With an error, Do returns the value that fn returned in this call.
func Do[T any](
	ctx context.Context, g *Guard, operation, key string, fn func(ctx context.Context, job Job) (T, error),
) (T, error) {
	o, err := DoOutcome(ctx, g, operation, key, DoOptions{}, fn)
	return o.Value, err
}

// DoOutcome is Do with options. It returns more about the outcome, also with an error.
func DoOutcome[T any](
	ctx context.Context, g *Guard, operation, key string, o DoOptions,
	fn func(ctx context.Context, job Job) (T, error),
) (out Outcome[T], err error) {
	defer g.lifecycle.Track()() // not counted towards MaxRuns
	r, err := g.record(operation, key, o)
	if err != nil {
		return out, fmt.Errorf("%w: %w", ErrNotRun, err)
	}

	returned := false // whether the last run of fn has returned a value
	run := func(ctx context.Context, job Job) (value any, fnErr error) {
		out.Ran, out.Token, returned = true, job.LockToken, false // fn may panic
		out.Value, fnErr = fn(ctx, job)
		returned = fnErr == nil
		return out.Value, fnErr
	}
	stored, err := r.do(ctx, g.work, run)
	if stored.Replayed {
		out.Replayed, out.Token = true, stored.Token
	}

	switch {
	case err == nil:
		var value T
		if value, err = decode[T](r.id, stored.Value); err == nil {
			out.Value = value
		}
	case returned:
		err = &NotStoredError{Value: out.Value, Err: err}
	case !out.Ran && !out.Replayed:
		err = fmt.Errorf("%w: %w", ErrNotRun, err)
	}
	return out, err
}

// decode returns a stored result as a T, or zero with a *ResultError. id names its record or its act.
func decode[T any](id string, stored any) (result T, err error) {
	text, err := repo.Plain(stored)
	if err == nil {
		err = json.Unmarshal(text, &result)
	}
	if err != nil {
		var none T // Unmarshal may have set a part of the result
		return none, &ResultError{Record: id, Type: reflect.TypeFor[T]().String(), Err: err}
	}
	return result, nil
}

// do returns the outcome of the record. It creates the record if there is none, and calls run
// if it has no outcome yet. work ends in Shutdown.
func (r record) do(ctx, work context.Context, run orchestrator.AnalyzerFunc) (o Outcome[any], err error) {
	for {
		d, err := r.read(ctx)
		if errors.Is(err, lease.ErrNotFound) {
			err = r.analyses.Create(ctx, r.id, nil, repo.CreateOptions{Params: r.params})
			if errors.Is(err, repo.ErrExists) {
				continue
			}
		}

		switch {
		case analysislock.Finished(d.Status):
			return Outcome[any]{Value: d.Result, Replayed: true, Token: d.Lock.Token}, err
		case err != nil && ctx.Err() != nil:
			return o, context.Cause(ctx)
		case err != nil:
			return o, err
		}

		value, again, err := r.once(ctx, work, run)
		if err != nil || !again {
			return Outcome[any]{Value: value}, err
		}
	}
}

// once calls run under the lock of the record. again is true if the record must be read again: it
// has changed, or run can continue from its checkpoint.
func (r record) once(ctx, work context.Context, run orchestrator.AnalyzerFunc) (value any, again bool, err error) {
	d := r.deliver(ctx, work, delivery.Delivery{AnalysisID: r.id, Analyzer: run}, false)
	switch d.Reason {
	case delivery.Completed:
		return d.Value, d.Status != "", nil // with a Status, another program has finished the record
	case delivery.AlreadyFinished, delivery.Continued, delivery.NotFound:
		return nil, true, nil
	case delivery.Locked:
		return nil, false, newRunningError(d.RetryAt, d.RetryIn)
	case delivery.Failed:
		if !d.Ran || d.Status != "" { // run has not failed: the record has
			return nil, true, nil
		}
		return nil, false, &FailedError{Code: d.Code, Message: text.Head(text.Error(d.Err), delivery.MaxText), Err: d.RunErr}
	}
	return nil, false, r.unfinished(ctx, d)
}

// unfinished returns the error of a call that has left the record without an outcome.
func (r record) unfinished(ctx context.Context, d delivery.Result) error {
	cause := d.Err
	switch {
	case errors.Is(cause, ErrStopping) && ctx.Err() != nil:
		cause = context.Cause(ctx)
	case d.Reason == delivery.Retry && d.Code == delivery.CodeRunTimeout:
		cause = fmt.Errorf("the run took longer than RunTimeout, %v, without a new checkpoint", r.runner.RunTimeout)
	case d.Reason == delivery.Retry && d.RunErr != nil:
		return d.RunErr
	}
	switch permanent := errors.As(d.RunErr, new(*orchestrator.PermanentError)); {
	case permanent: // it is not recorded, so the next call runs fn again: it must not pass for a FailedError
		cause = fmt.Errorf("%w: not recorded: %s", cause, text.Error(d.RunErr))
	case d.RunErr != nil: // fn's own error
		cause = fmt.Errorf("%w: %w", cause, d.RunErr)
	}
	return fmt.Errorf("worker: do %q: %w", r.id, cause)
}

// releaseTime limits the release of the lock after the caller's context has ended.
const releaseTime = 5 * time.Second

// deliver makes the delivery d, which comes from no request, and logs it: an expected result only if asRun.
// The run stops when work ends, in Shutdown, or when the caller's context ends. For a caller of Do, deliver
// then has releaseTime to release the lock; asRun, for Work.Run, it stops as gently as in Shutdown.
func (c collection) deliver(caller, work context.Context, d delivery.Delivery, asRun bool) delivery.Result {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(caller))
	defer cancel(nil)
	defer context.AfterFunc(work, func() { cancel(context.Cause(work)) })()
	defer context.AfterFunc(caller, func() {
		cause := context.Cause(caller)
		if !errors.As(cause, new(*delivery.StopError)) { // else a run that calls Do is stopped, with the process
			stop := &delivery.StopError{Deadline: time.Now().Add(releaseTime)}
			if asRun {
				stop = stopBefore(time.Now().Add(stopTime))
			}
			cause = stop
		}
		cancel(cause)
	})()

	started := time.Now()
	r := c.runner.Deliver(ctx, d)
	if level := r.Level(); asRun || level > slog.LevelInfo && r.Reason != delivery.Continued {
		line := delivery.LogLine{
			Outcome: r.Reason.String(), Result: r, Names: c.runner.Names, Took: time.Since(started),
		}
		c.runner.Log.LogAttrs(ctx, level, "delivery", line.Attrs()...)
	}
	return r
}
