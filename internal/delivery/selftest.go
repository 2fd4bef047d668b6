package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/labstack/echo/v4"

	"taskguard/internal/lifecycle"
	"taskguard/internal/telemetry"
	"taskguard/orchestrator"
)

// selfTestID is the AnalysisID of a self-test's job. There is no such document.
const selfTestID = "self-test"

// RouteSelfTest adds the route /internal/self-test, which runs g's analyzer once on input,
// without a document, a lock or a retry, and answers whether it succeeded. A release calls it
// before a revision gets traffic. With a nil input it answers 404. The run counts towards
// MaxRuns, and a stop ends it.
func (s *Server) RouteSelfTest(g *Guard, input json.RawMessage) {
	guarded := func() *Guard { return g }

	s.echo.POST("/internal/self-test", s.internal(telemetry.SelfTest, guarded, func(c echo.Context, o *Outcome, begin func() error) Outcome {
		o.Kind = g.Kind
		if input == nil {
			return Outcome{Case: NotConfigured}
		}

		switch err := begin(); {
		case errors.Is(err, lifecycle.ErrFull):
			return Outcome{Case: Busy, RetryIn: busyRetry}
		case err != nil:
			return Outcome{Case: NotClaimed, Err: ErrStopping}
		}
		return g.selfTest(telemetry.Carry(s.work, c.Request().Context()), input)
	}))
}

func (g *Guard) selfTest(ctx context.Context, input json.RawMessage) Outcome {
	ctx, cancel := context.WithTimeoutCause(ctx, g.RunTimeout, errDeadline)
	defer cancel()

	_, err := orchestrator.Run(ctx, g.Analyzer, orchestrator.Job{AnalysisID: selfTestID, Attempt: 1, Input: input})
	switch cause := context.Cause(ctx); {
	case err == nil:
		return Outcome{Case: SelfTested}
	case errors.Is(cause, ErrStopping):
		return Outcome{Case: NotClaimed, Err: ErrStopping}
	case cause != nil:
		err = cause
	}

	o := Outcome{Case: SelfTestFailed, Err: errors.New(strings.TrimPrefix(err.Error(), "orchestrator: ")), Code: "analyzer_failed"}
	var permanent *orchestrator.PermanentError
	var failure *orchestrator.FailureError
	switch {
	case errors.As(err, &permanent):
		o.Code = permanent.Code
	case errors.As(err, &failure):
		o.Reason = failure.Reason
	}
	return o
}
