//go:build linux || darwin

package orchestrator_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// answering returns an endpoint that answers by these.
func answering(t *testing.T, answer func(w http.ResponseWriter)) orchestrator.Analyzer {
	t.Helper()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		answer(w)
	})
	return newAnalyzer(t, s.URL, orchestrator.Options{AnyOutput: true})
}

// goneEndpoints are answers of endpoints that go away.
var goneEndpoints = map[string]func(w http.ResponseWriter){
	"reset before the answer": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	"reset within the answer": func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, `{"n":`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	},
	"lines of HTTP/1.0": func(w http.ResponseWriter) {
		c, _, err := http.NewResponseController(w).Hijack()
		check(err)
		must(io.WriteString(c, "HTTP/1.0 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n{\"progress\":0.5}\n"))
		_ = c.Close()
	},
	"a 500":              func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
	"a 502 of its proxy": func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) },
}

// gone returns analyzers that go away. Each of the goneEndpoints calls leave before it does.
func gone(t *testing.T, leave func()) map[string]orchestrator.Analyzer {
	t.Helper()
	closed := serve(t, nil)
	closed.Close()
	all := map[string]orchestrator.Analyzer{
		"refused": newAnalyzer(t, closed.URL, orchestrator.Options{}), "SIGTERM": shell(t, "kill -TERM $$"),
		"SIGINT": shell(t, "kill -INT $$"), "the exit of a shell": shell(t, "exit 143"),
	}
	for name, answer := range goneEndpoints {
		all[name] = answering(t, func(w http.ResponseWriter) { leave(); answer(w) })
	}
	return all
}

// In a stop of the instance, the sidecar may get SIGTERM first.
func TestPatience(t *testing.T) {
	var leave atomic.Value // of func(): servers read it
	leave.Store(func() {})
	for name, a := range gone(t, func() { leave.Load().(func())() }) {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			depart := func() { time.AfterFunc(100*time.Millisecond, stop) }
			leave.Store(depart)
			if goneEndpoints[name] == nil {
				depart()
			}
			orchestrator.SetPatience(a, never) // else a slow machine would stop too late
			_, err := orchestrator.Run(ctx, a, orchestrator.Job{})
			if wantRetry(t, err); ctx.Err() == nil {
				t.Errorf("got %v, before the stop", err)
			}
		})
		t.Run(name+", without a stop", func(t *testing.T) {
			leave.Store(func() {})
			orchestrator.SetPatience(a, time.Millisecond)
			_, err := orchestrator.Run(t.Context(), a, orchestrator.Job{})
			if wantRetry(t, err); !errors.As(err, new(*orchestrator.FailureError)) {
				t.Errorf("got %v, want a failure", err)
			}
		})
	}
}

func TestPatience_OtherEnds(t *testing.T) {
	endpoint := func(status int, header, body string) orchestrator.Analyzer {
		return answering(t, func(w http.ResponseWriter) {
			name, value, _ := strings.Cut(header, ": ")
			w.Header().Set(name, value)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
	}
	for name, a := range map[string]orchestrator.Analyzer{
		"a 500 with a code":   endpoint(500, "X: y", `{"error":{"code":"no_page"}}`),
		"a 503 with a wait":   endpoint(503, "Retry-After: 9", ""),
		"a 429":               endpoint(429, "X: y", ""),
		"lines with a result": endpoint(200, "Content-Type: application/x-ndjson", `{"result":1}`), // without a newline
		"no such host":        newAnalyzer(t, "http://host.invalid/", orchestrator.Options{}),
		"exit 1":              shell(t, "exit 1"),
		"SIGKILL":             shell(t, "kill -KILL $$"),
	} {
		t.Run(name, func(t *testing.T) {
			orchestrator.SetPatience(a, never)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := orchestrator.Run(ctx, a, orchestrator.Job{})
			if ctx.Err() != nil {
				t.Errorf("it waited for a stop: %v", err)
			}
		})
	}
}
