package workerservice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"taskguard/internal/telemetry"
	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
)

// hang is how long a test waits for something that should happen at once.
const hang = 30 * time.Second

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// served is a worker inside the test's process.
type served struct {
	*emulatortest.Backend
	url      string
	stop     context.CancelFunc
	returned chan error
	log      *emulatortest.Log
}

// serve starts a worker on an embedded Firestore, with an analysis x and the
// environment more. Its log is Cloud Logging's.
func serve(t *testing.T, analyzer orchestrator.AnalyzerFunc, adapt func(*Config), more ...string) *served {
	t.Helper()
	b := emulatortest.Embedded(t)
	t.Setenv("FIRESTORE_EMULATOR_HOST", b.Listen(t))
	b.Put(t, "x", map[string]any{"status": "QUEUED"})
	cfg, err := parse(append([]string{"TASK_AUTH=iam", "GOOGLE_CLOUD_PROJECT=" + b.Project}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Analyzer = analyzer
	if adapt != nil {
		adapt(&cfg)
	}
	l := listen(t)
	ctx, stop := context.WithCancel(t.Context())
	s := &served{Backend: b, url: "http://" + l.Addr().String(), stop: stop, returned: make(chan error, 1), log: &emulatortest.Log{}}
	go func() { s.returned <- Serve(ctx, cfg, l, telemetry.NewLogger(s.log, "json", 0)) }()
	t.Cleanup(stop)
	return s
}

// wait returns the result of Serve.
func (s *served) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-s.returned:
		return err
	case <-time.After(hang):
		t.Fatal("Serve does not return")
		return nil
	}
}

// delivered delivers x in the background, and sends the answer.
func (s *served) delivered() <-chan string {
	answer := make(chan string, 1)
	go func() {
		resp, err := http.Post(s.url+"/internal/tasks/analysis", "", strings.NewReader(`{"analysis_id":"x"}`))
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		answer <- fmt.Sprint(resp.StatusCode, " ", string(body), err)
	}()
	return answer
}

// send opens a connection and writes text to it.
func (s *served) send(t *testing.T, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(hang)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestServeReturnsWhatPreventsIt(t *testing.T) {
	closed := listen(t)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
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
			if err != nil {
				t.Fatal(err)
			}
			tc.spoil(&c)
			if err := Serve(t.Context(), c, tc.l, telemetry.NewLogger(&log, "json", 0)); err == nil {
				t.Error("no error")
			}
			if _, err := tc.l.Accept(); err == nil {
				t.Error("the listener is open")
			}
		})
	}
	if !strings.Contains(log.String(), "anybody who reaches this process may call") {
		t.Errorf("log: %s", &log)
	}
}

func TestMainReturnsTheExitCode(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "x") // which Serve refuses
	env := []string{"TASK_AUTH=none", "GOOGLE_CLOUD_PROJECT=p", "FIRESTORE_EMULATOR_HOST=127.0.0.1:1", "PORT=0", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}
	for want, port := range map[int]string{2: "PORT=x", 1: "PORT=0"} {
		if code, err := Main(t.Context(), environ(append(env, port)...), io.Discard); code != want || err == nil {
			t.Errorf("%s: %d, %v, want %d", port, code, err, want)
		}
	}
}

// Half a request is no run: it does not delay a stop, and causes no warning. Until the run has
// ended, the service answers that it is live and not ready.
func TestHalfARequestDoesNotDelayAStop(t *testing.T) {
	running := make(chan struct{})
	var s *served
	s = serve(t, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
		close(running)
		<-ctx.Done()
		for path, want := range map[string]int{"live": http.StatusOK, "ready": http.StatusServiceUnavailable} {
			if resp, err := http.Get(s.url + "/health/" + path); err != nil || resp.Body.Close() != nil || resp.StatusCode != want {
				t.Errorf("%s: %+v, %v", path, resp, err)
			}
		}
		return nil, ctx.Err()
	}, func(c *Config) { c.Limits.Drain, c.Limits.Request = time.Hour, time.Hour })
	half := s.send(t, "POST /internal/tasks/analysis HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
	answer := s.delivered()
	<-running
	s.stop()
	if err := s.wait(t); err != nil {
		t.Error(err)
	}
	if got := <-answer; !strings.HasPrefix(got, "500") {
		t.Errorf("answer: %s", got)
	}
	if _, err := io.ReadAll(half); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is left open: %v", err)
	}
	if strings.Contains(s.log.String(), "still going") {
		t.Errorf("a run that does not exist is in the log: %s", s.log)
	}
}

func TestARunThatDoesNotEndIsLeftWithItsLock(t *testing.T) {
	running, finish := make(chan struct{}), make(chan struct{})
	s := serve(t, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
		close(running)
		<-finish
		return "late", nil
	}, func(c *Config) { c.Limits.Drain = 10 * time.Millisecond })
	answer := s.delivered()
	<-running
	s.stop()
	if err := s.wait(t); err != nil {
		t.Error(err)
	}
	if got := <-answer; !strings.Contains(got, "EOF") {
		t.Errorf("answer: %s", got)
	}
	if f := s.Fields(t, "x"); f["status"] != "PROCESSING" || f["lockOwner"] == nil {
		t.Errorf("document = %v", f)
	}
	if !strings.Contains(s.log.String(), "still going") {
		t.Errorf("no warning in the log: %s", s.log)
	}
	close(finish)
}

// The limits are the clients'; a run may take longer, and is answered.
func TestARunLongerThanTheLimitsIsAnswered(t *testing.T) {
	const limit = 500 * time.Millisecond
	s := serve(t, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
		time.Sleep(2 * limit)
		return "done", nil
	}, func(c *Config) { c.Limits.Header, c.Limits.Request, c.Limits.Idle = limit, limit, limit })
	if got := <-s.delivered(); !strings.HasPrefix(got, "200") {
		t.Errorf("answer: %s", got)
	}
}

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	os.Exit(m.Run())
}
