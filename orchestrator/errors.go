package orchestrator

import "fmt"

// The codes of a [PermanentError] made by this package. An analyzer of your own
// may use others.
const (
	CodeAnalyzerRejected = "analyzer_rejected" // the analyzer itself said so
	CodeInvalidInput     = "invalid_input"     // the analyzer cannot work on this input
	CodeResultInvalid    = "result_invalid"    // the document cannot hold the result
	CodeResultTooLarge   = "result_too_large"  // nor one of this size
)

// CodeInvalidOutput is the code of a [FailureError] whose analyzer ended well, and
// whose output is not JSON although it must be.
const CodeInvalidOutput = "invalid_output"

// PermanentError says that retrying cannot help: the analysis is FAILED. Code
// and Message are what its document will show.
type PermanentError struct {
	Code    string
	Message string
	Err     error // may be nil
}

func (e *PermanentError) Error() string { return "orchestrator: " + e.Code + ": " + e.Message }

// Unwrap returns Err.
func (e *PermanentError) Unwrap() error { return e.Err }

// FailureError is a failure for now of a program or an endpoint.
type FailureError struct {
	Code   string // CodeInvalidOutput or empty
	Reason string // fit for a log: who, and the exit or HTTP status or what the system said
	Said   string // the analyzer's own words, which may hold its input; may be empty
	Err    error  // may be nil
}

func (e *FailureError) Error() string {
	if e.Said == "" {
		return "orchestrator: " + e.Reason
	}
	return "orchestrator: " + e.Reason + ": " + e.Said
}

// Unwrap returns Err.
func (e *FailureError) Unwrap() error { return e.Err }

// PanicError is an analyzer's panic, which is a failure for now, whatever the
// value: it wraps nothing.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine that panicked, as runtime/debug.Stack has it
}

// Error leaves the stack out.
func (e *PanicError) Error() string {
	return fmt.Sprintf("orchestrator: the analyzer panicked: %v", e.Value)
}
