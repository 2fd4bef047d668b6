package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"taskguard/internal/text"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// runEnd says how a run ended.
type runEnd struct {
	result      any
	err         error // from the analyzer, unless the lock was lost or the input could not be read
	analyzerErr error // always from the analyzer
	began       bool  // the input was read
	cause       error // why the run's context ended, if that was before the analyzer returned
}

// failure is why a run failed, for the document, which users read.
type failure struct{ code, message string }

// permanentFailure returns the failure that err describes.
func permanentFailure(err *orchestrator.PermanentError) failure {
	message := err.Message
	if message == "" && err.Err != nil {
		message = text.Error(err.Err)
	}
	return failure{cmp.Or(analysislock.BoundCode(err.Code), orchestrator.CodeAnalyzerRejected), message}
}

// temporary returns the failure of a run that can be tried again.
func (e runEnd) temporary(runner *Runner) failure {
	var coded *orchestrator.FailureError
	var code string
	switch {
	case errors.Is(e.cause, errDeadline):
		return failure{CodeRunTimeout,
			fmt.Sprintf("the run took longer than RUN_TIMEOUT, %v, without a new checkpoint", runner.RunTimeout)}
	case errors.Is(e.cause, errStalled):
		return failure{CodeStalled,
			fmt.Sprintf("the run reported nothing for longer than STALL_TIMEOUT, %v", runner.StallTimeout)}
	case errors.As(e.err, &coded):
		code = analysislock.BoundCode(coded.Code)
	case errors.As(e.err, new(*orchestrator.PanicError)):
		code = CodePanicked
	}
	return failure{cmp.Or(code, CodeFailed), text.Error(e.err)}
}

// pause returns the wait that the analyzer has asked for; zero: none. An analyzer that was ended by
// a limit of time does not choose the wait.
func (e runEnd) pause() time.Duration {
	var later *orchestrator.RetryAfterError
	if e.cause != nil || !errors.As(e.err, &later) {
		return 0
	}
	return later.After()
}

// reasonOf returns how an analyzer failed, without its message, which may contain its input. It
// is empty after the end of the analyzer's context, and if the code of the error is the reason.
func reasonOf(err error) string {
	var coded *orchestrator.FailureError
	switch {
	case err == nil, errors.As(err, new(*orchestrator.PermanentError)):
		return ""
	case errors.As(err, &coded) && coded.Reason != "":
		return coded.Reason
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ""
	}
	return fmt.Sprintf("the analyzer returned a %T", err)
}
