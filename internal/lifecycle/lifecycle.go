// Package lifecycle has the parts that all HTTP servers here need: health routes, recovery
// from panics, and a count of the work that a stop waits for.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/internal/build"
	"taskguard/internal/clock"
	"taskguard/internal/text"
)

// The errors of Begin.
var (
	ErrStopping = errors.New("lifecycle: stopping")
	ErrFull     = errors.New("lifecycle: too many at once")
)

// maxStack is the number of bytes that are logged of a panic's stack.
const maxStack = 4096

// Lifecycle is the lifecycle of one server. Its methods may be called concurrently.
type Lifecycle struct {
	work  context.Context // ends when the server is to stop
	log   *slog.Logger
	ready atomic.Bool

	mu       sync.Mutex
	actions  int           // the actions that Begin has counted
	requests int           // the requests that Track has counted
	ended    chan struct{} // wakes Drain
}

// New returns the lifecycle of a server that stops when work ends.
func New(work context.Context, log *slog.Logger) *Lifecycle {
	return &Lifecycle{work: work, log: log, ended: make(chan struct{}, 1)}
}

// Attach adds the routes /health/live and /health/ready to e. The first answers 200
// while the process serves, the second from the first success of AwaitReady to the stop.
func (l *Lifecycle) Attach(e *echo.Echo) {
	e.GET("/health/live", func(c echo.Context) error {
		return c.JSON(http.StatusOK, map[string]string{"status": "live"})
	})
	e.GET("/health/ready", func(c echo.Context) error {
		code, answer := http.StatusOK, map[string]string{"status": "ready"}
		if !l.ready.Load() || l.work.Err() != nil {
			code = http.StatusServiceUnavailable
			answer = map[string]string{"status": "not_ready", "reason": "unavailable"}
		}
		answer["version"], answer["commit"] = build.Release, build.Commit()
		return c.JSON(code, answer)
	})
}

// AwaitReady makes /health/ready answer 200 once ping has succeeded. It tries
// until then or until ctx ends.
func (l *Lifecycle) AwaitReady(ctx context.Context, ping func(context.Context) error) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := ping(ctx)
		if err == nil {
			l.ready.Store(true)
			return
		}
		l.log.WarnContext(ctx, "not ready: Firestore has not answered", "error", err)
		if !clock.Sleep(ctx, wait) {
			return
		}
	}
}

// Begin counts an action that Drain waits for, until End is called. It returns ErrStopping if
// the server is stopping, and ErrFull if limit actions have begun. A limit of zero is none.
func (l *Lifecycle) Begin(limit int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.work.Err() != nil:
		return ErrStopping
	case limit > 0 && l.actions >= limit:
		return ErrFull
	}
	l.actions++
	return nil
}

// End ends an action that Begin has counted.
func (l *Lifecycle) End() { l.end(&l.actions) }

// Track counts a short request until done is called. It never refuses. Once the server is stopping,
// it counts no more: Drain waits only for the requests that began before.
func (l *Lifecycle) Track() (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.work.Err() != nil {
		return func() {}
	}
	l.requests++
	return func() { l.end(&l.requests) }
}

func (l *Lifecycle) end(count *int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*count--
	select {
	case l.ended <- struct{}{}:
	default:
	}
}

// Drain waits until all actions and requests have ended, or until ctx ends. It returns how many have
// not ended. Call it once, after the context work of New has ended.
func (l *Lifecycle) Drain(ctx context.Context) (left int) {
	for {
		l.mu.Lock()
		left = l.actions + l.requests
		l.mu.Unlock()
		if left == 0 || ctx.Err() != nil {
			return left
		}
		select {
		case <-ctx.Done():
		case <-l.ended:
		}
	}
}

// TLS reports whether a client used https, to this server or to the outermost proxy.
func TLS(r *http.Request) bool {
	proto, _, _ := strings.Cut(r.Header.Get("X-Forwarded-Proto"), ",")
	return r.TLS != nil || strings.EqualFold(strings.TrimSpace(proto), "https")
}

// Secure adds security headers to h, the header of the answer to r. policy says what the page may
// load. No other site can frame the page, and no cache keeps it. If r used TLS, the browser uses
// only https for this host for a year.
func Secure(h http.Header, r *http.Request, policy string) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if TLS(r) {
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
}

// RecoverPanics is a middleware that answers 500 if a handler panics, and logs the panic.
func (l *Lifecycle) RecoverPanics(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			if p := recover(); p != nil {
				l.LogPanic(c.Request().Context(), p)
				err = echo.NewHTTPError(http.StatusInternalServerError)
			}
		}()
		return next(c)
	}
}

// LogPanic logs the type and the stack of a panic, for a function that has recovered it. It does not log
// the value, which may contain a user's input.
func (l *Lifecycle) LogPanic(ctx context.Context, value any) {
	l.log.ErrorContext(ctx, "panic in a handler",
		"type", fmt.Sprintf("%T", value), "stack", text.Head(string(debug.Stack()), maxStack))
}
