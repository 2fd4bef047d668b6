package delivery

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

	"taskguard/internal/lifecycle"
	"taskguard/internal/taskauth"
	"taskguard/internal/telemetry"
)

// maxBody limits the body of a request, in bytes.
const maxBody = 1 << 20

// busyRetry is the Retry-After of Busy.
const busyRetry = 10 * time.Second

// Server is the worker's HTTP server: it routes, and decides nothing.
type Server struct {
	// Lifecycle counts the runs. A run begins when its request has been read, and ends
	// when its answer has been written.
	*lifecycle.Lifecycle
	// MaxRuns is the number of deliveries that are handled at once. The answer to one
	// more is Busy. Zero means no limit. Set it before the first request.
	MaxRuns int
	guard   *Guard
	auth    Authenticator
	work    context.Context // of all runs; see NewServer
	echo    *echo.Echo
	log     *slog.Logger
}

// Authenticator checks the caller of a request. It returns nil, or an error that matches
// taskauth.ErrUnauthenticated, ErrForbidden or ErrNoKeys and contains no text of the
// request. taskauth.Verifier implements it.
type Authenticator interface {
	Check(r *http.Request) error
}

// NewServer returns a Server that passes deliveries to g after auth has checked the
// caller. A nil auth means that a proxy has checked it. The context of all runs is work,
// which the caller cancels with the cause ErrStopping to stop the process. A client that
// hangs up does not end its run.
func NewServer(work context.Context, g *Guard, auth Authenticator) *Server {
	s := &Server{Lifecycle: lifecycle.New(work, g.Log), guard: g, auth: auth, work: work, echo: echo.New(), log: g.Log}
	s.echo.HTTPErrorHandler = s.handleError
	s.echo.Use(s.RecoverPanics)
	s.Attach(s.echo)
	s.echo.POST("/internal/tasks/analysis", s.internal(telemetry.Delivery, s.analysis))
	s.echo.POST("/internal/tasks/recover", s.internal(telemetry.Recovery, s.recovery))
	return s
}

// ServeHTTP makes Server an http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// internal returns the handler that calls do. It checks the caller before it reads
// anything, and logs one line.
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

// recorded calls do, and records its log line and span, also if do panics. A caller that
// is refused gets no span: otherwise any client could choose what is traced. do may set
// fields that the log line of a panic shows.
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
	o.Task, o.Tries = taskHeaders(c.Request().Header)
	done := do(&o)
	done.Task, done.Tries = o.Task, o.Tries
	return done
}

// refused returns the outcome for a caller that the Authenticator refuses.
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

// analysis handles POST /internal/tasks/analysis (G2).
func (s *Server) analysis(c echo.Context, begin func(id string) error) Outcome {
	r := c.Request()
	id, err := readTask(c.Response(), r)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return Outcome{Case: TooLarge}
	case errors.Is(err, errIncomplete):
		return Outcome{Case: Incomplete, Err: err}
	case err != nil:
		return Outcome{Case: BadRequest, Err: err}
	}
	switch err := begin(id); {
	case errors.Is(err, lifecycle.ErrFull):
		return Outcome{Case: Busy, ID: validID(id), RetryIn: busyRetry}
	case err != nil:
		return Outcome{Case: NotClaimed, ID: validID(id), Err: ErrStopping}
	}
	return s.guard.Deliver(telemetry.Carry(s.work, r.Context()), Delivery{AnalysisID: id, Task: r.Header.Get("X-CloudTasks-TaskName")})
}

// recovery handles POST /internal/tasks/recover, and ignores its body. A stop waits for
// it. It does not count towards MaxRuns.
func (s *Server) recovery(c echo.Context, _ func(id string) error) Outcome {
	defer s.Track()()
	if s.work.Err() != nil {
		return Outcome{Case: NotRecovered, Err: ErrStopping}
	}
	r, err := s.guard.Recover(telemetry.Carry(s.work, c.Request().Context()))
	o := Outcome{Case: Recovered, Recovery: r, Err: err}
	switch {
	case errors.Is(err, ErrNoQueue):
		o.Case = NoQueue
	case err != nil && r.Booked == 0:
		o.Case = NotRecovered
	}
	return o
}

var errIncomplete = errors.New("the body did not arrive in full")

// readTask reads {"analysis_id": "…"} of any Content-Type, since Cloud Tasks sets none.
// It ignores unknown fields.
func readTask(w http.ResponseWriter, r *http.Request) (id string, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return "", err
	case err != nil:
		return "", errIncomplete
	}
	switch {
	case len(body) == 0:
		return "", errors.New(`the body is empty; want {"analysis_id": "…"}`)
	case !utf8.Valid(body): // encoding/json would replace invalid bytes
		return "", errors.New("the body is not UTF-8")
	}
	var task map[string]json.RawMessage // a struct would also take ANALYSIS_ID for the field
	if json.Unmarshal(body, &task) != nil || task == nil {
		return "", errors.New(`the body is not the JSON object {"analysis_id": "…"}`)
	}
	var value *string
	switch raw, found := task["analysis_id"]; {
	case !found:
		return "", errors.New("analysis_id is missing")
	case json.Unmarshal(raw, &value) != nil || value == nil:
		return "", errors.New("analysis_id is not a string")
	}
	return *value, nil
}

func (s *Server) answer(c echo.Context, o Outcome) error {
	code, a := o.answer()
	if o.Case == Locked || o.Case == Waiting || o.Case == Busy {
		c.Response().Header().Set("Retry-After", strconv.Itoa(o.retryAfter()))
	}
	if o.Case == Unauthenticated {
		c.Response().Header().Set("WWW-Authenticate", "Bearer")
	}
	return c.JSON(code, a)
}

// handleError answers requests of unknown routes and methods, and errors of handlers.
func (s *Server) handleError(err error, c echo.Context) {
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
