// Package lifecycle has what every HTTP server here needs: health routes, recovery
// from panics, and a count of what a stop must wait for.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
)

// The errors of Begin.
var (
	ErrStopping = errors.New("lifecycle: stopping")
	ErrFull     = errors.New("lifecycle: too many at once")
)

// maxStack bounds what is logged of a panic's stack, in bytes.
const maxStack = 4096

// Lifecycle is the lifecycle of one server. Its methods may be called concurrently.
type Lifecycle struct {
	work  context.Context // ends when the server is to stop
	log   *slog.Logger
	ready atomic.Bool

	mu      sync.Mutex
	begun   int           // by Begin
	passing *int          // by Pass, before Drain or after
	ended   chan struct{} // wakes Drain
}

// New returns the lifecycle of a server that stops when work ends.
func New(work context.Context, log *slog.Logger) *Lifecycle {
	return &Lifecycle{work: work, log: log, passing: new(int), ended: make(chan struct{}, 1)}
}

// Attach gives e the routes /health/live, 200 while the process serves, and
// /health/ready, 200 from the first success of AwaitReady until the stop.
func (l *Lifecycle) Attach(e *echo.Echo) {
	e.GET("/health/live", func(c echo.Context) error {
		return c.JSON(http.StatusOK, map[string]string{"status": "live"})
	})
	e.GET("/health/ready", func(c echo.Context) error {
		if !l.ready.Load() || l.work.Err() != nil {
			return c.JSON(http.StatusServiceUnavailable, map[string]string{"status": "not_ready", "reason": "unavailable"})
		}
		return c.JSON(http.StatusOK, map[string]string{"status": "ready"})
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
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// Begin counts an action that a stop waits for: ErrStopping once the server is to
// stop, ErrFull if limit is not zero and so many have begun. End ends it.
func (l *Lifecycle) Begin(limit int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.work.Err() != nil:
		return ErrStopping
	case limit > 0 && l.begun >= limit:
		return ErrFull
	}
	l.begun++
	return nil
}

// End ends what Begin began.
func (l *Lifecycle) End() { l.end(&l.begun) }

// Pass counts a short request until the returned function is called. It is never
// refused, and Drain waits for those that began before it.
func (l *Lifecycle) Pass() (passed func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	count := l.passing
	*count++
	return func() { l.end(count) }
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

// Drain waits until everything that has begun by now has ended, or until ctx ends,
// and returns how many have not. It is called once, after the work of New has ended.
func (l *Lifecycle) Drain(ctx context.Context) (left int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.passing
	l.passing = new(int)
	for l.begun+*before > 0 {
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			l.mu.Lock()
			return l.begun + *before
		case <-l.ended:
		}
		l.mu.Lock()
	}
	return 0
}

// Recovered is a middleware that answers 500 to a handler's panic, and logs the
// panic's type and stack: its value may contain a user's input.
func (l *Lifecycle) Recovered(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			if p := recover(); p != nil {
				stack := debug.Stack()
				l.log.ErrorContext(c.Request().Context(), "panic in a handler", "type", fmt.Sprintf("%T", p), "stack", string(stack[:min(maxStack, len(stack))]))
				err = echo.NewHTTPError(http.StatusInternalServerError)
			}
		}()
		return next(c)
	}
}
