package doclock

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"taskguard/lease/documentlock"
	"taskguard/worker/doclock/web"
	"taskguard/worker/lifecycle"
)

// Locks are the rooms' locks; documentlock.Locks is one.
type Locks interface {
	Acquire(ctx context.Context, room, owner string) (documentlock.State, error)
	Extend(ctx context.Context, room, owner string) (documentlock.State, error)
	Release(ctx context.Context, room, owner string) (released bool, err error)
	Get(ctx context.Context, room, owner string) (documentlock.State, error)
	Confirm(ctx context.Context, room, owner string, token int64) (documentlock.State, error)
	Sweep(ctx context.Context, f documentlock.Finder) (swept int, err error)
}

// Feed tells of the rooms' changes; documentlock.Feed is one.
type Feed interface {
	Subscribe(ctx context.Context, room string) (*documentlock.Subscription, error)
}

// Sessions tell who asks; Cookies and Accounts are two.
type Sessions interface {
	// Owner answers whom r proves to be: empty where that is nobody and it is not
	// to begin a session. It may set headers of w. Its error matches ErrSession or
	// one of taskauth's, and holds nothing of r.
	Owner(w http.ResponseWriter, r *http.Request, begin bool) (string, error)
	// Begin sees to it that who loads the page can go on from there.
	Begin(w http.ResponseWriter, r *http.Request)
}

// Authenticator lets a request to an internal route in, or answers an error that
// matches one of taskauth's and holds nothing of the request.
type Authenticator interface {
	Check(r *http.Request) error
}

// Options are what a Server can do without.
type Options struct {
	Finder     documentlock.Finder // finds what to sweep; nil: nothing is swept
	Tasks      Authenticator       // of POST /internal/sweep; nil: something in front has checked
	MaxSockets int                 // open at once; zero: 10,000
	Ping       time.Duration       // between two pings of a socket, and at most for the answer; zero: 20 s
	Tracer     trace.Tracer        // of the span "request"; nil: none is made
	Log        *slog.Logger        // nil: silent
}

const (
	defaultSockets = 10_000
	defaultPing    = 20 * time.Second
)

// Server is the document lock's HTTP face. Its methods may be called concurrently.
type Server struct {
	*lifecycle.Lifecycle // counts the open sockets
	locks                Locks
	feed                 Feed
	sessions             Sessions
	o                    Options
	work                 context.Context // of all sockets; see NewServer
	sites                http.CrossOriginProtection
	echo                 *echo.Echo
	log                  *slog.Logger
}

// NewServer serves the locks of rooms to those whom sessions know, and the events
// of feed. Sockets live as long as work, and are closed with 1001 (going away)
// when it ends; see Drain.
func NewServer(work context.Context, locks Locks, feed Feed, sessions Sessions, o Options) *Server {
	if o.MaxSockets == 0 {
		o.MaxSockets = defaultSockets
	}
	if o.Ping == 0 {
		o.Ping = defaultPing
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Tracer == nil {
		o.Tracer = noop.Tracer{}
	}
	s := &Server{Lifecycle: lifecycle.New(work, o.Log), locks: locks, feed: feed, sessions: sessions, o: o, work: work, echo: echo.New(), log: o.Log}
	s.echo.HTTPErrorHandler = s.fault
	s.echo.Use(s.spanned, headers, s.Recovered)
	s.Attach(s.echo)
	const lock = "/api/documents/:roomId/lock"
	s.echo.POST(lock, s.lock("acquire", s.acquire))
	s.echo.PUT(lock, s.lock("extend", s.extend))
	s.echo.DELETE(lock, s.lock("release", s.release))
	s.echo.GET(lock, s.lock("show", s.show))
	s.echo.GET(lock+"/confirm", s.lock("confirm", s.confirm))
	s.echo.GET(lock+"/ws", s.subscribe)
	s.echo.POST("/internal/sweep", s.sweep)
	s.pages(web.Files())
	return s
}

// ServeHTTP makes Server an http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// record is the one log line of a request. Heartbeats and readings that went well
// are DEBUG: they are ten thousands an hour.
func (s *Server) record(ctx context.Context, operation, room string, err error, status int, began time.Time) {
	outcome, level := "ok", slog.LevelInfo
	if err != nil {
		_, outcome, _ = refusal(err)
	} else if operation == "extend" || operation == "show" || operation == "confirm" {
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{
		slog.String("operation", operation), slog.String("outcome", outcome), slog.Int("status", status),
		slog.Int64("duration_ms", time.Since(began).Milliseconds()),
	}
	if room != "" {
		attrs = append(attrs, slog.String("room_hash", documentlock.Hash(room)))
	}
	if status >= http.StatusInternalServerError {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("error", withoutInput(err)))
	}
	s.log.LogAttrs(ctx, level, "document lock", attrs...)
}

// fault answers what no handler has: unknown routes and methods.
func (s *Server) fault(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	var he *echo.HTTPError
	if errors.As(err, &he) {
		switch he.Code {
		case http.StatusNotFound:
			err = errRoute
		case http.StatusMethodNotAllowed:
			err = errMethod
		}
	}
	if err := s.refuse(c, err); err != nil {
		s.log.WarnContext(c.Request().Context(), "answer not sent", "error", err)
	}
}
