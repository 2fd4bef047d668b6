package worker

import (
	"errors"
	"fmt"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/text"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// Errors of several functions, for errors.Is. Package lease has the same values.
var (
	// ErrLost reports that the lock was lost: another owner has it, the document was finished or
	// deleted, or the lock was not renewed in time. It is the cause of a run's context.
	ErrLost = lease.ErrLost
	// ErrUnavailable reports that Firestore did not answer in time. A write may have succeeded.
	ErrUnavailable = lease.ErrUnavailable
	// ErrInvalidKey reports an id or a key that Firestore cannot hold.
	ErrInvalidKey = lease.ErrInvalidKey
	// ErrNotFound reports that there is no such document.
	ErrNotFound = lease.ErrNotFound
	// ErrRefused reports that Firestore refuses a write or a query, so that no later try can succeed.
	ErrRefused = lease.ErrRefused
	// ErrUnknown reports that a checkpoint, or the record of an act's end, may be committed or not: the
	// context ended, or the lock was lost, before Firestore had answered. Do not undo the act.
	ErrUnknown = orchestrator.ErrUnknown
)

// Policy configures a lock; see Options.Lock:
//
//	TTL         time.Duration // how long a lock is valid after each renewal; the default is 300 s
//	Heartbeat   time.Duration // the time between two renewals; the default is a third of the TTL
//	MaxAttempts int           // how many attempts a document gets; the default in Options is 10
type Policy = lease.Policy

// PermanentError is an error of a Run that no retry can help: the document becomes FAILED. See Permanent.
//
//	Code    string // the code in the document's error, for programs
//	Message string // the message in the document's error, for people; the default is the text of Err
//	Err     error  // what Unwrap returns; may be nil
type PermanentError = orchestrator.PermanentError

// PanicError is a panic of a Run, which is retried.
//
//	Value any    // what recover returned
//	Stack []byte // the stack of the goroutine that panicked
type PanicError = orchestrator.PanicError

// RetryAfterError is a temporary failure that says when to retry. See RetryAfter.
//
//	Wait time.Duration
//	Err  error // what Unwrap returns; may be nil
type RetryAfterError = orchestrator.RetryAfterError

// Permanent returns a *PermanentError, which ends the work as FAILED. code is for programs, such as "no_page", and has
// up to 64 bytes; message is for people. err is what errors.Is and errors.As find; it may be nil.
func Permanent(code, message string, err error) error {
	return &orchestrator.PermanentError{Code: code, Message: message, Err: err}
}

// RetryAfter returns err as a temporary failure of a Run that says how long to wait before the next attempt, for
// example after a 429. Waits last at least 1 s and are capped at 12 h. The failed attempt is not counted, but after 100
// such attempts in a row, one is; MaxRunTime limits all attempts together. If d is not positive, the normal backoff
// follows, and the attempt counts. If err wraps a PermanentError, the work is FAILED.
func RetryAfter(err error, d time.Duration) error {
	return &orchestrator.RetryAfterError{Wait: d, Err: err}
}

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

// FailedError reports that the function failed for good: it returned an *orchestrator.PermanentError, or a result that
// Firestore cannot hold. Each later call returns the same failure, in which errors.As finds an
// *orchestrator.PermanentError with this Code and Message.
type FailedError struct {
	Code, Message string // the error in the record
	Err           error  // what the function returned, if this call ran it
}

func (e *FailedError) Error() string { return "failed: " + e.Code + ": " + e.Message }

// Unwrap returns an *orchestrator.PermanentError that wraps Err.
func (e *FailedError) Unwrap() error {
	return &orchestrator.PermanentError{Code: e.Code, Message: e.Message, Err: e.Err}
}

// NotStoredError reports that the function, or the act of Once, returned a value in this call, and that the value may
// not be stored. Err is the reason: lease.ErrLost if the lock was lost; lease.ErrUnavailable, after which the value may
// be stored; in Do, a *FailedError if Firestore cannot hold the value. An act whose result cannot be stored is recorded
// as done: do not do it again.
type NotStoredError struct {
	Value any // what the function returned
	Err   error
}

func (e *NotStoredError) Error() string {
	return "worker: the value is not known to be stored: " + text.Error(e.Err)
}

// Unwrap returns Err.
func (e *NotStoredError) Unwrap() error { return e.Err }

// ResultError reports that the stored result does not decode as the caller's type, or that an act is recorded as done
// without its result.
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
