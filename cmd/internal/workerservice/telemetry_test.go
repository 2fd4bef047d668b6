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

	"taskguard/internal/testing/must"

	"go.opentelemetry.io/otel/trace"

	"taskguard/orchestrator"
)

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
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
		must.OK(t, err)
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
