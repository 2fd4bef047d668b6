package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
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

// Server answers the requests of several kinds of work. It decides nothing.
type Server struct {
	// Lifecycle counts the runs. A run begins when its request has been read, and ends
	// when its answer has been written.
	*lifecycle.Lifecycle
	// MaxRuns is the number of deliveries that are handled at once. The answer to one
	// more is Busy. Zero means no limit. Set it before the first request.
	MaxRuns int
	auth    Authenticator
	work    context.Context // of all runs; see NewServer
	log     *slog.Logger
	echo    *echo.Echo

	mu     sync.Mutex
	guards []*Guard
}

// Authenticator checks the caller of a request. It returns nil, or an error that matches
// taskauth.ErrUnauthenticated, ErrForbidden or ErrNoKeys and contains no text of the
// request. taskauth.Verifier implements it.
type Authenticator interface {
	Check(r *http.Request) error
}

// NewServer returns a Server that has the routes of health and recovery, and answers after
// auth has checked the caller. A nil auth means that a proxy has checked it. The context of
// all runs is work, which the caller cancels with the cause ErrStopping to stop the process.
// A client that hangs up does not end its run.
func NewServer(work context.Context, log *slog.Logger, auth Authenticator) *Server {
	s := &Server{Lifecycle: lifecycle.New(work, log), auth: auth, work: work, log: log, echo: echo.New()}
	s.echo.HTTPErrorHandler = s.handleError
	s.echo.Use(s.RecoverPanics)
	s.Attach(s.echo)
	s.echo.POST("/internal/tasks/recover", s.Recovery())
	return s
}

// Route adds a route for the deliveries of g's kind, and returns s.
func (s *Server) Route(g *Guard) *Server {
	s.echo.POST(cmp.Or(g.Kind.Path, analysisPath), s.Deliveries(g, CloudTasks))
	return s
}

// ServeHTTP makes Server an http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// Deliveries returns a handler that passes the deliveries that read reads to g, whose kind
// Recovery then recovers. It can be used in another Echo: it answers errors and panics itself.
func (s *Server) Deliveries(g *Guard, read Reader) echo.HandlerFunc {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.guards, func(is *Guard) bool { return is.Kind == g.Kind }) {
		s.guards = append(s.guards, g)
	}
	return s.internal(telemetry.Delivery, func() *Guard { return g }, func(c echo.Context, o *Outcome, begin func() error) Outcome {
		o.Kind = g.Kind
		return s.deliver(c, g, read, o, begin)
	})
}

// Recovery returns the handler of POST /internal/tasks/recover. It can be used in another Echo.
func (s *Server) Recovery() echo.HandlerFunc {
	return s.internal(telemetry.Recovery, s.first, s.recovery)
}

// first returns the guard that was added first, or one of nothing.
func (s *Server) first() *Guard {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(s.guards, []*Guard{{}})[0]
}

// internal returns the handler that calls do. It checks the caller before it reads
// anything, logs one line, and records with the Telemetry of the guard that of returns.
func (s *Server) internal(message string, of func() *Guard, do func(c echo.Context, o *Outcome, begin func() error) Outcome) echo.HandlerFunc {
	handle := s.RecoverPanics(func(c echo.Context) error {
		if c.Request().Method != http.MethodPost {
			return echo.ErrMethodNotAllowed
		}
		begun := false
		defer func() {
			if begun { // until the answer is written
				s.End()
			}
		}()
		return s.answer(c, s.recorded(c, message, of().Telemetry, func(o *Outcome) Outcome {
			return do(c, o, func() error {
				err := s.Begin(s.MaxRuns)
				begun = err == nil
				return err
			})
		}))
	})
	return func(c echo.Context) error {
		if err := handle(c); err != nil {
			s.handleError(err, c)
		}
		return nil
	}
}

// recorded calls do, and records its log line and span, also if do panics. A caller that
// is refused gets no span: otherwise any client could choose what is traced. do may set
// fields that the log line of a panic shows.
func (s *Server) recorded(c echo.Context, message string, t *telemetry.Telemetry, do func(*Outcome) Outcome) (o Outcome) {
	started, ctx, span := time.Now(), c.Request().Context(), telemetry.Span{}
	o.Case = Internal
	// A span whose End is deferred itself would record the panic's value.
	defer func() { s.record(ctx, t, span, message, o, time.Since(started)) }()
	if refusal, refused := s.refused(c.Request()); refused {
		return refusal
	}
	ctx, span = t.Serve(telemetry.Extract(ctx, c.Request().Header), message)
	c.SetRequest(c.Request().WithContext(ctx))
	done := do(&o)
	done.Kind, done.Task, done.Tries = o.Kind, o.Task, o.Tries
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

// deliver handles a delivery of g's kind (G2). It sets the fields of o that are known early.
func (s *Server) deliver(c echo.Context, g *Guard, read Reader, o *Outcome, begin func() error) Outcome {
	r := c.Request()
	d, err := read(c.Response(), r, g.Kind)
	o.Task, o.Tries = printableTask(d.Task), d.Tries
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return Outcome{Case: TooLarge}
	case errors.Is(err, errIncomplete):
		return Outcome{Case: Incomplete, Err: err}
	case err != nil:
		return Outcome{Case: BadRequest, Err: err}
	}
	o.ID = d.AnalysisID
	switch err := begin(); {
	case errors.Is(err, lifecycle.ErrFull):
		return Outcome{Case: Busy, ID: validID(o.ID), RetryIn: busyRetry}
	case err != nil:
		return Outcome{Case: NotClaimed, ID: validID(o.ID), Err: ErrStopping}
	}
	return g.Deliver(telemetry.Carry(s.work, r.Context()), d)
}

// recovery recovers all kinds, and ignores the request's body. A stop
// waits for it. It does not count towards MaxRuns.
func (s *Server) recovery(c echo.Context, _ *Outcome, _ func() error) Outcome {
	defer s.Track()()
	if s.work.Err() != nil {
		return Outcome{Case: NotRecovered, Err: ErrStopping}
	}
	s.mu.Lock()
	guards := slices.Clone(s.guards)
	s.mu.Unlock()
	r, err := recoverAll(telemetry.Carry(s.work, c.Request().Context()), guards)
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

// Reader reads a delivery of a kind from a request. With an error it returns what is known.
type Reader func(w http.ResponseWriter, r *http.Request, k Kind) (Delivery, error)

// CloudTasks reads a task of Cloud Tasks: {"analysis_id": "…"} of any Content-Type, since
// Cloud Tasks sets none. It ignores unknown fields.
func CloudTasks(w http.ResponseWriter, r *http.Request, k Kind) (d Delivery, err error) {
	d.Task = r.Header.Get("X-CloudTasks-TaskName")
	if retries, err := strconv.ParseUint(r.Header.Get("X-CloudTasks-TaskRetryCount"), 10, 31); err == nil {
		d.Tries = int(retries) + 1
	}
	body, err := readBody(w, r)
	if err == nil {
		d.AnalysisID, err = readID(body, k)
	}
	return d, err
}

// readBody reads a body of at most maxBody bytes.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	if err != nil && !errors.As(err, &large) {
		return nil, errIncomplete
	}
	return body, err
}

// readID reads the id in a JSON object.
func readID(body []byte, k Kind) (id string, err error) {
	field := cmp.Or(k.IDField, analysisField)
	switch {
	case len(body) == 0:
		return "", fmt.Errorf(`the body is empty; want {%q: "…"}`, field)
	case !utf8.Valid(body): // encoding/json would replace invalid bytes
		return "", errors.New("the body is not UTF-8")
	}
	var task map[string]json.RawMessage // a struct would also take ANALYSIS_ID for the field
	if json.Unmarshal(body, &task) != nil || task == nil {
		return "", fmt.Errorf(`the body is not the JSON object {%q: "…"}`, field)
	}
	var value *string
	switch raw, found := task[field]; {
	case !found:
		return "", fmt.Errorf("%s is missing", field)
	case json.Unmarshal(raw, &value) != nil || value == nil:
		return "", fmt.Errorf("%s is not a string", field)
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
