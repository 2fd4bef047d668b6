package worker

import (
	"time"

	"taskguard/lease"
	"taskguard/orchestrator"
)

// Errors of several functions, for errors.Is. They are those of package lease.
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

// PermanentError is an error of a Run that no retry can help: the document becomes FAILED; see
// Permanent.
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

// RetryAfterError is a temporary failure with the wait until the next attempt; see RetryAfter.
//
//	Wait time.Duration
//	Err  error // what Unwrap returns; may be nil
type RetryAfterError = orchestrator.RetryAfterError

// Permanent returns a *PermanentError. Code has up to 64 bytes, and is for programs, such as
// "no_page"; message is for people. err is what errors.Is and errors.As find; it may be nil.
func Permanent(code, message string, err error) error {
	return &orchestrator.PermanentError{Code: code, Message: message, Err: err}
}

// RetryAfter returns err, a temporary failure of a Run, with the wait until the next attempt. The
// failed attempt is not counted, at most 100 times in a row; then one is. The wait is d, at least 1 s
// and at most 12 h. If d is not positive, or err wraps a PermanentError, the error is handled like err
// alone. MaxRunTime limits all attempts together.
func RetryAfter(err error, d time.Duration) error {
	return &orchestrator.RetryAfterError{Wait: d, Err: err}
}
