package delivery

import (
	"context"
	"encoding/json"
	"errors"

	"taskguard/orchestrator"
)

// selfTestID is the AnalysisID of a self-test's job. There is no such document.
const selfTestID = "self-test"

// SelfTest runs the analyzer once on input, without a document, a lock or a retry. A release
// calls it before a revision gets traffic.
func (g *Guard) SelfTest(ctx context.Context, analyzer orchestrator.Analyzer, input json.RawMessage) Outcome {
	ctx, cancel := context.WithTimeoutCause(ctx, g.RunTimeout, errDeadline)
	defer cancel()

	_, err := orchestrator.Run(ctx, analyzer, orchestrator.Job{AnalysisID: selfTestID, Attempt: 1, Input: input})
	switch cause := context.Cause(ctx); {
	case err == nil:
		return Outcome{Case: SelfTested}
	case errors.Is(cause, ErrStopping):
		return Outcome{Case: NotClaimed, Err: ErrStopping}
	case cause != nil:
		err = cause
	}

	message := orchestrator.Text(err)
	o := Outcome{Case: SelfTestFailed, Err: errors.New(message), Code: CodeFailed, Reason: reasonOf(err)}
	if permanent, ok := errors.AsType[*orchestrator.PermanentError](err); ok {
		o.Code = permanent.Code
	}
	return o
}
