package projectlock

import (
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
	"taskguard/lease/documentlock"
)

// Code says what went wrong (P6).
type Code string

// The codes, and whether it is of use to try again.
const (
	Unsupported      Code = "web-lock-unsupported" // no: the other strategy, at once (R2)
	AcquireDenied    Code = "acquire-denied"       // yes, while another holds the remote lease; no at the limit, or where the store refuses
	AcquireTimeout   Code = "acquire-timeout"      // yes; no at the limit
	FallbackConflict Code = "fallback-conflict"    // yes, while another holds the file; no at the limit
	LeaseStale       Code = "lease-stale"          // no: it cannot be proved any more that the lease is ours (R1)
	RenewFailed      Code = "renew-failed"         // yes; read-only after two heartbeats in a row
	ReleaseFailed    Code = "release-failed"       // yes, three times; no after force
)

// Error is what an operation of a Locker came to (P6). It wraps its Cause.
type Error struct {
	Code      Code
	Retryable bool
	Cause     error
	Context   map[string]any // strategy, retry, and what else is known

	kill time.Duration
}

func (e *Error) Error() string {
	if e.Cause == nil {
		return "projectlock: " + string(e.Code)
	}
	return fmt.Sprintf("projectlock: %s: %v", e.Code, e.Cause)
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Cause }

// KillAfter is how long what ignores the loss of its lease may live, so that it
// has ended before another can have taken over, where time is what was lost.
func (e *Error) KillAfter() time.Duration { return e.kill }

// ErrState answers an operation that the Locker's state does not allow, such as
// Acquire while read-only.
var ErrState = errors.New("projectlock: not possible in this state")

var (
	errNoRemote = errors.New("no remote store is configured")
	errTrust    = errors.New("the lease could not be renewed in time")
	errGone     = errors.New("the lease had ended, or was taken, before its release")
	errReleased = errors.New("projectlock: the lock was released")
	errOther    = errors.New("not the lease that is held")
)

// acquireError is what err, an attempt's, means.
func acquireError(s Strategy, err error) *Error {
	e := &Error{Code: AcquireTimeout, Retryable: true, Cause: err}
	var held *documentlock.HeldError
	switch {
	case errors.Is(err, errNoRemote):
		e.Code, e.Retryable = Unsupported, false
	case errors.As(err, &held):
		e.Code = AcquireDenied
		if s == FileLock {
			e.Code = FallbackConflict
		}
	case hopeless(err):
		e.Code, e.Retryable = AcquireDenied, false
	}
	return e
}

// hopeless: asking again has the same answer.
func hopeless(err error) bool {
	return errors.Is(err, lease.ErrRefused) || errors.Is(err, lease.ErrInvalidKey) || errors.Is(err, lease.ErrMalformed)
}

// fallsBack: the first strategy is unavailable, rather than held (R6).
func fallsBack(e *Error) bool { return e.Code == Unsupported || e.Code == AcquireTimeout }

// renewError is what err, a renewal's, means.
func renewError(err error) *Error {
	if errors.Is(err, documentlock.ErrNotLocked) || errors.Is(err, documentlock.ErrNotYours) {
		return &Error{Code: LeaseStale, Cause: err}
	}
	return &Error{Code: RenewFailed, Retryable: true, Cause: err}
}

// with adds what is known about e.
func (e *Error) with(key string, value any) *Error {
	if e.Context == nil {
		e.Context = map[string]any{}
	}
	e.Context[key] = value
	return e
}
