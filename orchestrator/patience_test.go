//go:build linux || darwin

package orchestrator_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// gone has analyzers that go away. Each calls leave before it does.
var gone = map[string]func(t *testing.T, leave func()) orchestrator.Analyzer{
	"reset before the answer": func(t *testing.T, leave func()) orchestrator.Analyzer {
		return answering(t, func(http.ResponseWriter) { leave(); panic(http.ErrAbortHandler) })
	},
	"within the answer": func(t *testing.T, leave func()) orchestrator.Analyzer {
		return answering(t, func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"n":`)
			_ = http.NewResponseController(w).Flush()
			leave()
			panic(http.ErrAbortHandler)
		})
	},
	"lines of HTTP/1.0": func(t *testing.T, leave func()) orchestrator.Analyzer {
		return answering(t, func(w http.ResponseWriter) {
			c, _, err := http.NewResponseController(w).Hijack()
			check(err)
			must(io.WriteString(c, "HTTP/1.0 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n{\"progress\":0.5}\n"))
			leave()
			_ = c.Close()
		})
	},
	"lines without a result": func(t *testing.T, leave func()) orchestrator.Analyzer {
		return answering(t, func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/x-ndjson")
			leave()
		})
	},
	"a 500": answeringStatus(500), "a 502 of its proxy": answeringStatus(502),
	"refused": func(t *testing.T, leave func()) orchestrator.Analyzer {
		s := serve(t, nil)
		s.Close()
		leave()
		return newAnalyzer(t, s.URL, orchestrator.Options{AnyOutput: true})
	},
	"SIGTERM": ending("kill -TERM $$"), "SIGINT": ending("kill -INT $$"), "the exit of a shell": ending("exit 143"),
}

// answering returns an endpoint that answers by these.
func answering(t *testing.T, answer func(w http.ResponseWriter)) orchestrator.Analyzer {
	t.Helper()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		answer(w)
	})
	return newAnalyzer(t, s.URL, orchestrator.Options{AnyOutput: true})
}

// answeringStatus returns an endpoint that answers with a status.
func answeringStatus(status int) func(t *testing.T, leave func()) orchestrator.Analyzer {
	return func(t *testing.T, leave func()) orchestrator.Analyzer {
		t.Helper()
		return answering(t, func(w http.ResponseWriter) { leave(); w.WriteHeader(status) })
	}
}

// ending returns a script that ends with this command.
func ending(command string) func(t *testing.T, leave func()) orchestrator.Analyzer {
	return func(t *testing.T, leave func()) orchestrator.Analyzer {
		t.Helper()
		leave()
		return shell(t, command)
	}
}

// In a stop of the instance, the sidecar may get SIGTERM first.
func TestPatience(t *testing.T) {
	stopping := errors.New("the instance stops")
	for name, analyzer := range gone {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancelCause(t.Context())
			a := analyzer(t, func() { time.AfterFunc(100*time.Millisecond, func() { stop(stopping) }) })
			orchestrator.SetPatience(a, never) // else a slow machine would stop too late
			_, err := orchestrator.Run(ctx, a, orchestrator.Job{})
			wantRetry(t, err)
			if context.Cause(ctx) == nil {
				t.Errorf("got %v, before the stop", err)
			}
		})
		t.Run(name+", without a stop", func(t *testing.T) {
			a := analyzer(t, func() {})
			orchestrator.SetPatience(a, time.Millisecond)
			_, err := orchestrator.Run(t.Context(), a, orchestrator.Job{})
			var failed *orchestrator.FailureError
			if wantRetry(t, err); !errors.As(err, &failed) {
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
		"a 400":               endpoint(400, "X: y", ""),
		"a 200":               endpoint(200, "X: y", ""),
		"lines with a result": endpoint(200, "Content-Type: application/x-ndjson", `{"result":1}`), // without a newline
		"no such host":        newAnalyzer(t, "http://host.invalid/", orchestrator.Options{}),
		"exit 1":              shell(t, "exit 1"),
		"exit 65":             shell(t, "exit 65"),
		"SIGKILL":             shell(t, "kill -KILL $$"),
	} {
		t.Run(name, func(t *testing.T) {
			orchestrator.SetPatience(a, never)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := orchestrator.Run(ctx, a, orchestrator.Job{}); ctx.Err() != nil {
				t.Errorf("it waited for a stop: %v", err)
			}
		})
	}
}
