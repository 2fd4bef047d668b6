package project

import (
	"context"
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
)

// Code names a kind of failure (SEEDS P6).
type Code string

// The codes, and whether another attempt may help.
const (
	Unsupported      Code = "web-lock-unsupported" // no: the other strategy, at once
	AcquireDenied    Code = "acquire-denied"       // yes, while another holds the lease; no at the limit or if refused
	AcquireTimeout   Code = "acquire-timeout"      // yes; no at the limit
	FallbackConflict Code = "fallback-conflict"    // yes, while another holds the file; no at the limit
	LeaseStale       Code = "lease-stale"          // no: the lease was lost, or trust in it has ended
	RenewFailed      Code = "renew-failed"         // yes; read-only after two heartbeats in a row
	ReleaseFailed    Code = "release-failed"       // yes, three times; no after force
)

// Error is the failure of an operation. It wraps its Cause.
type Error struct {
	Code      Code // the kind of failure
	Retryable bool // another attempt may help
	Cause     error
	Context   map[string]any // strategy and retry; force of a release

	retry int
	kill  time.Duration
}

func (e *Error) Error() string {
	return fmt.Sprintf("project: %s: %v", e.Code, e.Cause)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// KillAfter is how long a process that ignores the loss of its lease may live: it
// has then ended before another can take over, if the lease was not renewed in time.
func (e *Error) KillAfter() time.Duration { return e.kill }

// ErrState is the error of an operation that the Locker's state does not allow,
// such as Acquire while read-only.
var ErrState = errors.New("project: not possible in this state")

var (
	errNoRemote = errors.New("no remote store is configured")
	errGone     = fmt.Errorf("%w before its release", lease.ErrLost)
	errReleased = errors.New("project: the lock was released")
	errOther    = errors.New("not the lease that is held")
)

// failure classifies the error of the attempt of h, numbered retry, in the state s.
func (h *holding) failure(s State, err error, retry int) *Error {
	e := &Error{
		Code: AcquireTimeout, Retryable: true, Cause: err,
		Context: map[string]any{"strategy": h.strategy, "retry": retry}, retry: retry,
	}
	switch {
	case errors.Is(err, lease.ErrLost):
		e.Code, e.Retryable = LeaseStale, false
	case s == Renewing:
		e.Code = RenewFailed
	case s == Releasing:
		e.Code, e.Retryable = ReleaseFailed, !h.force
		e.Context["force"] = h.force
	case errors.Is(err, errNoRemote):
		e.Code, e.Retryable = Unsupported, false
	case heldByOther(err) && h.strategy == FileLock:
		e.Code = FallbackConflict
	case heldByOther(err):
		e.Code = AcquireDenied
	case permanent(err):
		e.Code, e.Retryable = AcquireDenied, false
	}
	return e
}

// failed returns the events of a failed attempt.
func (h *holding) failed(e *Error) []Event {
	failed := Event{Type: Failed, Retry: e.retry, Err: e}
	switch e.Code {
	case FallbackConflict:
		return []Event{{Type: Warned, Warning: FallbackDegraded}, failed}
	case ReleaseFailed:
		return []Event{{Type: ReleaseAttempt, Retry: e.retry, Force: h.force, Err: e}, failed}
	}
	return []Event{failed}
}

// heldByOther reports whether another holds the lock.
func heldByOther(err error) bool {
	return errors.As(err, new(*lease.HeldError))
}

// permanent reports whether every further attempt would fail in the same way.
func permanent(err error) bool {
	return errors.Is(err, lease.ErrRefused) || errors.Is(err, lease.ErrInvalidKey) || errors.Is(err, lease.ErrMalformed)
}

// aborted is the error of an operation whose context has ended.
func aborted(ctx context.Context, s State) error {
	return fmt.Errorf("project: %s: %w", s, context.Cause(ctx))
}

// asError returns err if it is this Locker's own *Error, else nil. A wrapped one
// may be the cause of a context, and so another Locker's loss.
func asError(err error) *Error {
	e, _ := err.(*Error) //nolint:errorlint // see above
	return e
}
