package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"taskguard/internal/lifecycle"
	"taskguard/locks/document"
	"taskguard/locks/document/server/web"
)

// maxName is the length of a display name or a user's id, in bytes. A longer one is not shown.
const maxName = 256

// Sessions identify the caller; Cookies and Accounts are two.
type Sessions interface {
	// Caller returns the owner that r proves. Without a session it begins one if
	// begin is set, else the owner is empty. It may set headers of w. Its error
	// matches ErrSession or one of taskauth's, and contains nothing of r.
	Caller(w http.ResponseWriter, r *http.Request, begin bool) (Caller, error)
}

// Caller identifies the sender of a request.
type Caller struct {
	Owner            string    // empty: no session
	Until            time.Time // when the proof of the session expires; zero: never
	document.Profile           // what the application publishes of the user
}

// shown returns of a profile what others can be shown.
func shown(p document.Profile) document.Profile {
	for _, text := range []*string{&p.Name, &p.User} {
		if len(*text) > maxName || !utf8.ValidString(*text) || strings.ContainsFunc(*text, unicode.IsControl) {
			*text = ""
		}
	}
	return p
}

// Authenticator admits a request to an internal route, or returns an error that
// matches one of taskauth's and contains nothing of the request.
type Authenticator interface {
	Check(r *http.Request) error
}

// Options of NewServer.
type Options struct {
	Finder  document.Finder // finds the rooms to sweep
	Tasks   Authenticator   // checks the callers of POST /internal/sweep; nil: a proxy in front checks them
	Pusher  Pusher          // the zero value: its sockets are refused
	Origins []string        // other origins whose pages may call, such as https://app.example
	// Authorize is the application's URL that is asked whether a session may use a room; empty: every
	// session may use any room.
	Authorize string
	// MaxSockets is how many sockets may be open at once, with the channels of Pusher sockets;
	// zero: 10,000. Clients without a session may have half of them, with their channels, except
	// the private ones that a session has authorized: these count for that session.
	MaxSockets int
	// SessionLocks and SessionSockets are how many locks and open sockets one session may
	// have on this instance; zero: 100. A lock is counted until it is released here, or for
	// one TTL after its last heartbeat here.
	SessionLocks, SessionSockets int

	Ping   time.Duration // the interval of a socket's pings, and the time limit of the answer; zero: 20 s
	Tracer trace.Tracer  // makes the span "request"; nil: no spans
	Log    *slog.Logger  // nil: no log
}

// Server serves the document lock over HTTP. Its methods may be called concurrently.
type Server struct {
	*lifecycle.Lifecycle // counts the open sockets
	locks                *document.Locks
	feed                 *document.Feed
	sessions             Sessions
	o                    Options
	work                 context.Context // its end closes all sockets; see NewServer
	sites                http.CrossOriginProtection
	echo                 *echo.Echo
	gate                 *gate
	rooms                quota
	sockets, channels    quota
	log                  *slog.Logger
}

// NewServer serves the locks of rooms, and the events of feed, to callers that
// sessions identifies. When work ends, sockets are closed with 1001 (going away); see
// Drain.
func NewServer(work context.Context, locks *document.Locks, feed *document.Feed, sessions Sessions, o Options) *Server {
	o.MaxSockets, o.Ping = cmp.Or(o.MaxSockets, 10_000), cmp.Or(o.Ping, 20*time.Second)
	o.SessionLocks, o.SessionSockets = cmp.Or(o.SessionLocks, 100), cmp.Or(o.SessionSockets, 100)
	o.Log, o.Tracer = cmp.Or(o.Log, slog.New(slog.DiscardHandler)), cmp.Or[trace.Tracer](o.Tracer, noop.Tracer{})
	s := &Server{
		Lifecycle: lifecycle.New(work, o.Log), work: work, log: o.Log, o: o,
		locks: locks, feed: feed, sessions: sessions, echo: echo.New(), gate: newGate(o.Authorize),
	}
	for _, origin := range o.Origins {
		_ = s.sites.AddTrustedOrigin(origin) // an invalid origin is not trusted
	}

	s.echo.HTTPErrorHandler = s.handleError
	s.echo.Use(s.spanned, headers, crossOrigin(o.Origins), s.RecoverPanics)
	s.Attach(s.echo)

	const lock = "/api/documents/:roomId/lock"
	s.echo.POST(lock, s.lock("acquire", s.acquire))
	s.echo.PUT(lock, s.lock("extend", s.extend))
	s.echo.DELETE(lock, s.lock("release", s.release))
	s.echo.GET(lock, s.lock("show", s.show))
	s.echo.GET(lock+"/confirm", s.lock("confirm", s.confirm))
	s.echo.GET(lock+"/ws", s.logged("subscribe", s.subscribe))
	s.echo.GET("/app/:key", s.logged("connect", s.connect))
	s.echo.POST("/broadcasting/auth", s.logged("authorize", s.authorize))
	s.echo.POST("/internal/sweep", s.logged("sweep", s.sweep))
	s.pages()
	return s
}

// ServeHTTP makes Server an http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// spanned is a middleware that makes the span of a request, named by its route: the
// room is not in it. Since anybody may call, the caller does not decide what is
// sampled: the span begins a new trace, linked to the caller's, while the log lines
// belong to the caller's. Probes have no span, nor have sockets, which live for hours.
func (s *Server) spanned(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		route := c.Path()
		if strings.HasPrefix(route, "/health/") || strings.HasSuffix(route, "/ws") || route == "/app/:key" {
			return next(c)
		}

		r := c.Request()
		_, span := s.o.Tracer.Start(r.Context(), "request", trace.WithSpanKind(trace.SpanKindServer),
			trace.WithNewRoot(), trace.WithLinks(trace.LinkFromContext(r.Context())))
		defer func() { span.End() }() // span.End deferred directly would record a panic's value

		if err := next(c); err != nil {
			c.Error(err) // answers now, so that the status is known
		}
		status := c.Response().Status
		span.SetAttributes(attribute.String("http.request.method", method(r.Method)))
		if route != "" {
			span.SetAttributes(attribute.String("http.route", route))
		}
		span.SetAttributes(attribute.Int("http.response.status_code", status))
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
		return nil
	}
}

// method returns a request's method, or _OTHER: a client may send any text.
func method(name string) string {
	if slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}, name) {
		return name
	}
	return "_OTHER"
}

const contentPolicy = "default-src 'self'; worker-src 'self' blob:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// headers adds security headers to every answer: the page runs no script of another
// site, and no other site can frame it.
func headers(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		lifecycle.Secure(h, c.Request(), contentPolicy)
		h.Set("Referrer-Policy", "no-referrer")
		return next(c)
	}
}

// crossOrigin returns a middleware that lets pages of these origins read answers, and send cookies
// and any headers (CORS). The browser refuses other origins, as it gets no such header.
func crossOrigin(origins []string) echo.MiddlewareFunc {
	return middleware.CORSWithConfig(middleware.CORSConfig{
		AllowOriginFunc:  func(origin string) (bool, error) { return slices.Contains(origins, origin), nil },
		AllowMethods:     []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete},
		AllowCredentials: true,
		MaxAge:           600,
	})
}

// pages serves the files of package web. index.html is / too, where a session begins.
func (s *Server) pages() {
	for _, name := range []string{"index.html", "locks.js", "locks.d.ts", "page.css", "page.js"} {
		s.echo.GET("/"+name, file(name))
	}
	index := file("index.html")
	s.echo.GET("/", func(c echo.Context) error {
		_, _ = s.sessions.Caller(c.Response(), c.Request(), true) // the page is for everybody
		return index(c)
	})
}

// ownEndpoint is added to /locks.js: pages that import it from this server use this server.
const ownEndpoint = "\ndefaults.endpoint = new URL('/api/documents', import.meta.url).href;\n"

// file serves one of the files. They belong to this server's version, so browsers ask each
// time, and get an unchanged file only once. With no-store they would not restore the page
// by the back button.
func file(name string) echo.HandlerFunc {
	data, _ := web.Files.ReadFile(name) // embedded
	if name == "locks.js" {
		data = append(data, ownEndpoint...)
	}
	tag, kind := fmt.Sprintf(`"%x"`, sha256.Sum256(data)), mime.TypeByExtension(path.Ext(name))
	if name == "locks.d.ts" {
		kind = "text/plain; charset=utf-8" // some systems map .ts to a video type
	}

	return func(c echo.Context) error {
		h := c.Response().Header()
		h.Set("Cache-Control", "private, no-cache")
		h.Set("ETag", tag)
		h.Set("Content-Type", kind)
		http.ServeContent(c.Response(), c.Request(), name, time.Time{}, bytes.NewReader(data))
		return nil
	}
}
