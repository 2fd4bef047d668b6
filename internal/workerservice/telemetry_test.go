package workerservice

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	metricscollector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracecollector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"taskguard/internal/emulatortest"
	"taskguard/internal/telemetry"
	"taskguard/orchestrator"
)

// collector receives OTLP over HTTP.
type collector struct {
	mu       sync.Mutex
	resource map[string]string
	scopes   map[string]bool
	spans    map[string]*tracepb.Span     // by name, the first of each
	metrics  map[string]*metricspb.Metric // by name, as last received
}

func newCollector(t *testing.T) (c *collector, url string) {
	t.Helper()
	c = &collector{scopes: map[string]bool{}, spans: map[string]*tracepb.Span{}, metrics: map[string]*metricspb.Metric{}}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = c.receive(r.URL.Path, body)
		}
		if err != nil || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s, a body of %q: %v", r.URL.Path, r.Header.Get("Content-Type"), err)
		}
	}))
	t.Cleanup(s.Close)
	return c, s.URL
}

func (c *collector) receive(path string, body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if path == "/v1/traces" {
		var request tracecollector.ExportTraceServiceRequest
		err := proto.Unmarshal(body, &request)
		for _, of := range request.ResourceSpans {
			c.resource = attributes(of.Resource.Attributes)
			for _, scope := range of.ScopeSpans {
				c.scopes[scope.Scope.Name] = true
				for _, s := range scope.Spans {
					if c.spans[s.Name] == nil {
						c.spans[s.Name] = s
					}
				}
			}
		}
		return err
	}
	var request metricscollector.ExportMetricsServiceRequest
	err := proto.Unmarshal(body, &request)
	for _, of := range request.ResourceMetrics {
		for _, scope := range of.ScopeMetrics {
			c.scopes[scope.Scope.Name] = true
			for _, m := range scope.Metrics {
				c.metrics[m.Name] = m
			}
		}
	}
	return err
}

// attributes returns the names of attributes, and the values that are text.
func attributes(all []*commonpb.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range all {
		m[kv.Key] = kv.Value.GetStringValue()
	}
	return m
}

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

// The tests of package worker check each span and each metric of each outcome.
func TestTheMetricsAndTracesOfAWorkerArriveAtACollector(t *testing.T) {
	const traceID, callersSpan = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	c, url := newCollector(t)
	var run trace.SpanContext
	var s *served
	s = serve(t, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
		run = trace.SpanContextFromContext(ctx)
		renewed(ctx, t, s.Backend, "x", 3) // so that the reply to the second has come
		return "done", nil
	}, nil, "LOCK_TTL=10s", "LOCK_HEARTBEAT=100ms", "OTEL_EXPORTER_OTLP_ENDPOINT="+url, "K_REVISION=r7",
		"TASK_QUEUE=projects/p/locations/l/queues/q", "TASK_TARGET_URL=http://worker.test", "TASK_CALLER=a@b.c", "CLOUD_TASKS_EMULATOR_HOST=127.0.0.1:1")
	s.Merge(t, "x", map[string]any{"createdAt": time.Now()})
	s.post(t, "recover", "", http.StatusOK) // nothing is orphaned
	s.deliver(t, `{"analysis_id":"x"}`, http.StatusOK,
		"traceparent: 00-"+traceID+"-"+callersSpan+"-01", "X-CloudTasks-TaskName: t-1", "X-CloudTasks-TaskRetryCount: 3")
	s.deliver(t, "s3cret", http.StatusBadRequest, "X-CloudTasks-TaskName: s3cret words")
	s.stop()
	if err := s.wait(t); err != nil {
		t.Fatal(err)
	}
	if who := c.resource; who["service.name"] != "taskguard-worker" || who["service.version"] != "r7" || len(who["service.instance.id"]) < 20 || who["deployment.environment.name"] != "test" {
		t.Errorf("resource = %v", who)
	}
	if !maps.Equal(c.scopes, map[string]bool{telemetry.Scope: true}) {
		t.Errorf("scopes %v", c.scopes)
	}
	checkMetrics(t, c.metrics)

	id := func(name string) string { return hex.EncodeToString(c.spans[name].GetSpanId()) }
	parent := func(name string) string { return hex.EncodeToString(c.spans[name].GetParentSpanId()) }
	if id("run") != run.SpanID().String() || parent("run") != id("delivery") || parent("finish") != id("delivery") || parent("heartbeat") != id("run") {
		t.Errorf("spans %v; the analyzer ran in %v", c.spans, run)
	}
	if d := c.spans["delivery"]; parent("delivery") != callersSpan || hex.EncodeToString(d.GetTraceId()) != traceID || d.GetKind() != tracepb.Span_SPAN_KIND_SERVER {
		t.Errorf("delivery = %v, want a server's span, child of the caller's", d)
	}
	s.checkLine(t, traceID, id("delivery"))
	if strings.Contains(s.log.String(), "s3cret") || strings.Contains(s.log.String(), "telemetry not exported") {
		t.Errorf("log: %s", s.log)
	}
}

func (s *served) deliver(t *testing.T, body string, status int, headers ...string) {
	t.Helper()
	s.post(t, "analysis", body, status, headers...)
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

// checkMetrics compares the metrics that have arrived with telemetry.Metrics.
func checkMetrics(t *testing.T, arrived map[string]*metricspb.Metric) {
	t.Helper()
	for _, name := range []string{"deliveries", "lock.acquire.duration", "lock.heartbeat.duration", "run.attempt", "run.duration", "runs.active", "analysis.start.duration", "analysis.ready.duration", "oldest.age"} {
		if arrived["taskguard."+name] == nil {
			t.Errorf("no taskguard.%s", name)
		}
	}
	for _, want := range telemetry.Metrics() {
		got := arrived[want.Name]
		if got == nil {
			continue
		}
		if got.Unit != want.Unit || got.Description != want.Description {
			t.Errorf("%s: unit %q, %q", want.Name, got.Unit, got.Description)
		}
		for _, p := range got.GetSum().GetDataPoints() {
			checkAttributes(t, want, p.Attributes)
		}
		for _, p := range got.GetHistogram().GetDataPoints() {
			checkAttributes(t, want, p.Attributes)
			if !slices.Equal(p.ExplicitBounds, want.Buckets) {
				t.Errorf("%s: buckets %v", want.Name, p.ExplicitBounds)
			}
		}
	}
}

func checkAttributes(t *testing.T, of telemetry.Metric, got []*commonpb.KeyValue) {
	t.Helper()
	if names := slices.Sorted(maps.Keys(attributes(got))); !slices.Equal(names, slices.Sorted(slices.Values(of.Attributes))) {
		t.Errorf("%s: attributes %v, want %v", of.Name, names, of.Attributes)
	}
}

// checkLine checks the log line of the delivery that has run.
func (s *served) checkLine(t *testing.T, traceID, span string) {
	t.Helper()
	const prefix = "logging.googleapis.com/"
	for l := range strings.Lines(s.log.String()) {
		var line map[string]any
		if err := json.Unmarshal([]byte(l), &line); err != nil {
			t.Fatal(err)
		}
		if line["message"] != "delivery" || line["analysis_id"] != "x" {
			continue
		}
		if line[prefix+"trace"] != traceID || line[prefix+"spanId"] != span || line[prefix+"trace_sampled"] != true || line["task"] != "t-1" || line["task_retry"] != 3.0 {
			t.Errorf("line = %v, want it in the delivery's span %s", line, span)
		}
		return
	}
	t.Errorf("no line of the delivery: %s", s.log)
}
