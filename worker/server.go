package worker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"taskguard/worker/lifecycle"
	"taskguard/worker/taskauth"
	"taskguard/worker/telemetry"
)

// maxBody is how much of a request is read; a task has two fields.
const maxBody = 1 << 20

// busyRetry is the Retry-After of Busy.
const busyRetry = 10 * time.Second

// Server is the worker's HTTP server: it routes, and decides nothing.
type Server struct {
	// Lifecycle counts the runs: deliveries whose request has been read, until
	// their answer is written. A request that has not arrived in full is no run.
	*lifecycle.Lifecycle
	// MaxRuns is how many deliveries are handled at once: one more is answered
	// Busy. Zero: no limit. It is to be set before the first request.
	MaxRuns int
	guard   *Guard
	auth    Authenticator
	work    context.Context // of all runs; see NewServer
	echo    *echo.Echo
	log     *slog.Logger
}

// Authenticator lets a request in, or answers an error that matches
// taskauth.ErrUnauthenticated, ErrForbidden or ErrNoKeys and holds nothing of
// the request; taskauth.Verifier is one.
type Authenticator interface {
	Check(r *http.Request) error
}

// NewServer serves deliveries to g, after auth has let them in; nil is for
// where something in front has checked them. Runs live as long as work, which
// is to end with the cause ErrStopping when the process is to stop; the
// caller's hanging up does not end them.
func NewServer(work context.Context, g *Guard, auth Authenticator) *Server {
	s := &Server{Lifecycle: lifecycle.New(work, g.Log), guard: g, auth: auth, work: work, echo: echo.New(), log: g.Log}
	s.echo.HTTPErrorHandler = s.fault
	s.echo.Use(s.Recovered)
	s.Attach(s.echo)
	s.echo.POST("/internal/tasks/analysis", s.internal(telemetry.Delivery, s.analysis))
	s.echo.POST("/internal/tasks/recover", s.internal(telemetry.Recovery, s.recovery))
	return s
}

// ServeHTTP makes Server an http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// internal makes a handler of do: it checks the caller before anything is read, and
// logs one line.
func (s *Server) internal(message string, do func(c echo.Context, begin func(id string) error) Outcome) echo.HandlerFunc {
	return func(c echo.Context) error {
		begun := false
		defer func() {
			if begun { // until the answer is written
				s.End()
			}
		}()
		return s.answer(c, s.recorded(c, message, func(o *Outcome) Outcome {
			return do(c, func(id string) error {
				err := s.Begin(s.MaxRuns)
				o.ID, begun = id, err == nil
				return err
			})
		}))
	}
}

// recorded calls do and records its line and span, also when do panics. A caller that
// is refused has no span: else anybody would decide what is traced. do may set what the
// line of a panic shows.
func (s *Server) recorded(c echo.Context, message string, do func(*Outcome) Outcome) (o Outcome) {
	started, ctx, span := time.Now(), c.Request().Context(), telemetry.Span{}
	o.Case = Internal
	// A span whose End is deferred itself would record the panic's value.
	defer func() { s.record(ctx, span, message, o, time.Since(started)) }()
	if refusal, refused := s.refused(c.Request()); refused {
		return refusal
	}
	ctx, span = s.guard.Telemetry.Serve(ctx, message)
	c.SetRequest(c.Request().WithContext(ctx))
	o.Task, o.Tries = dispatched(c.Request().Header)
	done := do(&o)
	done.Task, done.Tries = o.Task, o.Tries
	return done
}

// refused asks the Authenticator.
func (s *Server) refused(r *http.Request) (o Outcome, refused bool) {
	if s.auth == nil {
		return Outcome{}, false
	}
	err := s.auth.Check(r)
	switch {
	case err == nil:
		return Outcome{}, false
	case errors.Is(err, taskauth.ErrForbidden):
		return Outcome{Case: Forbidden, Err: err}, true
	case errors.Is(err, taskauth.ErrNoKeys):
		return Outcome{Case: Unavailable, Err: err}, true
	}
	return Outcome{Case: Unauthenticated, Err: err}, true
}

// analysis is POST /internal/tasks/analysis (G2).
func (s *Server) analysis(c echo.Context, begin func(id string) error) Outcome {
	r := c.Request()
	id, err := readTask(c.Response(), r)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return Outcome{Case: TooLarge}
	case err != nil:
		return Outcome{Case: BadRequest, Err: err}
	}
	switch err := begin(id); {
	case errors.Is(err, lifecycle.ErrFull):
		return Outcome{Case: Busy, ID: possible(id), RetryIn: busyRetry}
	case err != nil:
		return Outcome{Case: NotClaimed, ID: possible(id), Err: ErrStopping}
	}
	return s.guard.Deliver(telemetry.Carry(s.work, r.Context()), Delivery{AnalysisID: id, Task: r.Header.Get("X-CloudTasks-TaskName")})
}

// recovery is POST /internal/tasks/recover. Its body is ignored. A stop waits for
// it, and it takes no delivery's place.
func (s *Server) recovery(c echo.Context, _ func(id string) error) Outcome {
	defer s.Pass()()
	if s.work.Err() != nil {
		return Outcome{Case: NotRecovered, Err: ErrStopping}
	}
	r, err := s.guard.Recover(telemetry.Carry(s.work, c.Request().Context()))
	o := Outcome{Case: Recovered, Recovery: r, Err: err}
	switch {
	case errors.Is(err, ErrNoQueue):
		o.Case = NoQueue
	case err != nil:
		o.Case = NotRecovered
	}
	return o
}

// readTask reads {"analysis_id": "…"} whatever its Content-Type: Cloud Tasks
// sets none. Unknown fields are ignored.
func readTask(w http.ResponseWriter, r *http.Request) (id string, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return "", err
	case err != nil:
		return "", errors.New("the body did not arrive in full")
	}
	switch {
	case len(body) == 0:
		return "", errors.New(`the body is empty; want {"analysis_id": "…"}`)
	case !utf8.Valid(body): // encoding/json would replace what is not
		return "", errors.New("the body is not UTF-8")
	}
	var task map[string]json.RawMessage // a struct would also take ANALYSIS_ID for the field
	if json.Unmarshal(body, &task) != nil || task == nil {
		return "", errors.New(`the body is not the JSON object {"analysis_id": "…"}`)
	}
	var named *string
	switch raw, there := task["analysis_id"]; {
	case !there:
		return "", errors.New("analysis_id is missing")
	case json.Unmarshal(raw, &named) != nil || named == nil:
		return "", errors.New("analysis_id is not a string")
	}
	return *named, nil
}

func (s *Server) answer(c echo.Context, o Outcome) error {
	code, a := o.answer()
	if o.Case == Locked || o.Case == Busy {
		c.Response().Header().Set("Retry-After", strconv.Itoa(o.retryAfter()))
	}
	if o.Case == Unauthenticated {
		c.Response().Header().Set("WWW-Authenticate", "Bearer")
	}
	return c.JSON(code, a)
}

// fault answers what no handler has: unknown routes and methods.
func (s *Server) fault(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	o := Outcome{Case: Internal, Err: err}
	var he *echo.HTTPError
	if errors.As(err, &he) {
		switch he.Code {
		case http.StatusNotFound:
			o.Case = NoSuchRoute
		case http.StatusMethodNotAllowed:
			o.Case = WrongMethod
		}
	}
	if err := s.answer(c, o); err != nil {
		s.log.WarnContext(c.Request().Context(), "answer not sent", "error", err)
	}
}
