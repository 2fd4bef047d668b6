package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"taskguard/worker/taskauth"
)

// maxBody is how much of a request is read; a task has two fields.
const maxBody = 1 << 20

// maxStack bounds what is logged of a panic's stack, in bytes.
const maxStack = 4096

// Server is the worker's HTTP face: routes, and nothing that decides.
type Server struct {
	guard *Guard
	auth  Authenticator
	work  context.Context // of all runs; see NewServer
	ready atomic.Bool
	echo  *echo.Echo
	log   *slog.Logger

	mu    sync.Mutex
	runs  int           // deliveries whose request has been read, until their answer is written
	ended chan struct{} // wakes Drain
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
	s := &Server{guard: g, auth: auth, work: work, echo: echo.New(), log: g.Log, ended: make(chan struct{}, 1)}
	s.echo.HTTPErrorHandler = s.fault
	s.echo.Use(s.recovered)
	s.echo.POST("/internal/tasks/analysis", s.internal("delivery", s.analysis))
	s.echo.POST("/internal/tasks/recover", s.internal("recovery", s.recovery))
	s.echo.GET("/health/live", func(c echo.Context) error {
		return c.JSON(http.StatusOK, map[string]string{"status": "live"})
	})
	s.echo.GET("/health/ready", s.readiness)
	return s
}

// ServeHTTP makes Server an http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// AwaitReady makes /health/ready answer 200 once ping has succeeded. It tries
// until then or until ctx ends.
func (s *Server) AwaitReady(ctx context.Context, ping func(context.Context) error) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := ping(ctx)
		if err == nil {
			s.ready.Store(true)
			return
		}
		s.log.WarnContext(ctx, "not ready: Firestore has not answered", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func (s *Server) readiness(c echo.Context) error {
	if !s.ready.Load() || s.work.Err() != nil {
		return c.JSON(http.StatusServiceUnavailable, map[string]string{"status": "not_ready", "reason": "unavailable"})
	}
	return c.JSON(http.StatusOK, map[string]string{"status": "ready"})
}

// internal makes a handler of do: who may call is asked first, before anything
// is read, and what came of it is one log line.
func (s *Server) internal(message string, do func(c echo.Context, begin func() bool) Outcome) echo.HandlerFunc {
	return func(c echo.Context) error {
		started := time.Now()
		begun := false
		defer func() {
			if begun { // until the answer is written
				s.end()
			}
		}()
		o, refused := s.refused(c.Request())
		if !refused {
			o = do(c, func() bool {
				begun = s.begin()
				return begun
			})
		}
		s.record(c.Request().Context(), message, o, time.Since(started))
		return s.answer(c, o)
	}
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
func (s *Server) analysis(c echo.Context, begin func() bool) Outcome {
	r := c.Request()
	id, err := readTask(c.Response(), r)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return Outcome{Case: TooLarge}
	case err != nil:
		return Outcome{Case: BadRequest, Err: err}
	case !begin():
		return Outcome{Case: NotClaimed, ID: id, Err: ErrStopping}
	}
	return s.guard.Deliver(s.work, Delivery{AnalysisID: id, Task: r.Header.Get("X-CloudTasks-TaskName")})
}

// recovery is POST /internal/tasks/recover. Its body says nothing.
func (s *Server) recovery(_ echo.Context, begin func() bool) Outcome {
	if !begin() {
		return Outcome{Case: NotRecovered, Err: ErrStopping}
	}
	r, err := s.guard.Recover(s.work)
	o := Outcome{Case: Recovered, Recovery: r, Err: err}
	switch {
	case errors.Is(err, ErrNoQueue):
		o.Case = NoQueue
	case err != nil:
		o.Case = NotRecovered
	}
	return o
}

// begin counts a run, unless the process is to stop.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.work.Err() != nil {
		return false
	}
	s.runs++
	return true
}

func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs--
	select {
	case s.ended <- struct{}{}:
	default:
	}
}

// Drain waits until the runs in flight have ended and their answers are
// written, or until ctx ends, and says how many have not. It is called once,
// after the work of NewServer has ended: no run begins from then on. A request
// that has not arrived in full is no run.
func (s *Server) Drain(ctx context.Context) (left int) {
	for {
		s.mu.Lock()
		left = s.runs
		s.mu.Unlock()
		if left == 0 {
			return 0
		}
		select {
		case <-ctx.Done():
			return left
		case <-s.ended:
		}
	}
}

// record is the one log line of a request.
func (s *Server) record(ctx context.Context, message string, o Outcome, took time.Duration) {
	code, _ := o.answer()
	level := slog.LevelWarn
	switch o.Case {
	case Ran, AlreadyFinished, Locked, LockedBooked, ShuttingDownBooked, Recovered:
		level = slog.LevelInfo
	}
	attrs := []slog.Attr{slog.String("outcome", o.Case.String()), slog.Int("status", code), slog.Int64("duration_ms", took.Milliseconds())}
	if o.ID != "" && o.Case != BadRequest {
		attrs = append(attrs, slog.String("analysis_id", o.ID))
	}
	if o.Token != 0 {
		attrs = append(attrs, slog.Int64("lock_token", o.Token))
	}
	switch {
	case o.Code != "":
		attrs = append(attrs, slog.String("code", o.Code))
		if o.Reason != "" {
			attrs = append(attrs, slog.String("reason", o.Reason))
		}
	case o.Err != nil:
		attrs = append(attrs, slog.Any("error", o.Err))
	}
	if answers[o.Case].counts {
		attrs = append(attrs, slog.Int("found", o.Found), slog.Int("booked", o.Booked))
	}
	s.log.LogAttrs(ctx, level, message, attrs...) //nolint:sloglint // delivery or recovery
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
	if o.Case == Locked {
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
		s.log.Warn("answer not sent", "error", err)
	}
}

// recovered turns a panic of ours into an answer: 500, so the task comes again.
func (s *Server) recovered(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			if p := recover(); p != nil {
				stack := debug.Stack() // not the panic's value: it may hold a user's input
				s.log.Error("panic in a handler", "type", fmt.Sprintf("%T", p), "stack", string(stack[:min(maxStack, len(stack))]))
				err = echo.NewHTTPError(http.StatusInternalServerError)
			}
		}()
		return next(c)
	}
}
