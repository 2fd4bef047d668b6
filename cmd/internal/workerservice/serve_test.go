package workerservice

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/must"

	"taskguard/internal/telemetry"
	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
	"taskguard/worker"
)

func TestServe_NoStart(t *testing.T) {
	t.Setenv("LOCK_TLT", "60s")
	closed := listen(t)
	_ = closed.Close()
	var log emulatortest.Log
	for name, tc := range map[string]struct {
		l     net.Listener
		spoil func(*Config)
	}{
		"a listener": {closed, func(*Config) {}},
		"an option":  {listen(t), func(c *Config) { c.Options.MaxRuns = -1 }},
		"a variable of OpenTelemetry": {listen(t), func(c *Config) {
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "x")
			c.Telemetry.Traces = "http://127.0.0.1:1"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := parse("TASK_AUTH=iam", "GOOGLE_CLOUD_PROJECT=p", "FIRESTORE_EMULATOR_HOST=127.0.0.1:1")
			must.OK(t, err)
			tc.spoil(&c)
			if err := Serve(t.Context(), c, tc.l, telemetry.NewLogger(&log, "json", 0)); err == nil {
				t.Error("no error")
			}
			if _, err := tc.l.Accept(); err == nil {
				t.Error("the listener is open")
			}
		})
	}
	for _, warning := range []string{"anybody who reaches this process may call", "LOCK_TLT"} {
		if !strings.Contains(log.String(), warning) {
			t.Errorf("log: %s, want warnings of TASK_AUTH=iam outside Cloud Run and of LOCK_TLT", &log)
		}
	}
}

func TestMain_ExitCode(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "x") // which Serve refuses
	for want, port := range map[int]string{2: "PORT=x", 1: "PORT=0"} {
		env := environ("TASK_AUTH=none", "GOOGLE_CLOUD_PROJECT=p", "FIRESTORE_EMULATOR_HOST=127.0.0.1:1", port,
			"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1")
		if code, err := Main(t.Context(), env, io.Discard); code != want || err == nil {
			t.Errorf("%s: %d, %v, want %d", port, code, err, want)
		}
	}
}

func TestServe_Stop(t *testing.T) {
	// Until the run has ended, the service answers that it is live and not ready.
	t.Run("half a request is no run, delays nothing, and causes no warning", func(t *testing.T) {
		running := make(chan struct{})
		var s *served
		s = serve(t, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
			close(running)
			<-ctx.Done()
			for path, want := range map[string]int{"live": http.StatusOK, "ready": http.StatusServiceUnavailable} {
				resp, err := http.Get(s.url + "/health/" + path)
				if err != nil || resp.StatusCode != want {
					t.Errorf("%s: %+v, %v", path, resp, err)
				}
				_ = resp.Body.Close()
			}
			return nil, ctx.Err()
		}, func(c *Config) { c.Limits.Drain, c.Limits.Request = time.Hour, time.Hour })
		half, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		must.OK(t, err)
		defer half.Close()
		const request = "POST /internal/tasks/analysis HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
		_, err = io.WriteString(half, request)
		if err = errors.Join(err, half.SetDeadline(time.Now().Add(hang))); err != nil {
			t.Fatal(err)
		}
		answer := s.delivered()
		<-running
		s.stop()
		s.wait(t)
		if got := <-answer; !strings.HasPrefix(got, "500") {
			t.Errorf("answer: %s", got)
		}
		if _, err := io.ReadAll(half); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection is left open: %v", err)
		}
		if strings.Contains(s.log.String(), "still going") {
			t.Errorf("a run that does not exist is in the log: %s", s.log)
		}
	})

	t.Run("a run that does not end is left with its lock", func(t *testing.T) {
		running, finish := make(chan struct{}), make(chan struct{})
		s := serve(t, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
			close(running)
			<-finish
			return "late", nil
		}, func(c *Config) { c.Limits.Drain = 10 * time.Millisecond })
		defer close(finish)
		answer := s.delivered()
		<-running
		s.stop()
		s.wait(t)
		if got := <-answer; !strings.Contains(got, "EOF") {
			t.Errorf("answer: %s", got)
		}
		if f := s.Fields(t, "x"); f["status"] != "PROCESSING" || f["lockOwner"] == nil {
			t.Errorf("document = %v", f)
		}
		if !strings.Contains(s.log.String(), "still going") {
			t.Errorf("no warning in the log: %s", s.log)
		}
	})
}

// The analyzer does not end, as if Firestore did not answer its release.
func TestRun_GivenUp(t *testing.T) {
	t.Setenv("LOCK_TLT", "60s")
	b, log := emulatortest.Embedded(t), &emulatortest.Log{}
	b.Put(t, "x", map[string]any{"status": "QUEUED"})
	cfg, err := ParseRunConfig(environ("FIRESTORE_EMULATOR_HOST="+b.Listen(t), "GOOGLE_CLOUD_PROJECT="+b.Project,
		"ANALYZER=builtin:document", "MAX_RUNS=10"))
	must.OK(t, err)
	ctx, stop := context.WithCancel(t.Context())
	free := make(chan struct{})
	defer close(free)
	cfg.Limits.Drain = 50 * time.Millisecond
	cfg.Analyzer = orchestrator.AnalyzerFunc(func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
		stop()
		<-free
		return nil, nil
	})
	r, err := Run(ctx, cfg, worker.Kind{}, "x", telemetry.NewLogger(log, "json", 0), io.Discard)
	if !strings.Contains(log.String(), "LOCK_TLT") {
		t.Errorf("log: %s, want a warning of LOCK_TLT", log)
	}
	if r.Outcome != "unavailable" || !errors.Is(err, errNotEnded) {
		t.Errorf("%+v, %v", r, err)
	}
	attempts, _ := b.Fields(t, "x")["history"].([]any)
	if len(attempts) != 1 || attempts[0].(map[string]any)["alone"] != true {
		t.Errorf("history %v, want an attempt alone, as the process runs nothing else", attempts)
	}
}
