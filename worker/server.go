package worker

import (
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
	"taskguard/internal/telemetry"
	"taskguard/orchestrator"
)

// busyRetry is the Retry-After of Busy.
const busyRetry = 10 * time.Second

// server answers the requests of several kinds of work. Their guards decide the outcomes.
type server struct {
	// Lifecycle counts the runs. A run begins when its request has been read, and ends
	// when its answer has been written.
	*lifecycle.Lifecycle
	maxRuns int // limits the deliveries that are handled at once; zero: no limit
	auth    Authenticator
	// work is the context of all runs. It ends with the cause ErrStopping to stop the process.
	// A client that hangs up does not end its run.
	work      context.Context //nolint:containedctx // see above
	log       *slog.Logger
	telemetry *telemetry.Telemetry // of recoveries
	echo      *echo.Echo

	mu     sync.Mutex
	guards []*delivery.Guard // of the kinds that have a handler
}

// newServer returns a server that has the routes of health and recovery. t records recoveries.
func newServer(work context.Context, log *slog.Logger, auth Authenticator, t *telemetry.Telemetry) *server {
	s := &server{Lifecycle: lifecycle.New(work, log), auth: auth, work: work, log: log, telemetry: t}
	s.echo = s.newEcho()
	s.echo.POST("/internal/tasks/recover", s.recovery())
	return s
}

// newEcho returns an Echo that has the routes of health, and answers errors in JSON.
func (s *server) newEcho() *echo.Echo {
	e := echo.New()
	e.HTTPErrorHandler = s.handleError
	e.Use(s.RecoverPanics)
	s.Attach(e)
	return e
}

// handleError answers requests of unknown routes and methods, and errors of handlers.
func (s *server) handleError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	o := delivery.Outcome{Case: delivery.Internal, Err: err}
	var httpError *echo.HTTPError
	if errors.As(err, &httpError) {
		switch httpError.Code {
		case http.StatusNotFound:
			o.Case = delivery.NoSuchRoute
		case http.StatusMethodNotAllowed:
			o.Case = delivery.WrongMethod
		}
	}
	if err := send(c, delivery.Record{Outcome: o}); err != nil {
		s.log.WarnContext(c.Request().Context(), "answer not sent", "error", err)
	}
}

// route adds the route of g's kind. The analyzer runs its deliveries.
func (s *server) route(g *delivery.Guard, analyzer orchestrator.Analyzer) {
	s.echo.POST(g.Kind.Path, s.deliveries(g, analyzer, readTask))
}

// deliveries returns the handler of g's deliveries, which read reads. From now on, recovery
// includes the kind of g. Without an analyzer, each delivery only books another.
func (s *server) deliveries(g *delivery.Guard, analyzer orchestrator.Analyzer, read reader) echo.HandlerFunc {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.guards, g) {
		s.guards = append(s.guards, g)
	}

	return s.internal(endpoint{
		name: telemetry.Delivery, telemetry: g.Telemetry, kind: g.Kind, delivers: true,
		handle: func(c *call) delivery.Outcome { return c.deliver(g, analyzer, read) },
	})
}

// recovery returns the handler of POST /internal/tasks/recover. It recovers all kinds, and
// ignores the request's body. A stop waits for it. It does not count towards maxRuns.
func (s *server) recovery() echo.HandlerFunc {
	return s.internal(endpoint{name: telemetry.Recovery, telemetry: s.telemetry, handle: (*call).recover})
}

// routeSelfTest adds the route /internal/self-test. It runs the analyzer once on input and
// answers whether the run succeeded, or 404 if input is nil. The run counts towards maxRuns,
// and a stop ends it.
func (s *server) routeSelfTest(g *delivery.Guard, analyzer orchestrator.Analyzer, input json.RawMessage) {
	s.echo.POST("/internal/self-test", s.internal(endpoint{
		name: telemetry.SelfTest, telemetry: g.Telemetry, kind: g.Kind,
		handle: func(c *call) delivery.Outcome {
			if input == nil {
				return delivery.Outcome{Case: delivery.NotConfigured}
			}
			if refusal, begun := c.begin(); !begun {
				return refusal
			}
			return g.SelfTest(c.context(), analyzer, input)
		},
	}))
}

// endpoint describes an internal route.
type endpoint struct {
	name      string // of the log line and of the span
	telemetry *telemetry.Telemetry
	kind      delivery.Kind
	delivers  bool // each request counts as a delivery
	handle    func(c *call) delivery.Outcome
}

// internal returns the handler of an endpoint. The handler checks the caller before it reads the
// request, and logs one line. It works in any Echo, since it answers errors and panics itself.
func (s *server) internal(e endpoint) echo.HandlerFunc {
	handle := s.RecoverPanics(func(c echo.Context) error {
		if c.Request().Method != http.MethodPost {
			return echo.ErrMethodNotAllowed
		}
		current := &call{server: s, endpoint: e, echo: c, started: time.Now()}
		defer current.end()
		current.serve()
		return send(c, current.record)
	})
	return func(c echo.Context) error {
		if err := handle(c); err != nil {
			s.handleError(err, c)
		}
		return nil
	}
}

// call is one request to an internal route.
type call struct {
	*server
	endpoint endpoint
	echo     echo.Context
	started  time.Time
	span     telemetry.Span
	begun    bool // it counts as a run
	record   delivery.Record
}

// serve handles the call, and logs its record, even if the handler panics. A caller that is
// refused gets no span: otherwise any client could choose what is traced.
func (c *call) serve() {
	c.record.Case = delivery.Internal // of a panic
	defer c.writeLog()                // which closes the span: a deferred End would record the panic's value

	r := c.echo.Request()
	if err := c.auth.Check(r); err != nil {
		c.record.Outcome = refusal(err)
		return
	}
	c.record.Kind = c.endpoint.kind
	ctx := telemetry.Extract(r.Context(), r.Header)
	ctx, c.span = c.endpoint.telemetry.Serve(ctx, c.endpoint.name)
	c.echo.SetRequest(r.WithContext(ctx))
	c.record.Outcome = c.endpoint.handle(c)
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

// deliver handles a delivery of g's kind (SEEDS G2).
func (c *call) deliver(g *delivery.Guard, analyzer orchestrator.Analyzer, read reader) delivery.Outcome {
	d, err := read(c.echo.Response(), c.echo.Request(), g.Kind.IDField)
	c.record.Tries = d.Tries
	if taskName.MatchString(d.Task) {
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
	o := g.Deliver(c.context(), d)
	o.Result = nil // no answer has it, and it may be large
	return o
}

// recover recovers the kinds that have a handler.
func (c *call) recover() delivery.Outcome {
	defer c.Track()()
	if c.work.Err() != nil {
		return delivery.Outcome{Case: delivery.NotRecovered, Err: ErrStopping}
	}

	c.mu.Lock()
	guards := slices.Clone(c.guards)
	c.mu.Unlock()
	r, err := delivery.RecoverAll(c.context(), guards)
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
	switch err := c.Begin(c.maxRuns); {
	case errors.Is(err, lifecycle.ErrFull):
		return delivery.Outcome{Case: delivery.Busy, RetryIn: busyRetry}, false
	case err != nil:
		return delivery.Outcome{Case: delivery.NotClaimed, Err: ErrStopping}, false
	}
	c.begun = true
	return refusal, true
}

// end ends the call's run, after its answer has been written.
func (c *call) end() {
	if c.begun {
		c.End()
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
	if c.endpoint.delivers {
		status := attribute.Int(telemetry.Status, r.HTTPStatus)
		c.endpoint.telemetry.Record(ctx, telemetry.Deliveries, 1, telemetry.ByOutcome(outcome), status)
	}
	level, message := r.Level(), c.endpoint.name
	if rejected(*r) {
		level, message = slog.LevelError, "rejected"
		c.endpoint.telemetry.Record(ctx, telemetry.Rejections, 1, telemetry.ByOutcome(outcome))
	}

	c.log.LogAttrs(ctx, level, message, r.Attrs()...) //nolint:sloglint // four messages
	c.span.Describe(delivery.ValidID(r.ID), r.Token, r.Attempt)
	c.span.Close(outcome, r.HTTPStatus >= http.StatusInternalServerError)
}
