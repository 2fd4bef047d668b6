package workerservice

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
)

// renewed waits until the lock of id has been renewed n times.
func renewed(ctx context.Context, t *testing.T, b *emulatortest.Backend, id string, n int) {
	seen := b.Fields(t, id)["lockHeartbeatAt"]
	for n > 0 && ctx.Err() == nil {
		if now := b.Fields(t, id)["lockHeartbeatAt"]; now != seen {
			seen, n = now, n-1
		}
		time.Sleep(time.Millisecond)
	}
}

// The tests of internal/telemetry check each metric, those of worker each span.
func TestTheMetricsAndTracesOfAWorkerArriveAtACollector(t *testing.T) {
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
	var s *served
	s = serve(t, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
		run = trace.SpanContextFromContext(ctx)
		renewed(ctx, t, s.Backend, "x", 3) // so that the reply to the second has come
		return "done", nil
	}, nil, "LOCK_TTL=10s", "LOCK_HEARTBEAT=100ms", "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "K_REVISION=r7",
		"TASK_QUEUE=projects/p/locations/l/queues/q", "TASK_TARGET_URL=http://worker.test", "TASK_CALLER=a@b.c", "CLOUD_TASKS_EMULATOR_HOST=127.0.0.1:1")
	s.Merge(t, "x", map[string]any{"createdAt": time.Now()})
	s.post(t, "recover", "", http.StatusOK) // nothing is orphaned
	s.post(t, "analysis", `{"analysis_id":"x"}`, http.StatusOK,
		"traceparent: 00-"+traceID+"-"+callersSpan+"-01", "X-CloudTasks-TaskName: t-1", "X-CloudTasks-TaskRetryCount: 3")
	s.post(t, "analysis", "s3cret", http.StatusBadRequest, "X-CloudTasks-TaskName: s3cret words")
	s.stop()
	if err := s.wait(t); err != nil {
		t.Fatal(err)
	}
	id, span := run.TraceID(), run.SpanID()
	for path, all := range map[string][]string{
		"/v1/traces":  {string(id[:]), string(span[:]), "delivery", "run", "heartbeat", "finish"},
		"/v1/metrics": {"taskguard.deliveries", "taskguard.lock.heartbeat.duration", "taskguard.run.duration", "taskguard.runs.active", "taskguard.analysis.ready.duration", "taskguard.oldest.age"},
	} {
		for _, want := range append(all, "service.name", "taskguard-worker", "service.version", "r7", "service.instance.id", "deployment.environment.name", "test") {
			if !bytes.Contains(arrived[path], []byte(want)) {
				t.Errorf("%s: no %q in %q", path, want, arrived[path])
			}
		}
		if bytes.Contains(arrived[path], []byte("s3cret")) {
			t.Errorf("%s: %q", path, arrived[path])
		}
	}
	log := s.log.String()
	_, line, _ := strings.Cut(log, `"message":"delivery"`)
	line, _, _ = strings.Cut(line, "\n")
	if run.TraceID().String() != traceID || !strings.Contains(line, `"logging.googleapis.com/trace":"`+traceID) ||
		strings.Contains(log, "s3cret") || strings.Contains(log, "telemetry not exported") {
		t.Errorf("a run of %v; log: %s", run, log)
	}
}

// post posts body with headers such as "traceparent: …" and wants the status.
func (s *served) post(t *testing.T, route, body string, status int, headers ...string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/internal/tasks/"+route, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != status {
		t.Errorf("%s: %d, want %d", body, resp.StatusCode, status)
	}
}
