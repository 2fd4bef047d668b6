package worker

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"

	"taskguard/internal/delivery"
	"taskguard/internal/lifecycle"
	"taskguard/internal/taskauth"
	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/orchestrator"
)

// busyRetry is the Retry-After of Busy.
const busyRetry = 10 * time.Second

// route makes the lifecycle, and the routes of health and recovery.
func (g *Guard) route() {
	g.lifecycle = lifecycle.New(g.work, g.options.Log)
	g.echo = g.newEcho()
	g.echo.POST("/internal/tasks/recover", g.recovery())
}

// newEcho returns an Echo that has the routes of health, and answers errors in JSON.
func (g *Guard) newEcho() *echo.Echo {
	e := echo.New()
	e.HTTPErrorHandler = g.handleError
	e.Use(g.lifecycle.RecoverPanics)
	g.lifecycle.Attach(e)
	return e
}

// handleError answers requests of unknown routes and methods, and errors of handlers.
func (g *Guard) handleError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	o := delivery.Outcome{Case: delivery.Internal, Err: err}
	switch {
	case errors.Is(err, echo.ErrNotFound):
		o.Case = delivery.NoSuchRoute
	case errors.Is(err, echo.ErrMethodNotAllowed):
		o.Case = delivery.WrongMethod
	}
	if err := send(c, delivery.Record{Outcome: o}); err != nil {
		g.options.Log.WarnContext(c.Request().Context(), "answer not sent", "error", err)
	}
}

// recovery returns the handler of POST /internal/tasks/recover. It recovers all kinds, and
// ignores the request's body. A stop waits for it. It does not count towards MaxRuns.
func (g *Guard) recovery() echo.HandlerFunc {
	return g.internal(telemetry.Recovery, &delivery.Guard{Telemetry: g.telemetry}, (*call).recover)
}

// selfTest returns the handler of /internal/self-test. It runs the analyzer once on Options.SelfTest
// and answers whether the run succeeded, or 404 without an input. The run counts towards MaxRuns,
// and a stop ends it.
func (g *Guard) selfTest(d *delivery.Guard, analyzer orchestrator.Analyzer) echo.HandlerFunc {
	return g.internal(telemetry.SelfTest, d, func(c *call) delivery.Outcome {
		if g.options.SelfTest == nil {
			return delivery.Outcome{Case: delivery.NotConfigured}
		}
		if refusal, begun := c.begin(); !begun {
			return refusal
		}
		return d.SelfTest(c.context(), analyzer, g.options.SelfTest)
	})
}

// internal returns the handler of an internal route. It checks the caller, calls handle, and logs
// one line. name is the name of the line and of the span; d has the kind and the telemetry. The
// handler answers errors and panics itself, so it works in any Echo.
func (g *Guard) internal(name string, d *delivery.Guard, handle func(*call) delivery.Outcome) echo.HandlerFunc {
	answer := g.lifecycle.RecoverPanics(func(c echo.Context) error {
		if c.Request().Method != http.MethodPost {
			return echo.ErrMethodNotAllowed
		}
		current := &call{Guard: g, name: name, guard: d, echo: c, started: time.Now(), span: telemetry.NoSpan()}
		defer current.end()
		current.serve(handle)
		return send(c, current.record)
	})
	return func(c echo.Context) error {
		if err := answer(c); err != nil {
			g.handleError(err, c)
		}
		return nil
	}
}

// call is one request to an internal route.
type call struct {
	*Guard
	name    string
	guard   *delivery.Guard
	echo    echo.Context
	started time.Time
	span    telemetry.Span
	begun   bool // it counts as a run
	record  delivery.Record
}

// serve handles the call, and logs its record, even if the handler panics. A caller that is
// refused gets no span: otherwise any client could choose what is traced.
func (c *call) serve(handle func(*call) delivery.Outcome) {
	c.record.Case = delivery.Internal // of a panic
	defer c.writeLog()                // which closes the span: a deferred End would record the panic's value

	r := c.echo.Request()
	if err := c.auth.Check(r); err != nil {
		c.record.Outcome = refusal(err)
		return
	}
	c.record.Kind = c.guard.Kind
	ctx := telemetry.Extract(r.Context(), r.Header)
	ctx, c.span = c.guard.Telemetry.Serve(ctx, c.name)
	c.echo.SetRequest(r.WithContext(ctx))
	c.record.Outcome = handle(c)
}

// refusal returns the outcome for a caller that the Authenticator refuses with err.
func refusal(err error) delivery.Outcome {
	switch {
	case errors.Is(err, taskauth.ErrForbidden):
		return delivery.Outcome{Case: delivery.Forbidden, Err: err}
	case errors.Is(err, taskauth.ErrNoKeys):
		return delivery.Outcome{Case: delivery.Unavailable, Err: err}
	}
	return delivery.Outcome{Case: delivery.Unauthenticated, Err: err}
}

// deliver handles a delivery (SEEDS G2).
func (c *call) deliver(analyzer orchestrator.Analyzer, parse parser) delivery.Outcome {
	d, err := parse(c.echo.Response(), c.echo.Request(), c.guard.Kind.IDField)
	c.record.Tries = d.Tries
	if taskqueue.ValidName(d.Task) { // any client can set it
		c.record.Task = d.Task
	}
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return delivery.Outcome{Case: delivery.TooLarge}
	case errors.Is(err, errIncomplete):
		return delivery.Outcome{Case: delivery.Incomplete, Err: err}
	case err != nil:
		return delivery.Outcome{Case: delivery.BadRequest, Err: err}
	}

	c.record.ID = d.AnalysisID // for the log line of a panic
	if refusal, begun := c.begin(); !begun {
		refusal.ID = delivery.ValidID(d.AnalysisID)
		return refusal
	}
	d.Analyzer = analyzer
	o := c.guard.Deliver(c.context(), d)
	o.Result = nil // no answer has it, and it may be large
	return o
}

// recover recovers the kinds that have a handler.
func (c *call) recover() delivery.Outcome {
	defer c.lifecycle.Track()()
	if c.work.Err() != nil {
		return delivery.Outcome{Case: delivery.NotRecovered, Err: ErrStopping}
	}

	c.mu.Lock()
	guards := slices.Clone(c.handled)
	c.mu.Unlock()
	var report sync.WaitGroup
	abandoned := 0
	report.Go(func() { abandoned = c.reportRecords(c.context()) })
	r, err := delivery.RecoverAll(c.context(), guards)
	report.Wait()
	r.Abandoned = abandoned

	o := delivery.Outcome{Case: delivery.Recovered, Recovery: r, Err: err}
	switch {
	case errors.Is(err, delivery.ErrNoQueue):
		o.Case = delivery.NoQueue
	case err != nil && r.Booked+r.Waiting == 0:
		o.Case = delivery.NotRecovered
	}
	return o
}

// begin counts the call as a run, or returns the outcome of a refusal.
func (c *call) begin() (refusal delivery.Outcome, begun bool) {
	switch err := c.lifecycle.Begin(c.options.MaxRuns); {
	case errors.Is(err, lifecycle.ErrFull):
		return delivery.Outcome{Case: delivery.Busy, RetryIn: busyRetry}, false
	case err != nil:
		return delivery.Outcome{Case: delivery.NotClaimed, Err: ErrStopping}, false
	}
	c.begun = true
	return delivery.Outcome{}, true
}

// end ends the call's run, after its answer has been written.
func (c *call) end() {
	if c.begun {
		c.lifecycle.End()
	}
}

// context returns the context of all runs, with the span of the call.
func (c *call) context() context.Context { return telemetry.Carry(c.work, c.echo.Request().Context()) }

// writeLog writes the one log line of the call, and ends its span.
func (c *call) writeLog() {
	r := &c.record
	r.HTTPStatus, _ = answerTo(*r)
	r.Took = time.Since(c.started)

	ctx, outcome := c.echo.Request().Context(), r.Case.String()
	if c.name == telemetry.Delivery {
		status := attribute.Int(telemetry.Status, r.HTTPStatus)
		c.guard.Telemetry.Record(ctx, telemetry.Deliveries, 1, telemetry.ByOutcome(outcome), status)
	}
	level, message := r.Level(), c.name
	if rejected(*r) {
		level, message = slog.LevelError, "rejected"
		c.guard.Telemetry.Record(ctx, telemetry.Rejections, 1, telemetry.ByOutcome(outcome))
	}

	c.options.Log.LogAttrs(ctx, level, message, r.Attrs()...) //nolint:sloglint // four messages
	c.span.Describe(delivery.ValidID(r.ID), r.Token, r.Attempt)
	c.span.Close(outcome, r.HTTPStatus >= http.StatusInternalServerError)
}
