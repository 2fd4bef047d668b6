package worker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"
)

// maxBody is how much of a request is read; a task has two fields.
const maxBody = 1 << 20

// Server is the worker's HTTP face: routes, and nothing that decides.
type Server struct {
	guard *Guard
	work  context.Context // of all runs; see NewServer
	ready atomic.Bool
	echo  *echo.Echo
	log   *slog.Logger
}

// NewServer serves deliveries to g. Runs live as long as work, which is to end
// with the cause ErrStopping when the process is to stop; the caller's hanging
// up does not end them.
func NewServer(work context.Context, g *Guard) *Server {
	s := &Server{guard: g, work: work, echo: echo.New(), log: g.Log}
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
	o := s.deliver(c)
	s.record(c.Request().Context(), o, time.Since(started))
	return s.answer(c, o)
}

// record is the one log line of a delivery.
func (s *Server) record(ctx context.Context, o Outcome, took time.Duration) {
	code, _ := o.answer()
	level := slog.LevelInfo
	if code >= http.StatusInternalServerError || o.Case == LockLost {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("outcome", o.Case.String()), slog.Int("status", code), slog.Duration("duration", took)}
	if o.ID != "" && o.Case != BadRequest {
		attrs = append(attrs, slog.String("analysis_id", o.ID), slog.Int64("lock_token", o.Token))
	}
	switch {
	case o.Code != "":
		attrs = append(attrs, slog.String("code", o.Code))
	case o.Err != nil:
		attrs = append(attrs, slog.Any("error", o.Err))
	}
	s.log.LogAttrs(ctx, level, "delivery", attrs...)
}

func (s *Server) deliver(c echo.Context) Outcome {
	id, err := readTask(c.Response(), c.Request())
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return Outcome{Case: TooLarge}
	case err != nil:
		return Outcome{Case: BadRequest, Err: err}
	case s.work.Err() != nil:
		return Outcome{Case: NotClaimed, ID: id, Err: ErrStopping}
	}
	return s.guard.Deliver(s.work, id)
}

// readTask reads {"analysis_id": "…"} whatever its Content-Type: Cloud Tasks
// sets none. Unknown fields are ignored.
func readTask(w http.ResponseWriter, r *http.Request) (id string, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return "", err
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
				s.log.Error("panic in a handler", "panic", p)
				err = echo.NewHTTPError(http.StatusInternalServerError)
			}
		}()
		return next(c)
	}
}
