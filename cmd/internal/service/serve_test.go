package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"taskguard/internal/build"
	"taskguard/internal/env"
	"taskguard/internal/telemetry"
	"taskguard/internal/testing/emulatortest"
)

// silent is a listener without clients.
type silent struct{ closed chan struct{} }

func (l silent) Accept() (net.Conn, error) { <-l.closed; return nil, errors.New("listener failed") }
func (l silent) Close() error              { return nil }
func (l silent) Addr() net.Addr            { return &net.TCPAddr{Port: 1} }

func TestService_Serve(t *testing.T) {
	for name, failed := range map[string]bool{"stopped": false, "listener failed": true} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			done := make(chan string, 10)
			l := silent{make(chan struct{})}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			s := Service{
				Limits: DefaultLimits(), Log: telemetry.NewLogger(&log, "json", 0),
				Drain: func(ctx context.Context) { done <- fmt.Sprint("drain ", ctx.Err()) },
				Flush: func(ctx context.Context) {
					deadline, _ := ctx.Deadline()
					done <- "flush for " + time.Until(deadline).String()
					close(l.closed)
				},
				Background: []func(context.Context){func(ctx context.Context) {
					<-ctx.Done()
					time.Sleep(time.Second)
					done <- "background"
				}},
			}
			if failed {
				s.Flush = func(context.Context) { done <- "flush for 2s" }
				close(l.closed)
			} else {
				time.AfterFunc(time.Minute, stop)
			}
			err := s.Serve(ctx, l, slog.String("setting", "x"))
			close(done)
			var events []string
			for event := range done {
				events = append(events, event)
			}
			if want := []string{"drain <nil>", "flush for 2s", "background"}; !slices.Equal(events, want) {
				t.Errorf("%s: %q, want %q", name, events, want)
			}
			if (err != nil) != failed {
				t.Errorf("%s: %v", name, err)
			}
			for _, want := range []string{
				`"message":"serving","address":":1","memory_limit":`, `"stopping"`,
				`,"version":"` + build.Release + `","commit":"` + build.Commit() + `","setting":"x"`,
			} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("%s: the log lacks %s: %s", name, want, &log)
				}
			}
		})
	}
}

// The metadata server's answer is kept for the process, so what fails comes first.
func TestProcess_Main(t *testing.T) {
	id := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/computeMetadata/v1/project/project-id" || id == "" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, id)
	}))
	defer s.Close()
	t.Setenv("GCE_METADATA_HOST", s.Listener.Addr().String())
	t.Setenv("GOMEMLIMIT", "off")
	taken := s.Listener.Addr().(*net.TCPAddr).Port
	ended := errors.New("ended")
	for _, tc := range []struct {
		process Process
		id      string
		err     error // of serve
		code    int
		want    string
	}{
		{process: Process{Firestore: env.Firestore{Emulator: "h:1"}}, id: "p", code: 2, want: "GOOGLE_CLOUD_PROJECT: "},
		{code: 2, want: "GOOGLE_CLOUD_PROJECT: "},
		{id: "my-project", err: ended, code: 1, want: "ended"},
		{process: Process{Port: taken}, id: "my-project", code: 1, want: "PORT: "},
		{process: Process{LogFormat: "text"}, id: "my-project"},
	} {
		id = tc.id
		served, p := 0, tc.process
		var out strings.Builder
		code, err := p.Main(t.Context(), &out, func(_ context.Context, l net.Listener, log *slog.Logger) error {
			served++
			log.InfoContext(t.Context(), "x")
			if p.Project != tc.id || p.Telemetry.Project != tc.id {
				t.Errorf("process %+v, want the project %s", p, tc.id)
			}
			if strings.Contains(out.String(), "level=INFO msg=x") != (p.LogFormat == "text") {
				t.Errorf("process %+v logs %s", p, &out)
			}
			return errors.Join(tc.err, l.Close())
		})
		if code != tc.code || !strings.HasPrefix(fmt.Sprint(err), cmp.Or(tc.want, "<nil>")) {
			t.Errorf("%d, %v, want %d, %s", code, err, tc.code, tc.want)
		}
		if serves := tc.err != nil || code == 0; (served == 1) != serves {
			t.Errorf("%+v: served %d times, want it: %t", tc.process, served, serves)
		}
	}
}

func TestLimits(t *testing.T) {
	m := DefaultLimits()
	s := m.Server(nil, slog.New(slog.DiscardHandler))
	got := []time.Duration{s.ReadHeaderTimeout, s.ReadTimeout, s.IdleTimeout, s.WriteTimeout}
	if want := []time.Duration{m.Header, m.Request, m.Idle, 0}; !slices.Equal(got, want) {
		t.Errorf("timeouts of %v, want %v: an answer may take long", got, want)
	}
	if s.MaxHeaderBytes != m.HeaderBytes {
		t.Errorf("headers of %d bytes, want %d", s.MaxHeaderBytes, m.HeaderBytes)
	}
}

// A run that does not end takes all of the drain, and a collector that never answers
// all of the flush.
func TestService_SlowestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, wait := slog.New(slog.DiscardHandler), func(ctx context.Context) { <-ctx.Done() }
		m := DefaultLimits()
		began := time.Now()
		Service{Limits: m, Flush: wait, Log: log, Drain: wait}.shut(t.Context(), m.Server(nil, log))
		if took := time.Since(began); took < m.Drain || took >= 9*time.Second {
			t.Errorf("took %v, want all of the drain, and less than 9s", took)
		}
	})
}

func TestCollectLess(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	for _, tc := range []struct {
		limit int64
		set   string // GOGC, of which the runtime has read the default 100
		want  uint64
	}{{math.MaxInt64, "", 100}, {1 << 30, "", 400}, {1 << 30, "100", 100}, {1 << 30, "off", 100}} {
		debug.SetMemoryLimit(tc.limit)
		debug.SetGCPercent(100)
		t.Setenv("GOGC", tc.set)
		collectLess()
		percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		if metrics.Read(percent); percent[0].Value.Uint64() != tc.want {
			t.Errorf("limit %d, GOGC %q: %d, want %d", tc.limit, tc.set, percent[0].Value.Uint64(), tc.want)
		}
	}
}

func TestMain(m *testing.M) {
	if code, err := strconv.Atoi(os.Getenv("TEST_EXIT")); err == nil {
		Exit("p", func(context.Context, func(string) (string, bool), io.Writer) (int, error) {
			return code, map[bool]error{true: errors.New("why")}[code > 0]
		})
		panic("it goes on")
	}
	emulatortest.Isolate()
	goleak.VerifyTestMain(m)
}

func TestExit(t *testing.T) {
	for _, tc := range []struct {
		code string
		args []string
		want string
	}{
		{"0", nil, "exit 0: "}, {"3", nil, "exit 3: why\n"}, {"0", []string{"x"}, "exit 2: p takes no arguments: "},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], tc.args...)
		cmd.Env = append(os.Environ(), "TEST_EXIT="+tc.code)
		out, _ := cmd.CombinedOutput()
		got := fmt.Sprintf("exit %d: %s", cmd.ProcessState.ExitCode(), out)
		if !strings.HasPrefix(got, tc.want) || strings.Count(got, "\n") > 1 {
			t.Errorf("%q: %s, want %s", tc.args, got, tc.want)
		}
	}
}
