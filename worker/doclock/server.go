package doclock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/lease/documentlock"
	"taskguard/worker/doclock/web"
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
	// Owner answers whom r proves to be, never empty. It may set headers of w. Its
	// error matches ErrSession or one of taskauth's, and holds nothing of r.
	Owner(w http.ResponseWriter, r *http.Request) (string, error)
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
	Log        *slog.Logger        // nil: silent
}

const (
	defaultSockets = 10_000
	defaultPing    = 20 * time.Second
	// maxStack bounds what is logged of a panic's stack, in bytes.
	maxStack = 4096
)

// Server is the document lock's HTTP face. Its methods may be called concurrently.
type Server struct {
	locks    Locks
	feed     Feed
	sessions Sessions
	o        Options
	work     context.Context // of all sockets; see NewServer
	ready    atomic.Bool
	sites    http.CrossOriginProtection
	sockets  sockets
	echo     *echo.Echo
	log      *slog.Logger
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
	s := &Server{locks: locks, feed: feed, sessions: sessions, o: o, work: work, echo: echo.New(), log: o.Log}
	s.sockets = sockets{limit: o.MaxSockets, rooms: map[string]*audience{}, ended: make(chan struct{}, 1)}
	s.echo.HTTPErrorHandler = s.fault
	s.echo.Use(headers, s.recovered)
	const lock = "/api/documents/:roomId/lock"
	s.echo.POST(lock, s.lock("acquire", s.acquire))
	s.echo.PUT(lock, s.lock("extend", s.extend))
	s.echo.DELETE(lock, s.lock("release", s.release))
	s.echo.GET(lock, s.lock("show", s.show))
	s.echo.GET(lock+"/confirm", s.lock("confirm", s.confirm))
	s.echo.GET(lock+"/ws", s.subscribe)
	s.echo.POST("/internal/sweep", s.sweep)
	s.pages(web.Files())
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

// Drain waits until every socket has ended, or until ctx ends, and says how many
// have not. It is called once, after the work of NewServer has ended.
func (s *Server) Drain(ctx context.Context) (left int) { return s.sockets.drain(ctx) }

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
		attrs = append(attrs, slog.String("room_hash", Hash(room)))
	}
	if status >= http.StatusInternalServerError {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("error", withoutInput(err)))
	}
	s.log.LogAttrs(ctx, level, "document lock", attrs...)
}

// Hash is how a log names a room: its id is a user's input.
func Hash(room string) string {
	sum := sha256.Sum256([]byte(room))
	return hex.EncodeToString(sum[:6])
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
		s.log.Warn("answer not sent", "error", err)
	}
}

// recovered turns a panic of ours into an answer.
func (s *Server) recovered(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			if p := recover(); p != nil {
				stack := debug.Stack() // not the panic's value: it may hold a user's input
				s.log.Error("panic in a handler", "type", fmt.Sprintf("%T", p), "stack", string(stack[:min(maxStack, len(stack))]))
				err = errPanic
			}
		}()
		return next(c)
	}
}
