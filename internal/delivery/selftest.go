package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"taskguard/internal/text"
	"taskguard/orchestrator"
)

// selfTestID is the AnalysisID of a self-test's job. There is no such document.
const selfTestID = "self-test"

// SelfTest runs the analyzer once on input, without a document, a lock or a retry. A release
// calls it before a revision gets traffic. Without a document no act can be marked, so an act fails it.
// With an error of the run, it returns a code for programs, and how the analyzer failed, which is safe to
// log. With ErrStopping, the code is empty.
func (runner *Runner) SelfTest(ctx context.Context, analyzer orchestrator.Analyzer, input json.RawMessage,
) (code, reason string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, runner.RunTimeout, errDeadline)
	defer cancel()

	tester := &tester{}
	_, err = orchestrator.Run(ctx, analyzer, orchestrator.Job{
		AnalysisID: selfTestID, Attempt: 1, Input: input, SelfTest: true, Reporter: tester,
	})
	err = tester.judge(err)
	switch cause := context.Cause(ctx); {
	case err == nil:
		return "", "", nil
	case errors.Is(cause, ErrStopping):
		return "", "", ErrStopping
	case cause != nil:
		err = cause
	}

	code, reason = CodeFailed, reasonOf(err)
	if permanent, ok := errors.AsType[*orchestrator.PermanentError](err); ok {
		code, err = permanent.Code, permanent
	}
	return code, reason, errors.New(text.Error(err))
}

// tester is the Reporter of a self-test: it drops reports, and refuses acts.
type tester struct{ acts }

func (*tester) Report(orchestrator.Report)                        {}
func (*tester) Commit(context.Context, orchestrator.Report) error { return nil }
func (*tester) Invalid(string)                                    {}

func (t *tester) Begin(_ context.Context, name string, _ bool) (*orchestrator.Act, error) {
	return nil, t.refuseAct(name)
}

func (t *tester) End(_ context.Context, name string, _ *orchestrator.Act) error {
	return t.refuseAct(name)
}

func (t *tester) refuseAct(name string) error {
	return t.refuse(&orchestrator.PermanentError{Code: orchestrator.CodeActInSelfTest, Message: fmt.Sprintf(
		"the input of a self-test must not lead to an act, here %q: each self-test would do it again", name)})
}
