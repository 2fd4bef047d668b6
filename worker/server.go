package worker

import (
	"cmp"
	"context"
	"encoding/json"
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
	"taskguard/internal/text"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
)

// busyRetry is the Retry-After of busy, in seconds.
const busyRetry = "10"

// errAlone is why a worker with free places is busy; see delivery.Places.
var errAlone = errors.New("worker: an analysis that may kill its worker runs alone here, or is about to")

// route makes the lifecycle, and the routes of health and recovery.
func (g *Guard) route() {
	g.lifecycle = lifecycle.New(g.work, g.options.Log)
	g.echo = g.newEcho()
	g.echo.POST("/internal/tasks/recover", echo.WrapHandler(g.recovery()))
}

// newEcho returns an Echo that has the routes of health, and answers errors in JSON.
func (g *Guard) newEcho() *echo.Echo {
	e := echo.New()
	e.HTTPErrorHandler = g.handleError
	g.lifecycle.Attach(e)
	return e
}

// handleError answers requests of unknown routes and methods, and errors of handlers.
func (g *Guard) handleError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	f := internalError
	switch {
	case errors.Is(err, echo.ErrNotFound):
		f = noSuchRoute
	case errors.Is(err, echo.ErrMethodNotAllowed):
		f = wrongMethod
	}
	g.writeAnswer(c.Response(), c.Request(), f.code, answer{Reason: f.outcome})
}

// writeAnswer writes the answer to a request as JSON.
func (g *Guard) writeAnswer(w http.ResponseWriter, r *http.Request, code int, a answer) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(a); err != nil {
		g.options.Log.WarnContext(r.Context(), "answer not sent", "error", err)
	}
}

// recovery returns the handler of POST /internal/tasks/recover. It recovers all kinds, and
// ignores the request's body. A stop waits for it. It does not count towards MaxRuns.
func (g *Guard) recovery() http.Handler {
	runner := &delivery.Runner{Telemetry: g.telemetry}
	return &route{guard: g, name: telemetry.Recovery, runner: runner, serve: (*call).recover}
}

// selfTest returns the handler of /internal/self-test. It runs the analyzer once on Options.SelfTest
// and answers whether the run succeeded, or 404 without an input. The run counts towards MaxRuns,
// and a stop ends it.
func (g *Guard) selfTest(runner *delivery.Runner, analyzer orchestrator.Analyzer) http.Handler {
	return &route{guard: g, name: telemetry.SelfTest, runner: runner, analyzer: analyzer, serve: (*call).selfTest}
}

// route is the handler of an internal route.
type route struct {
	guard    *Guard
	name     string           // of its log line and its span
	runner   *delivery.Runner // has the kind of work and the telemetry
	analyzer orchestrator.Analyzer
	start    func(ctx context.Context, id string) error // Kind.Start
	parse    parser                                     // reads a delivery from the request
	serve    func(*call)                                // does the work, and sets the answer
}

// call is one request to an internal route.
type call struct {
	*route

	w       http.ResponseWriter
	r       *http.Request
	started time.Time
	span    telemetry.Span
	place   *delivery.Place // where its run is; nil: it has not begun

	code       int
	answer     answer
	retryAfter string // header; empty: none
	level      slog.Level
	line       delivery.LogLine
}

// ServeHTTP checks the caller, does the work, logs one line and answers, also if the work panics. A
// caller that is refused gets no span: otherwise any client could choose what is traced.
func (r *route) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		r.guard.writeAnswer(w, req, wrongMethod.code, answer{Reason: wrongMethod.outcome})
		return
	}
	c := &call{route: r, w: w, r: req, started: time.Now(), span: telemetry.NoSpan()}
	defer c.end()

	if err := r.guard.auth.Check(req); err != nil {
		c.refuse(err)
		return
	}
	c.line.Names = r.runner.Names
	ctx := telemetry.Extract(req.Context(), req.Header)
	ctx, c.span = r.runner.Telemetry.Serve(ctx, r.name)
	c.r = req.WithContext(ctx)
	r.serve(c)
}

// refuse sets the answer to a caller that the Authenticator refuses with err.
func (c *call) refuse(err error) {
	switch {
	case errors.Is(err, taskauth.ErrForbidden):
		c.reply(forbidden, err)
	case errors.Is(err, taskauth.ErrNoKeys):
		c.reply(formOf(delivery.Unavailable), err)
	default:
		c.reply(unauthenticated, err)
		c.w.Header().Set("WWW-Authenticate", "Bearer")
	}
}

// deliver handles a delivery (SEEDS G2).
func (c *call) deliver() {
	d, err := c.parse(c.w, c.r, c.runner.Names.IDField)
	c.line.Tries = d.Tries
	if taskqueue.ValidName(d.Task) { // any client can set it
		c.line.Task = d.Task
	}
	if err != nil {
		c.replyUnread(err)
		return
	}

	c.line.ID = d.AnalysisID // for the log line of a panic
	if !c.begin() {
		return
	}
	d.Analyzer, d.Start, d.Place = c.analyzer, c.start, c.place
	r := c.runner.Deliver(c.context(), d)
	r.Value = nil // no answer has it, and it may be large
	c.line.Result = r
	c.reply(formOf(r.Reason), r.Err)
	c.replyDelivered(r)
}

// replyUnread sets the answer to a request that has no delivery. Its task is acknowledged: no other try
// can succeed, unless the body did not arrive in full.
func (c *call) replyUnread(err error) {
	if errors.As(err, new(*http.MaxBytesError)) {
		c.reply(tooLarge, nil)
	} else {
		c.reply(badRequest, err)
	}
	if c.line.Task != "" && !errors.Is(err, errIncomplete) {
		c.code, c.answer.Rejected = http.StatusOK, true
	}
}

// replyDelivered adds the result of a delivery to the answer. A 2xx status deletes the task.
func (c *call) replyDelivered(r delivery.Result) {
	c.level = r.Level()
	a := &c.answer
	a.IDField, a.AnalysisID = c.line.Names.IDField, r.ID
	a.Status, a.Rejected = cmp.Or(r.Status, a.Status), r.Rejected
	if r.Reason == delivery.Completed {
		a.LockToken = r.Token
	}
	if !r.RetryAt.IsZero() {
		a.RetryAt = iso8601.Format(r.RetryAt)
	}
	if r.Ack {
		c.code = http.StatusOK
	} else {
		c.retryAfter = retryAfter(r.Reason, r.RetryIn)
	}
}

// recover recovers the kinds that have a handler.
func (c *call) recover() {
	g := c.guard
	defer g.lifecycle.Track()()
	if g.work.Err() != nil {
		c.replyRecovered(notRecovered, ErrStopping, delivery.Recovery{})
		return
	}

	g.mu.Lock()
	runners := slices.Clone(g.handled)
	g.mu.Unlock()
	var report sync.WaitGroup
	abandoned := 0
	report.Go(func() { abandoned = g.reportRecords(c.context()) })
	r, err := delivery.RecoverAll(c.context(), runners)
	report.Wait()
	r.Abandoned = abandoned

	switch {
	case errors.Is(err, delivery.ErrNoQueue):
		c.reply(noQueue, err)
	case err != nil && r.Booked+r.Waiting == 0:
		c.replyRecovered(notRecovered, err, r)
	default:
		c.replyRecovered(recovered, err, r)
	}
}

func (c *call) replyRecovered(f form, err error, r delivery.Recovery) {
	c.reply(f, err)
	c.answer.Recovery, c.line.Recovery, c.line.Recovers = &r, r, true
}

// selfTest runs the self-test.
func (c *call) selfTest() {
	input := c.guard.options.SelfTest
	if input == nil || c.analyzer == nil { // a kind with a Start has no Run
		c.reply(notConfigured, nil)
		return
	}
	if !c.begin() {
		return
	}

	code, reason, err := c.runner.SelfTest(c.context(), c.analyzer, input)
	switch {
	case err == nil:
		c.reply(selfTested, nil)
	case code == "":
		c.reply(formOf(delivery.NotClaimed), err)
	default:
		c.reply(selfTestFailed, err)
		c.line.Code, c.line.Failure = code, reason
	}
}

// reply sets the answer, and what the log line says of it.
func (c *call) reply(f form, err error) {
	c.code, c.answer = f.code, answer{Acquired: f.acquired, Status: f.status}
	if f.status == "" && f != recovered { // a recovery that succeeds has only its numbers
		c.answer.Reason = f.outcome
	}
	if f.error && err != nil {
		c.answer.Error = text.Head(text.Error(err), delivery.MaxText)
	}

	c.line.Outcome, c.line.Err, c.level = f.outcome, err, slog.LevelWarn
	if f.code == http.StatusOK && err == nil {
		c.level = slog.LevelInfo
	}
}

// begin counts the call as a run. It returns false, and sets the answer, if the worker is full or stops.
func (c *call) begin() bool {
	if c.guard.lifecycle.Begin(0) != nil {
		c.reply(formOf(delivery.NotClaimed), ErrStopping)
	} else {
		place, free := c.guard.places.Enter()
		if free {
			c.place = place
			return true
		}
		c.guard.lifecycle.End()
		var why error
		if c.guard.places.Suspect() {
			why = errAlone
		}
		c.reply(busy, why)
		c.retryAfter = busyRetry
	}
	c.line.ID = delivery.ValidID(c.line.ID)
	c.answer.IDField, c.answer.AnalysisID = c.line.Names.IDField, c.line.ID
	return false
}

// context returns the context of all runs, with the span of the call.
func (c *call) context() context.Context {
	return telemetry.Carry(c.guard.work, c.r.Context())
}

// end logs the call and answers. It is deferred, and recovers a panic of the work. The call's run ends
// after its answer has been written.
func (c *call) end() {
	if c.place != nil {
		defer c.guard.lifecycle.End()
		defer c.place.Leave()
	}
	if p := recover(); p != nil {
		c.guard.lifecycle.LogPanic(c.r.Context(), p)
		c.reply(internalError, nil)
	}

	c.writeLog()
	if c.retryAfter != "" {
		c.w.Header().Set("Retry-After", c.retryAfter)
	}
	c.guard.writeAnswer(c.w, c.r, c.code, c.answer)
}

// writeLog writes the one log line of the call, and ends its span.
func (c *call) writeLog() {
	line, runner, ctx := &c.line, c.runner, c.r.Context()
	line.HTTPStatus, line.Took = c.code, time.Since(c.started)
	if c.name == telemetry.Delivery {
		status := attribute.Int(telemetry.Status, c.code)
		runner.Telemetry.Record(ctx, telemetry.Deliveries, 1, telemetry.ByOutcome(line.Outcome), status)
	}
	level, message := c.level, c.name
	if c.answer.Rejected {
		level, message = slog.LevelError, "rejected"
		runner.Telemetry.Record(ctx, telemetry.Rejections, 1, telemetry.ByOutcome(line.Outcome))
	}

	c.guard.options.Log.LogAttrs(ctx, level, message, line.Attrs()...) //nolint:sloglint // four messages
	c.span.Describe(delivery.ValidID(line.ID), line.Token, line.Attempt)
	c.span.Close(line.Outcome, c.code >= http.StatusInternalServerError)
}
