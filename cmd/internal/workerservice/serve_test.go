package workerservice

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/api/option"

	"taskguard/internal/telemetry"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
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
		for text, want := range map[string]bool{
			"still going": false, // of a run that does not exist
			"anybody who reaches this process may call": true, // with TASK_AUTH=iam, outside Cloud Run
		} {
			if strings.Contains(s.log.String(), text) != want {
				t.Errorf("the log has %q: %t, want %t: %s", text, !want, want, s.log)
			}
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

func TestStartJob(t *testing.T) {
	var got string
	code := http.StatusOK
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = r.Method + " " + r.URL.Path + " " + strings.TrimSpace(string(body))
		w.WriteHeader(code)
		_, _ = io.WriteString(w, "{}")
	}))
	defer api.Close()
	const job = "projects/p/locations/l/jobs/j"
	start := must.Get(startJob(t.Context(), job, option.WithEndpoint(api.URL), option.WithHTTPClient(api.Client())))(t)

	for id, args := range map[string]string{"x": `["run","x"]`, "--json": `["run","--","--json"]`} {
		want := `POST /v2/` + job + `:run {"overrides":{"containerOverrides":[{"args":` + args + `}]}}`
		if err := start(t.Context(), id); err != nil || got != want {
			t.Errorf("%s: %v, sent %s, want %s", id, err, got, want)
		}
	}
	code = http.StatusForbidden
	if err := start(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("refused by Google: %v", err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", t.TempDir()+"/none")
	if _, err := startJob(t.Context(), job); err == nil || !strings.HasPrefix(err.Error(), "ANALYZER=job:") {
		t.Errorf("without credentials: %v; want the variable that needs them", err)
	}
}

// The tests of internal/telemetry check each metric, those of worker each span.
func TestServe_Telemetry(t *testing.T) {
	const traceID, callersSpan = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	var mu sync.Mutex
	arrived := map[string][]byte{} // by path
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s, a body of %q: %v", r.URL.Path, r.Header.Get("Content-Type"), err)
		}
		mu.Lock()
		defer mu.Unlock()
		arrived[r.URL.Path] = append(arrived[r.URL.Path], body...)
	}))
	defer collector.Close()
	var run trace.SpanContext
	s := serve(t, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
		run = trace.SpanContextFromContext(ctx)
		return "done", nil
	}, func(*Config) {}, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "K_REVISION=r7")
	for body, status := range map[string]int{`{"analysis_id":"x"}`: http.StatusOK, "s3cret": http.StatusBadRequest} {
		url := s.url + "/internal/tasks/analysis"
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body)))(t)
		r.Header.Set("traceparent", "00-"+traceID+"-"+callersSpan+"-01")
		resp, err := http.DefaultClient.Do(r)
		if err != nil || resp.StatusCode != status {
			t.Fatalf("%s: %+v, %v, want %d", body, resp, err, status)
		}
		_ = resp.Body.Close()
	}
	s.stop()
	s.wait(t)

	id, span := run.TraceID(), run.SpanID()
	for path, all := range map[string][]string{
		"/v1/traces":  {string(id[:]), string(span[:]), "delivery", "run", "finish"},
		"/v1/metrics": {"taskguard.deliveries", "taskguard.run.duration"},
	} {
		for _, want := range append(all, "service.name", "taskguard-worker", "service.version", "r7",
			"service.instance.id", "deployment.environment.name", "test") {
			if !bytes.Contains(arrived[path], []byte(want)) {
				t.Errorf("%s: no %q in %q", path, want, arrived[path])
			}
		}
		if bytes.Contains(arrived[path], []byte("s3cret")) {
			t.Errorf("%s: %q", path, arrived[path])
		}
	}
	log := s.log.String()
	if id.String() != traceID || !strings.Contains(log, `"logging.googleapis.com/trace":"`+traceID) {
		t.Errorf("a run of %v; log: %s; want the caller's trace", run, log)
	}
	if strings.Contains(log, "s3cret") || strings.Contains(log, "telemetry not exported") {
		t.Errorf("log: %s", log)
	}
}
