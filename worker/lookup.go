package worker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/telemetry"
	"taskguard/internal/text"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// Errors of Do, DoOutcome, Lookup and Reset.
var (
	// ErrParams reports that the key was used with other parameters.
	ErrParams = errors.New("worker: the key was used with other parameters")
	// ErrNotRun reports that a call of Do has not called the function, and that the key has no
	// outcome. The error wraps the reason, such as a *RunningError or lease.ErrUnavailable.
	ErrNotRun = errors.New("worker: the function was not called")
	// ErrUnfinished reports that a function has not finished for the key, and that no call runs it.
	ErrUnfinished = errors.New("worker: the key has no outcome, and no call runs its function")
	// ErrUncertain reports that an act of Once may have been done, so that Reset changes nothing.
	ErrUncertain = analysislock.ErrUncertain
	// ErrStopping reports that Shutdown has been called.
	ErrStopping = delivery.ErrStopping
)

// RunningError reports that another call runs the function for the same key.
type RunningError struct {
	RetryIn   time.Duration // how long to wait before you try again, at most 1 s
	ExpiresAt time.Time     // when the lock expires by Firestore's clock, unless it is renewed
}

func newRunningError(expiry time.Time, remaining time.Duration) *RunningError {
	return &RunningError{RetryIn: min(remaining, time.Second), ExpiresAt: expiry}
}

func (e *RunningError) Error() string {
	return fmt.Sprintf("worker: another call runs it: try again in %v", e.RetryIn)
}

// FailedError reports that the function has failed permanently for the key: it returned an
// *orchestrator.PermanentError, or a result that Firestore cannot hold. Each later call returns
// the same failure. errors.As finds an *orchestrator.PermanentError in each, with this Code and
// Message.
type FailedError struct {
	Code, Message string // the error in the record
	Err           error  // what the function returned, if this call ran it
}

func (e *FailedError) Error() string { return "failed: " + e.Code + ": " + e.Message }

// Unwrap returns an *orchestrator.PermanentError that wraps Err.
func (e *FailedError) Unwrap() error {
	return &orchestrator.PermanentError{Code: e.Code, Message: e.Message, Err: e.Err}
}

// NotStoredError reports that the function, or the act of Once, has returned a value in this call, and
// that the value is not known to be stored. Err is the reason: lease.ErrLost if the lock was lost;
// lease.ErrUnavailable, after which the value may be stored; of Do, a *FailedError if Firestore cannot
// hold the value. An act whose result cannot be stored is recorded as done: do not do it again.
type NotStoredError struct {
	Value any // what the function returned
	Err   error
}

func (e *NotStoredError) Error() string {
	return "worker: the value is not known to be stored: " + text.Error(e.Err)
}

// Unwrap returns Err.
func (e *NotStoredError) Unwrap() error { return e.Err }

// ResultError reports that the stored result does not decode as the type of the caller, or that an act is
// recorded as done without its result.
type ResultError struct {
	Record string // operation:key, or the name of an act of Once
	Type   string // the caller's Go type
	Err    error  // the error of encoding/json, or why there is no result
}

func (e *ResultError) Error() string {
	return fmt.Sprintf("worker: the stored result of %q is no %s: %v", e.Record, e.Type, e.Err)
}

// Unwrap returns Err.
func (e *ResultError) Unwrap() error { return e.Err }

// Lookup returns the outcome of an operation and a key, and runs nothing. It makes one read.
// Errors: lease.ErrNotFound if there is no record; a *RunningError while a call runs the function;
// ErrUnfinished, also if an act of Once is uncertain; a *FailedError; and ErrParams, a *ResultError,
// lease.ErrInvalidKey, lease.ErrUnavailable and ErrStopping as Do.
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

// Reset opens a key again, whether its function has succeeded, failed or not finished: the next
// Do runs the function, without the last checkpoint. It needs the same Params as before; Reset does
// not compare those of o. Errors: lease.ErrNotFound if there is no record; a *RunningError
// while a call runs the function; ErrUncertain if an act of Once is uncertain; and
// lease.ErrInvalidKey, lease.ErrUnavailable and ErrStopping as Do.
func Reset(ctx context.Context, g *Guard, operation, key string, o DoOptions) error {
	defer g.lifecycle.Track()()
	r, err := g.record(operation, key, o)
	if err != nil {
		return err
	}

	_, err = r.analyses.Requeue(ctx, r.id, nil, true, "")
	if held, ok := errors.AsType[*lease.HeldError](err); ok {
		err = newRunningError(held.ExpiresAt, held.Remaining)
	}
	return err
}

// record is the record of one operation and key.
type record struct {
	collection
	id     string // operation:key
	params string // the hash of DoOptions.Params
}

// record returns the record of an operation and a key. It makes no call to Firestore.
func (g *Guard) record(operation, key string, o DoOptions) (r record, err error) {
	const maxID = 1500 // Firestore's limit, in bytes
	if g.work.Err() != nil {
		return r, ErrStopping
	}
	if !simpleName.MatchString(operation) {
		return r, fmt.Errorf("worker: do: the operation %q is not a letter and then letters, digits, - and _", operation)
	}
	if err := lease.CheckKey("record", key, maxID-len(operation+":")); err != nil {
		return r, err
	}

	r.id = operation + ":" + key
	if r.params, err = hash(o.Params); err != nil {
		return r, fmt.Errorf("worker: do: encode the parameters: %w", err)
	}
	if r.collection, err = g.openRecords(o); err != nil {
		return r, fmt.Errorf("worker: do: %w", err)
	}
	return r, nil
}

// read reads the record with its result. It returns ErrParams, or a *FailedError with a record
// that has failed.
func (r record) read(ctx context.Context) (analysislock.Analysis, error) {
	d, params, err := r.analyses.Outcome(ctx, r.id)
	switch {
	case err != nil:
	case r.params != "" && params != "" && r.params != params:
		return analysislock.Analysis{}, ErrParams
	case d.Status == analysislock.Failed:
		e := cmp.Or(d.Error, &analysislock.Error{})
		err = &FailedError{Code: e.Code, Message: e.Message}
	}
	return d, err
}

// recordsName is the name of the kind of all records of Do, recordsCollection their collection by default.
const recordsName, recordsCollection = "do", "idempotency"

// openRecords returns the collection of records that o names. From now on reportRecords includes it, and
// no kind can be registered with it. It is an error if a kind already has it.
func (g *Guard) openRecords(o DoOptions) (records collection, err error) {
	k := Kind{
		Name: recordsName, Collection: cmp.Or(o.Collection, recordsCollection),
		RunTimeout: cmp.Or(o.RunTimeout, g.options.RunTimeout),
	}
	switch {
	case o.Keep != 0 && o.Keep < time.Hour:
		return records, fmt.Errorf("the option Keep %v is under 1h", o.Keep)
	case k.RunTimeout < 0 || k.RunTimeout > 24*time.Hour:
		return records, fmt.Errorf("the option RunTimeout %v is not between 0 and 24h", k.RunTimeout)
	}

	store := g.storeOptions(k)
	store.Keep, store.KeepAll, store.Noun = cmp.Or(o.Keep, 24*time.Hour), true, "record"
	store.Policy, store.MaxRunTime = cmp.Or(o.Lock, g.options.Lock), 0
	store.Policy.MaxAttempts = 0 // each caller decides when to give up
	if records, err = g.collection(k, store); err != nil {
		return records, err
	}
	records.runner.Queue, records.runner.StallTimeout = nil, 0 // no task can call fn, and fn need not report
	records.runner.RetryUncertain = true

	g.mu.Lock()
	defer g.mu.Unlock()
	for _, other := range g.works {
		if other.Collection == k.Collection {
			return records, fmt.Errorf("the collection %q is that of kind %q", k.Collection, other.Name)
		}
	}
	g.records[k.Collection], g.reported[k.Collection] = true, records.analyses
	return records, nil
}

// maxReported limits the records of one collection that one report counts.
const maxReported = 1000

// reportRecords logs, for each collection of Do, how many records have no lock and an act that may
// have been done. Their callers may never call again. It returns how many records with an act are
// abandoned. It reports the default collection also before this process has called Do: the process
// that has called it may have died.
func (g *Guard) reportRecords(ctx context.Context) (abandoned int) {
	g.mu.Lock()
	records := maps.Clone(g.reported)
	g.mu.Unlock()
	for collection, analyses := range records {
		log := g.options.Log.With("collection", collection)
		uncertain, err := analyses.Uncertain(ctx, maxReported)
		lost, lostErr := analyses.Abandoned(ctx, maxReported)
		if err = errors.Join(err, lostErr); err != nil {
			log.WarnContext(ctx, "records of Do not counted", "error", err)
		}
		if len(uncertain) > 0 {
			log.WarnContext(ctx, "acts of Do are uncertain", "records", len(uncertain))
		}
		if len(lost) > 0 {
			log.WarnContext(ctx, "records of Do are abandoned", "records", len(lost))
		}
		abandoned += len(lost)
	}
	g.telemetry.Record(ctx, telemetry.AbandonedRecords, float64(abandoned))
	return abandoned
}

// hash returns a hash of params as JSON with sorted fields, or "" for nil.
func hash(params any) (string, error) {
	if params == nil {
		return "", nil
	}
	text, err := json.Marshal(params)
	if err != nil {
		return "", err
	}

	var value any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()        // a float64 would make large integers equal
	_ = decoder.Decode(&value) // Marshal has written it
	text, err = json.Marshal(value)
	return fmt.Sprintf("%x", sha256.Sum256(stringOrNumber.ReplaceAllFunc(text, canonical))), err
}

// stringOrNumber matches a string or a number of JSON.
var stringOrNumber = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*`)

// canonical returns a number as a fraction, so that 1, 1.0 and 1e0 are equal. It leaves strings, and
// numbers of which big.Rat would need much memory, as they are.
func canonical(token []byte) []byte {
	_, exponent, _ := bytes.Cut(bytes.ToLower(token), []byte("e"))
	if token[0] == '"' || len(token) > 100 || len(bytes.TrimLeft(exponent, "+-0")) > 2 {
		return token
	}
	value, _ := new(big.Rat).SetString(string(token))
	return []byte(value.RatString())
}
