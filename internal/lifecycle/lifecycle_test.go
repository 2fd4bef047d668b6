package lifecycle_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/internal/build"
	"taskguard/internal/lifecycle"
	"taskguard/internal/testing/must"
)

// It waits only for what began before it.
func TestLifecycle_Drain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work, stop := context.WithCancel(t.Context())
		l := lifecycle.New(work, slog.New(slog.DiscardHandler))
		must.OK(t, l.Begin(0))
		before := l.Track()
		time.AfterFunc(time.Second, l.End)
		time.AfterFunc(2*time.Second, before)
		for i := range 20 { // requests without end, each of a second
			time.AfterFunc(time.Duration(i+1)*time.Second/2, func() { time.AfterFunc(time.Second, l.Track()) })
		}
		stop()
		if err := l.Begin(0); !errors.Is(err, lifecycle.ErrStopping) {
			t.Errorf("an action begins after the stop: %v", err)
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		if left := l.Drain(ctx); left != 0 || time.Since(began) != 2*time.Second {
			t.Errorf("%d left after %v; want none after 2 s", left, time.Since(began))
		}
		time.Sleep(20 * time.Second)
	})
}

// It is ready once the store has answered, and until it stops.
func TestLifecycle_Attach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work, stop := context.WithCancel(t.Context())
		defer stop()
		var log bytes.Buffer
		l, e := lifecycle.New(work, slog.New(slog.NewTextHandler(&log, nil))), echo.New()
		l.Attach(e)
		check := func(path string, code int, words ...string) {
			t.Helper()
			w := httptest.NewRecorder()
			e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/health/"+path, nil))
			if w.Code != code {
				t.Errorf("%s: %d, want %d", path, w.Code, code)
			}
			for _, word := range words {
				if !strings.Contains(w.Body.String(), `"`+word+`"`) {
					t.Errorf("%s: no %q in %s", path, word, w.Body)
				}
			}
		}

		check("ready", 503, "not_ready", "unavailable", build.Release)
		began, failures := time.Now(), 8
		l.AwaitReady(t.Context(), func(context.Context) error {
			if failures--; failures >= 0 {
				return errors.New("unavailable")
			}
			return nil
		})
		if took := time.Since(began); took != 16300*time.Millisecond { // 0.1 s doubles to 5 s
			t.Errorf("ready after %v, want 16.3 s", took)
		}
		if warnings := strings.Count(log.String(), "level=WARN"); warnings != 8 {
			t.Errorf("%d warnings of 8 failures: %s", warnings, &log)
		}
		check("ready", 200, "ready", build.Release, build.Commit())
		stop()
		check("ready", 503, "not_ready")
		check("live", 200, "live")
	})
}
