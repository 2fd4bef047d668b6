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

// DoOptions configures a call of DoWith. Do uses the zero value.
type DoOptions struct {
	Collection string // of the records; empty: idempotency
	// Params are the parameters of the call. encoding/json must be able to encode them. The
	// record keeps a hash of them, and a later call with other parameters returns ErrParams.
	// Nil: not compared.
	Params any
	// Keep is the time that a record is kept after its last change. Each change sets the
	// Timestamp expireAt, for which the collection needs a TTL policy. Firestore deletes the
	// record up to a day later; until then the key has its result. Zero: 24 h. Keep must be at
	// least 1 h and longer than the lock's TTL.
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
	RetryAt time.Time     // the expiry of the lock, unless it is renewed, by Firestore's clock
	RetryIn time.Duration // the time until RetryAt; the other call may end sooner
}

func (e *RunningError) Error() string {
	return fmt.Sprintf("worker: another call runs it; its lock expires in %v", e.RetryIn.Round(time.Millisecond))
}

// FailedError reports that the function has failed permanently for the key: it returned an
// *orchestrator.PermanentError, or a result that Firestore cannot hold. Each later call returns
// the same failure.
type FailedError struct {
	Code, Message string // as in the record
	Err           error  // returned by the function, if this call ran it
}

func (e *FailedError) Error() string { return "worker: failed: " + e.Code + ": " + e.Message }

// Unwrap returns Err.
func (e *FailedError) Unwrap() error { return e.Err }

// Do runs fn once for key, under a lock that is renewed while fn runs, and stores its result
// in Firestore. Every later call with the key, in any process, gets that result without
// running fn. Each caller, the first too, gets the result as decoded from JSON.
//
// If fn returns an error or panics, Do returns an error that wraps fn's, and the next call
// runs fn again. After a crash, the next call runs fn again once the lock has expired. fn should
// use job.LockToken as a fencing token for its side effects, and can continue from job.Resume,
// the last checkpoint. If fn passes Options.RunTimeout after a new checkpoint, Do runs it again.
// If ctx ends, fn's context ends; Do waits for fn, releases the lock and returns the cause of
// ctx.
//
// Other errors: a *RunningError while another call runs fn; a *FailedError; ErrParams;
// lease.ErrLost if the lock was lost, so that the result is not stored; lease.ErrInvalidKey
// for a key that cannot be the id of a document, such as one with a slash;
// lease.ErrUnavailable; ErrStopping. Do needs no Queue. A finished key costs one read.
func Do[T any](ctx context.Context, g *Guard, key string, fn func(ctx context.Context, job Job) (T, error)) (T, error) {
	return DoWith(ctx, g, key, DoOptions{}, fn)
}

// DoWith is Do with options.
func DoWith[T any](
	ctx context.Context, g *Guard, key string, o DoOptions, fn func(ctx context.Context, job Job) (T, error),
) (T, error) {
	var zero, result T
	defer g.server.Track()() // which does not count towards MaxRuns
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
func (g *Guard) do(ctx context.Context, key string, o DoOptions, fn orchestrator.AnalyzerFunc) (any, error) {
	kind, err := g.recordsOf(o)
	if err != nil {
		return nil, err
	}
	params, err := hash(o.Params)
	if err != nil {
		return nil, err
	}

	for {
		value, done, err := kind.result(ctx, key, params)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if done || err != nil {
			return value, err
		}
		value, again, err := kind.once(ctx, g.work, key, fn)
		if !again {
			return value, err
		}
	}
}

// result reads the record of key, or creates it. done is false if fn must run.
func (k *guarded) result(ctx context.Context, key, params string) (value any, done bool, err error) {
	d, stored, err := k.analyses.Outcome(ctx, key)
	if errors.Is(err, lease.ErrNotFound) {
		if err = k.analyses.CreateWith(ctx, key, nil, params); errors.Is(err, repo.ErrExists) {
			return k.result(ctx, key, params)
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

// once runs fn under the lock of key. again is true if the caller must read the record again: it
// has changed, or fn can continue from its checkpoint.
func (k *guarded) once(
	ctx, work context.Context, key string, fn orchestrator.AnalyzerFunc,
) (value any, again bool, err error) {
	run, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(work, func() { cancel(context.Cause(work)) })()
	defer context.AfterFunc(ctx, func() {
		cancel(&delivery.StopError{Deadline: time.Now().Add(releaseTime)})
	})()
	o := k.guard.Deliver(run, delivery.Delivery{AnalysisID: key, Analyzer: fn})

	switch o.Case {
	case delivery.AlreadyFinished, delivery.Continued, delivery.NotFound:
		return nil, true, nil
	case delivery.Ran: // with a Status, fn or another program has finished the record
		return o.Result, o.Status != "", nil
	case delivery.Failed:
		if o.Status != "" || !o.Ran {
			return nil, true, nil
		}
		return nil, false, &FailedError{Code: o.Code, Message: o.Err.Error(), Err: o.RunErr}
	case delivery.Locked:
		return nil, false, &RunningError{RetryAt: o.RetryAt, RetryIn: o.RetryIn}
	case delivery.Retry:
		if o.RunErr != nil && o.Code != delivery.CodeRunTimeout {
			return nil, false, o.RunErr
		}
	}

	switch {
	case errors.Is(o.Err, ErrStopping) && ctx.Err() != nil:
		return nil, false, context.Cause(ctx)
	case errors.Is(o.Err, ErrStopping):
		return nil, false, ErrStopping
	case o.Case == delivery.Retry && o.RunErr != nil:
		return nil, false, fmt.Errorf("worker: do %q: %w: %w", key, o.Err, o.RunErr)
	}
	return nil, false, fmt.Errorf("worker: do %q: %w", key, o.Err)
}

// releaseTime limits the release of the lock after the caller's context has ended.
const releaseTime = 5 * time.Second

// records identifies records of Do: those of one collection that are kept for the same time.
type records struct {
	collection string
	keep       time.Duration
}

// recordsOf returns the guarded records of o. They are a kind without a name of its own.
func (g *Guard) recordsOf(o DoOptions) (*guarded, error) {
	r := records{cmp.Or(o.Collection, "idempotency"), cmp.Or(o.Keep, 24*time.Hour)}
	if r.keep < time.Hour {
		return nil, fmt.Errorf("worker: do: Keep %v is under 1h", r.keep)
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	if known := g.records[r]; known != nil {
		return known, nil
	}
	for _, other := range g.kinds {
		if other.Collection == r.collection {
			return nil, fmt.Errorf("worker: do: the collection %q is that of kind %q", r.collection, other.Name)
		}
	}

	store := g.store(Kind{Collection: r.collection})
	store.Keep, store.KeepAll = r.keep, true
	store.MaxRunTime, store.Policy.MaxAttempts = 0, 0 // each caller decides when to give up
	kind, err := g.newGuarded(Kind{Name: "do", Collection: r.collection}, store)
	if err != nil {
		return nil, fmt.Errorf("worker: do: %w", err)
	}
	kind.guard.Queue, kind.guard.StallTimeout = nil, 0 // no task can call fn, and fn need not report
	kind.guard.Answers = true
	g.records[r] = kind
	return kind, nil
}

// hash returns a hash of params, or "" for nil.
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
