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
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"
)

// maxBody is how much of a request is read; a task has two fields.
const maxBody = 1 << 20

// maxStack bounds what is logged of a panic's stack, in bytes.
const maxStack = 4096

// Server is the worker's HTTP face: routes, and nothing that decides.
type Server struct {
	guard *Guard
	work  context.Context // of all runs; see NewServer
	ready atomic.Bool
	echo  *echo.Echo
	log   *slog.Logger

	mu    sync.Mutex
	runs  int           // deliveries whose request has been read, until their answer is written
	ended chan struct{} // wakes Drain
}

// NewServer serves deliveries to g. Runs live as long as work, which is to end
// with the cause ErrStopping when the process is to stop; the caller's hanging
// up does not end them.
func NewServer(work context.Context, g *Guard) *Server {
	s := &Server{guard: g, work: work, echo: echo.New(), log: g.Log, ended: make(chan struct{}, 1)}
	s.echo.HTTPErrorHandler = s.fault
	s.echo.Use(s.recovered)
	s.echo.POST("/internal/tasks/analysis", s.analysis)
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

// analysis is POST /internal/tasks/analysis (G2).
func (s *Server) analysis(c echo.Context) error {
	started := time.Now()
	id, err := readTask(c.Response(), c.Request())
	o := Outcome{ID: id}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		o.Case = TooLarge
	case err != nil:
		o.Case, o.Err = BadRequest, err
	case !s.begin():
		o.Case, o.Err = NotClaimed, ErrStopping
	default:
		defer s.end()
		o = s.guard.Deliver(s.work, id)
	}
	s.record(c.Request().Context(), o, time.Since(started))
	return s.answer(c, o)
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

// record is the one log line of a delivery.
func (s *Server) record(ctx context.Context, o Outcome, took time.Duration) {
	code, _ := o.answer()
	level := slog.LevelInfo
	if code >= http.StatusInternalServerError || o.Case == LockLost {
		level = slog.LevelWarn
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
	s.log.LogAttrs(ctx, level, "delivery", attrs...)
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
	var task struct {
		AnalysisID *string `json:"analysis_id"`
	}
	switch {
	case len(body) == 0:
		return "", errors.New(`the body is empty; want {"analysis_id": "…"}`)
	case !utf8.Valid(body): // encoding/json would replace what is not
		return "", errors.New("the body is not UTF-8")
	}
	if err := json.Unmarshal(body, &task); err != nil {
		return "", errors.New(`the body is not the JSON object {"analysis_id": "…"}`)
	}
	switch {
	case task.AnalysisID == nil:
		return "", errors.New("analysis_id is missing")
	case strings.ContainsRune(*task.AnalysisID, utf8.RuneError): // half a surrogate pair decodes to this
		return "", errors.New("analysis_id is not UTF-8")
	}
	return *task.AnalysisID, nil
}

func (s *Server) answer(c echo.Context, o Outcome) error {
	code, a := o.answer()
	if o.Case == Locked {
		c.Response().Header().Set("Retry-After", strconv.Itoa(o.retryAfter()))
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
