package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// The codes of a [PermanentError] made by this package. An analyzer of your own
// may use others.
const (
	CodeAnalyzerRejected = "analyzer_rejected" // the analyzer rejected the job
	CodeInvalidInput     = "invalid_input"     // the analyzer cannot use this input
	CodeResultInvalid    = "result_invalid"    // a document cannot hold the result
	CodeResultTooLarge   = "result_too_large"  // the result is too large for a document
)

// The codes of a [PermanentError] about an act. The run ends with it, even if the analyzer ignores the error.
const (
	CodeActReused     = "act_name_reused"  // two acts with one name in one run
	CodeActsFull      = "acts_full"        // no room for the act or its result
	CodeActInSelfTest = "act_in_self_test" // the input of a self-test must not lead to an act
	// CodeActNameInvalid is used by Once and for endpoints. A program gets the error as a reply.
	CodeActNameInvalid = "act_name_invalid"
)

// CodeInvalidOutput is the code of a [FailureError] for an analyzer that succeeded,
// but whose output is not JSON as required.
const CodeInvalidOutput = "invalid_output"

// PermanentError means that a retry cannot help: the analysis becomes FAILED, with
// Code and Message in its document.
type PermanentError struct {
	Code    string
	Message string
	Err     error // may be nil
}

func (e *PermanentError) Error() string { return e.Code + ": " + e.Message }

// Unwrap returns Err.
func (e *PermanentError) Unwrap() error { return e.Err }

// FailureError is a failure of a program or an endpoint that a retry may cure.
type FailureError struct {
	Code    string // CodeInvalidOutput, the code that the analyzer has reported, or empty
	Reason  string // safe to log: the analyzer, and its exit status, HTTP status or the system's error
	Message string // the analyzer's own message, which may contain its input; may be empty
	Err     error  // may be nil
}

func (e *FailureError) Error() string {
	if e.Message == "" {
		return "orchestrator: " + e.Reason
	}
	return "orchestrator: " + e.Reason + ": " + e.Message
}

// Unwrap returns Err.
func (e *FailureError) Unwrap() error { return e.Err }

// ErrUnknown reports that a change may have been committed or not, for example because its caller
// stopped waiting. Any other error of a commit means that the change was not committed.
var ErrUnknown = errors.New("orchestrator: unknown whether this was committed")

// The shortest and the longest wait that a RetryAfterError can ask for.
const (
	MinRetryAfter = time.Second
	MaxRetryAfter = 12 * time.Hour
)

// retryAfter limits a requested wait to the two limits. It returns 0, which stands for the usual
// backoff, for zero, a negative number or NaN.
func retryAfter(seconds float64) time.Duration {
	if !(seconds > 0) {
		return 0
	}
	within := min(max(seconds, MinRetryAfter.Seconds()), MaxRetryAfter.Seconds())
	return time.Duration(math.Round(within * float64(time.Second)))
}

// RetryAfterError is the temporary failure Err with the wait until the next attempt. The failed
// attempt is not counted, at most 100 times in a row.
type RetryAfterError struct {
	Wait time.Duration // the requested wait; see After
	Err  error         // may be nil
}

// After returns the Wait, limited to MinRetryAfter and MaxRetryAfter. It returns 0 for a Wait that is
// not positive: the usual backoff follows.
func (e *RetryAfterError) After() time.Duration { return retryAfter(e.Wait.Seconds()) }

func (e *RetryAfterError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("orchestrator: to be called again after %v", e.Wait)
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *RetryAfterError) Unwrap() error { return e.Err }

// PanicError is a panic of an analyzer. The job is retried, even if the value is a PermanentError.
type PanicError struct {
	Value any    // what recover returned
	Stack []byte // the stack of the goroutine that panicked
}

// Error returns a message without the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("the analyzer panicked: %v", e.Value)
}

// defaultPatience is how long an analyzer that has gone away waits for the end of its context. In a stop of
// the instance, it may get its signal before this process does, and must not count as failed.
const defaultPatience = 2 * time.Second

// contextError returns an error that wraps the error and the cause of ctx, or nil if
// ctx has not ended.
func contextError(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		return fmt.Errorf("orchestrator: %w: %w", err, cause)
	}
	return fmt.Errorf("orchestrator: %w", err)
}
