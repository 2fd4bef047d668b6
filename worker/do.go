package worker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"taskguard/internal/delivery"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// DoOptions configures a call of DoWith. Its zero value is that of Do.
type DoOptions struct {
	Collection string // of the records; empty: idempotency
	// Params are the parameters of the call, which encoding/json can encode. The record keeps
	// a hash of them. A later call with other parameters returns ErrParams. Nil: not compared.
	Params any
	// Keep is how long a record is kept after its last change: each change sets its Timestamp
	// expireAt, on which the collection needs a TTL policy. Firestore may delete it a day
	// later; until then the key has its result. Zero: 24 h. At least 1 h and longer than the
	// lock's TTL.
	Keep time.Duration
}

// Errors of Do.
var (
	// ErrParams reports that the key was used with other parameters.
	ErrParams = errors.New("worker: the key was used with other parameters")
	// ErrStopping reports that Shutdown has been called.
	ErrStopping = delivery.ErrStopping
)

// RunningError reports that another call runs the function for the same key.
type RunningError struct {
	RetryAt time.Time     // by Firestore's clock: when the lock expires, unless it is renewed
	RetryIn time.Duration // until then. The other call may end sooner
}

func (e *RunningError) Error() string {
	return fmt.Sprintf("worker: another call runs it; its lock expires in %v", e.RetryIn.Round(time.Millisecond))
}

// FailedError reports that the function has failed permanently for the key: it returned an
// *orchestrator.PermanentError, or a result that Firestore cannot hold. Each later call returns
// it too.
type FailedError struct {
	Code, Message string // as in the record
	Err           error  // of the function, if this call has run it
}

func (e *FailedError) Error() string { return "worker: failed: " + e.Code + ": " + e.Message }

// Unwrap returns Err.
func (e *FailedError) Unwrap() error { return e.Err }

// Do runs fn once for key, under a lock that is renewed while fn runs, and stores its result
// in Firestore. Every later call with the key, in any process, gets that result without
// running fn. The result is what encoding/json makes of it, for the first caller too.
//
// If fn returns an error or panics, Do returns an error that wraps fn's, and the next call
// runs fn again, as it does after a crash, once the lock has expired. fn should use
// job.LockToken as a fencing token for its side effects, and can continue from job.Resume,
// the last checkpoint: Do itself runs fn again if it has passed Options.RunTimeout with a new
// one. If ctx ends, fn's context ends; Do waits for fn, releases the lock and returns the
// cause of ctx.
//
// Other errors: a *RunningError while another call runs fn; a *FailedError; ErrParams;
// lease.ErrLost if the lock was lost, so that the result is not stored; lease.ErrInvalidKey
// for a key that cannot be the id of a document, such as one with a slash;
// lease.ErrUnavailable; ErrStopping. Do needs no Queue. A finished key costs one read.
func Do[T any](ctx context.Context, g *Guard, key string, fn func(ctx context.Context, job Job) (T, error)) (T, error) {
	return DoWith(ctx, g, key, DoOptions{}, fn)
}

// DoWith is Do with options.
func DoWith[T any](ctx context.Context, g *Guard, key string, o DoOptions, fn func(ctx context.Context, job Job) (T, error)) (T, error) {
	var zero, result T
	defer g.server.Track()() // it does not count towards MaxRuns
	if g.work.Err() != nil {
		return zero, ErrStopping
	}
	value, err := g.do(ctx, key, o, func(ctx context.Context, job Job) (any, error) { return fn(ctx, job) })
	if err != nil {
		return zero, err
	}
	text, err := repo.Plain(value)
	if err == nil {
		err = json.Unmarshal(text, &result)
	}
	if err != nil {
		return zero, fmt.Errorf("worker: the stored result of %q: %w", key, err)
	}
	return result, nil
}

// do returns the stored result of key.
func (g *Guard) do(ctx context.Context, key string, o DoOptions, fn func(context.Context, Job) (any, error)) (any, error) {
	is, err := g.records(o)
	if err != nil {
		return nil, err
	}
	params, err := hash(o.Params)
	if err != nil {
		return nil, err
	}
	for {
		value, done, err := is.result(ctx, key, params)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if done || err != nil {
			return value, err
		}
		if value, again, err := is.once(ctx, g.work, key, fn); !again {
			return value, err
		}
	}
}

// result reads the record of key, which it creates if there is none. done is false if fn must
// run.
func (is *guarded) result(ctx context.Context, key, params string) (value any, done bool, err error) {
	d, stored, err := is.analyses.Outcome(ctx, key)
	if errors.Is(err, lease.ErrNotFound) {
		if err = is.analyses.CreateWith(ctx, key, nil, params); errors.Is(err, repo.ErrExists) {
			return is.result(ctx, key, params)
		}
		return nil, false, err
	}
	switch {
	case err != nil:
		return nil, false, err
	case params != "" && stored != "" && params != stored:
		return nil, false, ErrParams
	case d.Status == analysislock.Failed:
		e := cmp.Or(d.Error, &analysislock.Error{})
		return nil, false, &FailedError{Code: e.Code, Message: e.Message}
	}
	return d.Result, analysislock.Finished(d.Status), nil
}

// once runs fn under the lock of key. again is true if the record has to be read again: it
// has changed since, or fn can continue from its checkpoint.
func (is *guarded) once(ctx, work context.Context, key string, fn func(context.Context, Job) (any, error)) (value any, again bool, err error) {
	run, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(work, func() { cancel(context.Cause(work)) })()
	defer context.AfterFunc(ctx, func() { cancel(&delivery.StopError{Deadline: time.Now().Add(releaseTime)}) })()
	guard, failure := *is.guard, error(nil)
	guard.Analyzer = orchestrator.AnalyzerFunc(func(ctx context.Context, job Job) (orchestrator.Result, error) {
		if value, failure = fn(ctx, job); failure == nil {
			value, failure = orchestrator.Storable(value)
		}
		return value, failure
	})
	o := guard.Deliver(run, delivery.Delivery{AnalysisID: key})
	switch {
	case o.Status != "" && (o.Case == delivery.Ran || o.Case == delivery.Failed): // fn or another program has finished the record, and value is dropped
		return nil, true, nil
	case o.Case == delivery.Ran:
		return value, false, nil
	case o.Case == delivery.Failed && o.Ran:
		return nil, false, &FailedError{Code: o.Code, Message: o.Err.Error(), Err: failure}
	case o.Case == delivery.AlreadyFinished, o.Case == delivery.Failed, o.Case == delivery.Continued, o.Case == delivery.NotFound:
		return nil, true, nil
	case o.Case == delivery.Locked:
		return nil, false, &RunningError{RetryAt: o.RetryAt, RetryIn: o.RetryIn}
	case ctx.Err() != nil && errors.Is(o.Err, ErrStopping):
		return nil, false, context.Cause(ctx)
	case errors.Is(o.Err, ErrStopping):
		return nil, false, ErrStopping
	case o.Case == delivery.Retry && failure != nil && o.Code == "run_timeout":
		return nil, false, fmt.Errorf("worker: do %q: %w: %w", key, o.Err, failure)
	case o.Case == delivery.Retry && failure != nil:
		return nil, false, failure
	}
	return nil, false, fmt.Errorf("worker: do %q: %w", key, o.Err)
}

// releaseTime limits the release of the lock after the end of a caller's context.
const releaseTime = 5 * time.Second

// records returns what guards the records of o.
func (g *Guard) records(o DoOptions) (*guarded, error) {
	if o.Collection == "" {
		o.Collection = "idempotency"
	}
	if o.Keep == 0 {
		o.Keep = 24 * time.Hour
	}
	if o.Keep < time.Hour {
		return nil, fmt.Errorf("worker: do: Keep %v is under 1h", o.Keep)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	key := fmt.Sprint(o.Keep, " ", o.Collection)
	if is := g.kinds[key]; is != nil {
		return is, nil
	}
	for _, other := range g.kinds {
		if other.Path != "" && other.Collection == o.Collection {
			return nil, fmt.Errorf("worker: do: the collection %q is that of kind %q", o.Collection, other.Name)
		}
	}
	store := g.store(Kind{Collection: o.Collection})
	store.Keep, store.KeepAll, store.MaxRunTime, store.Policy.MaxAttempts = o.Keep, true, 0, 0 // the callers decide when to give up
	is, err := g.newGuarded(Kind{Name: "do", Collection: o.Collection}, store)
	if err != nil {
		return nil, fmt.Errorf("worker: do: %w", err)
	}
	is.guard.Queue, is.guard.StallTimeout = nil, 0 // no task can call fn, which need not report
	g.kinds[key] = is
	return is, nil
}

// hash returns a hash of parameters; empty: there are none.
func hash(params any) (string, error) {
	if params == nil {
		return "", nil
	}
	text, err := json.Marshal(params)
	if err != nil {
		return "", fmt.Errorf("worker: do: encode the parameters: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}
