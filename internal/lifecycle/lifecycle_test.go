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
)

func TestDrainWaitsOnlyForWhatBeganBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work, stop := context.WithCancel(t.Context())
		l := lifecycle.New(work, slog.New(slog.DiscardHandler))
		if err := l.Begin(0); err != nil {
			t.Fatal(err)
		}
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

func TestItIsReadyOnceTheStoreHasAnsweredAndUntilItStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work, stop := context.WithCancel(t.Context())
		defer stop()
		var log bytes.Buffer
		l, e := lifecycle.New(work, slog.New(slog.NewTextHandler(&log, nil))), echo.New()
		l.Attach(e)
		answers := func(path string, code int, body string) {
			t.Helper()
			w := httptest.NewRecorder()
			e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/health/"+path, nil))
			if got := strings.TrimSpace(w.Body.String()); w.Code != code || got != body {
				t.Errorf("%s: %d %s, want %d %s", path, w.Code, got, code, body)
			}
		}
		which := `"commit":"` + build.Commit() + `",`
		not := `{` + which + `"reason":"unavailable","status":"not_ready","version":"` + build.Release + `"}`
		answers("ready", 503, not)
		began, failures := time.Now(), 8
		l.AwaitReady(t.Context(), func(context.Context) error {
			if failures--; failures >= 0 {
				return errors.New("unavailable")
			}
			return nil
		})
		if took := time.Since(began); took != 16300*time.Millisecond || strings.Count(log.String(), "level=WARN") != 8 {
			t.Errorf("ready after %v, want 16.3 s: %s", took, &log)
		}
		answers("ready", 200, `{`+which+`"status":"ready","version":"`+build.Release+`"}`)
		stop()
		answers("ready", 503, not)
		answers("live", 200, `{"status":"live"}`)
	})
}
