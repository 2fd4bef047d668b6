package worker_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"google.golang.org/grpc"

	"taskguard/worker"
)

// lines is a log.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

// with returns the lines that contain text.
func (l *lines) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.all.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// An alert is for starts that are late against somebody's will. A parked analysis waits on purpose, and is counted.
func TestKey_ParkedIsNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, reader := &lines{}, sdkmetric.NewManualReader()
		o := worker.Options{
			KeyField: "input.tenant", Log: slog.New(slog.NewJSONHandler(log, nil)),
			MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		}
		slow := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
			opts ...grpc.CallOption,
		) error {
			time.Sleep(200 * time.Millisecond) // so that a start is not at once
			return invoke(ctx, method, req, reply, conn, opts...)
		}
		s := serveKeyed(t, worker.Kind{}, o, grpc.WithChainUnaryInterceptor(slow))
		g := s.Guard(o)
		g.MustRegister(worker.Kind{}).Handler() // so that recovery includes the kind
		parked := func(want string) {
			t.Helper()
			s.Mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/internal/tasks/recover", nil))
			if got := worker.Counts(t, reader, "taskguard.parked"); got != want {
				t.Errorf("the gauge has %q, want %q", got, want)
			}
		}

		s.submit(t, "a", 3)
		synctest.Wait()
		parked(":2")
		s.idle(t, 3)
		parked(":0")
		started := log.with(`"time_to_start_ms"`)
		if len(started) != 1 || !strings.Contains(started[0], `"analysis_id":"a0"`) {
			t.Errorf("the time to start is in %q, want only that of a0", started)
		}
		if got := worker.Counts(t, reader, "taskguard.analysis.start.duration"); !strings.HasPrefix(got, ":0.") {
			t.Errorf("the starts took %q, want less than a second", got)
		}
	})
}

// A misspelt field limits nothing: the process says so once, unless a run had a key.
func TestKey_NoneFound(t *testing.T) {
	const warning = "no analysis has a key"
	for name, tc := range map[string]struct {
		keyed, free, want int
	}{
		"a hundred":                    {free: 101, want: 1},
		"fewer":                        {free: 99},
		"a hundred after one with key": {keyed: 1, free: 101},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := &lines{}
				s := serveKeyed(t, worker.Kind{}, worker.Options{
					KeyField: "input.tenant", Log: slog.New(slog.NewJSONHandler(log, nil)),
				})
				s.lasts = time.Second
				s.submit(t, "a", tc.keyed)
				s.submit(t, "free", tc.free)
				s.idle(t, tc.keyed+tc.free)
				if got := log.with(warning); len(got) != tc.want {
					t.Errorf("logged %q, want %d lines", got, tc.want)
				}
			})
		})
	}
}
