package service

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiv2 "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/api/option"

	"taskguard/emulator/cloudtasks"
	"taskguard/emulator/emulatortest"
	"taskguard/orchestrator"
	"taskguard/worker/telemetry"
)

const (
	traceID     = "0af7651916cd43dd8448eb211c80319c"
	callersSpan = "b7ad6b7169203331"
	traceparent = "00-" + traceID + "-" + callersSpan + "-01"
)

// nowhere is a network without any host.
type nowhere struct{}

func (nowhere) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("nowhere") }

// queueOnAPort is an embedded Cloud Tasks that books and delivers nothing.
func queueOnAPort(t *testing.T) (env []string) {
	t.Helper()
	const name = "projects/p/locations/l/queues/q"
	s := cloudtasks.NewServer(cloudtasks.Options{Transport: nowhere{}})
	l := listen(t)
	var served sync.WaitGroup
	served.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Close(); served.Wait() })
	conn, err := s.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client, err := apiv2.NewClient(t.Context(), option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{
		Parent: "projects/p/locations/l", Queue: &cloudtaskspb.Queue{Name: name},
	}); err != nil {
		t.Fatal(err)
	}
	return []string{"TASK_QUEUE=" + name, "TASK_TARGET_URL=http://worker.test", "TASK_CALLER=tasks@p.iam.gserviceaccount.com", "CLOUD_TASKS_EMULATOR_HOST=" + l.Addr().String()}
}

// call posts with headers such as "traceparent: …" and wants the status.
func (s *served) call(t *testing.T, path, body string, status int, headers ...string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+path, strings.NewReader(body))
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
		t.Errorf("%s %s: %d, want %d", path, body, resp.StatusCode, status)
	}
}

func (s *served) deliver(t *testing.T, id string, status int, headers ...string) {
	t.Helper()
	s.call(t, "/internal/tasks/analysis", `{"analysis_id":"`+id+`"}`, status, headers...)
}

// lines are the log's of a message.
func (s *served) lines(t *testing.T, message string) (all []map[string]any) {
	t.Helper()
	for l := range strings.Lines(s.log.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(l), &entry); err != nil {
			t.Fatal(err)
		}
		if entry["message"] == message {
			all = append(all, entry)
		}
	}
	return all
}

func everything(t *testing.T, s *served) {
	t.Helper()
	queued, soon := map[string]any{"status": "QUEUED"}, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for _, id := range []string{"long", "lost", "flaky"} {
		s.Put(t, id, queued)
	}
	s.Put(t, "stale", map[string]any{"status": "PROCESSING", "attempts": 2, "lockToken": 5, "lockOwner": "them", "lockExpiresAt": "2020-01-01T00:00:00Z"})
	s.Put(t, "held", map[string]any{"status": "PROCESSING", "lockOwner": "them", "lockToken": 1, "lockExpiresAt": soon})
	s.Put(t, "worn", map[string]any{"status": "QUEUED", "attempts": 10})
	for _, id := range []string{"forgotten", "forgotten2"} {
		s.Put(t, id, map[string]any{"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00.000Z"})
	}

	s.deliver(t, "long", 200, "traceparent: "+traceparent, "X-CloudTasks-TaskName: t-1", "X-CloudTasks-TaskRetryCount: 3")
	s.deliver(t, "long", 200)
	s.deliver(t, "stale", 200)
	s.deliver(t, "held", 200)
	s.deliver(t, "held", 200)
	s.deliver(t, "lost", 409)
	s.deliver(t, "flaky", 500)
	s.deliver(t, "worn", 200)
	s.deliver(t, "missing", 404)
	s.call(t, "/internal/tasks/analysis", "s3cret", 400, "X-CloudTasks-TaskName: s3cret words")
	s.call(t, "/internal/tasks/recover", "", 200, "X-Cloud-Trace-Context: "+traceID+"/1;o=1")
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

// observe starts a worker whose analyzer acts by the name of the analysis.
func observe(t *testing.T, spans map[string]trace.SpanContext, more ...string) (s *served) {
	t.Helper()
	s = serve(t, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		spans[job.AnalysisID] = trace.SpanContextFromContext(ctx)
		switch job.AnalysisID {
		case "long":
			renewed(ctx, t, s.Backend, "long", 3) // so that the reply to the second has come
		case "lost":
			s.Merge(t, "lost", map[string]any{"lockOwner": "them", "lockExpiresAt": "2999-01-01T00:00:00Z"})
			<-ctx.Done()
		case "flaky":
			return nil, errors.New("s3cret words of the analyzer")
		}
		return "done", nil
	}, nil, append([]string{"LOCK_TTL=10s", "LOCK_HEARTBEAT=100ms"}, more...)...)
	return s
}

// Each outcome once, in a worker whose collector is another server.
func TestTheMetricsAndTracesOfAWorkerArriveAtACollector(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	c, spans := newCollector(t), map[string]trace.SpanContext{}
	s := observe(t, spans, append(queueOnAPort(t), "OTEL_EXPORTER_OTLP_ENDPOINT="+c.url, "K_REVISION=r7")...)
	everything(t, s)
	s.stop()
	if err := s.wait(t); err != nil {
		t.Fatal(err)
	}
	checkMetrics(t, c)
	checkSpans(t, c, spans)
	checkLines(t, s, c)
	who := attributes(c.resource.Attributes)
	if id, _ := who["service.instance.id"].(string); who["service.name"] != "taskguard-worker" || who["service.version"] != "r7" || len(id) < 20 || who["deployment.environment.name"] != "test" {
		t.Errorf("resource = %v", who)
	}
	for _, l := range s.lines(t, "telemetry not exported") {
		t.Errorf("warned: %v", l)
	}
	if diff := cmp.Diff(map[string]bool{telemetry.Scope: true}, c.scopes); diff != "" {
		t.Errorf("scopes (-want +got):\n%s", diff)
	}
}

func checkMetrics(t *testing.T, c *collector) {
	t.Helper()
	for _, tc := range []struct {
		metric, by string
		want       map[any]int64
	}{
		{"taskguard.deliveries", "outcome", map[any]int64{"ready": 2, "already_finished": 1, "locked": 2, "lock_lost": 1, "retry": 1, "failed": 1, "not_found": 1, "bad_request": 1}},
		{"taskguard.deliveries", "http.response.status_code", map[any]int64{int64(200): 6, int64(409): 1, int64(500): 1, int64(404): 1, int64(400): 1}},
		{"taskguard.runs.active", "", map[any]int64{nil: 0}},
		{"taskguard.run.duration", "outcome", map[any]int64{"ready": 2, "lock_lost": 1, "retry": 1}},
		{"taskguard.run.attempt", "", map[any]int64{nil: 4}},
		{"taskguard.lock.acquire.duration", "outcome", map[any]int64{"acquired": 4, "already_finished": 1, "locked": 2, "attempts_exhausted": 1, "error": 1}},
		{"taskguard.lock.steals", "", map[any]int64{nil: 1}},
		{"taskguard.lock.losses", "reason", map[any]int64{"taken": 1}},
		{"taskguard.followups", "outcome", map[any]int64{"booked": 1, "already": 1}},
		{"taskguard.recoveries", "", map[any]int64{nil: 2}},
		{"taskguard.stuck", "", map[any]int64{nil: 2}},
	} {
		if diff := cmp.Diff(tc.want, c.of(tc.metric, tc.by)); diff != "" {
			t.Errorf("%s by %q (-want +got):\n%s", tc.metric, tc.by, diff)
		}
	}
	if beats := c.of("taskguard.lock.heartbeat.duration", "outcome"); beats["renewed"] < 2 || beats["lost"] != 1 || len(beats) != 2 {
		t.Errorf("heartbeats = %v, want 2 renewed or more, and one lost", beats)
	}
	if p := points(c.metrics["taskguard.run.attempt"]); len(p) == 1 && p[0].sum != 1+3+1+1 {
		t.Errorf("attempts sum up to %v, want 6", p[0].sum)
	}
	checkTable(t, c)
}

// checkTable compares what has arrived with telemetry.Metrics.
func checkTable(t *testing.T, c *collector) {
	t.Helper()
	var names []string
	for _, want := range telemetry.Metrics() {
		names = append(names, want.Name)
		got := c.metrics[want.Name]
		if got.GetUnit() != want.Unit || got.GetDescription() != want.Description {
			t.Errorf("%s: unit %q, %q", want.Name, got.GetUnit(), got.GetDescription())
		}
		if want.Kind == telemetry.Histogram {
			if bounds := got.GetHistogram().GetDataPoints()[0].ExplicitBounds; !slices.Equal(bounds, want.Buckets) {
				t.Errorf("%s: buckets %v", want.Name, bounds)
			}
		}
		for _, p := range points(got) {
			if has := slices.Sorted(maps.Keys(p.attributes)); !slices.Equal(has, slices.Sorted(slices.Values(want.Attributes))) {
				t.Errorf("%s: attributes %v, want %v", want.Name, has, want.Attributes)
			}
		}
	}
	if slices.Sort(names); !slices.Equal(names, c.names()) {
		t.Errorf("metrics %v, want %v", c.names(), names)
	}
}

func checkSpans(t *testing.T, c *collector, runs map[string]trace.SpanContext) {
	t.Helper()
	by := map[string]*tracepb.Span{} // deliveries by analysis
	for _, d := range c.named("delivery") {
		if id, _ := attributes(d.Attributes)["taskguard.analysis_id"].(string); by[id] == nil {
			by[id] = d
		}
	}
	long := by["long"]
	if long == nil || hex.EncodeToString(long.TraceId) != traceID || hex.EncodeToString(long.ParentSpanId) != callersSpan || long.Kind != tracepb.Span_SPAN_KIND_SERVER {
		t.Fatalf("delivery = %v, want a server's, child of the caller's", long)
	}
	want := map[string]any{"taskguard.analysis_id": "long", "taskguard.outcome": "ready", "taskguard.lock_token": int64(1), "taskguard.attempt": int64(1)}
	if diff := cmp.Diff(want, attributes(long.Attributes)); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	for id, names := range map[string][]string{
		"long": {"acquire", "run", "finish"}, "flaky": {"acquire", "run", "release"}, "held": {"acquire", "follow_up"}, "lost": {"acquire", "run"}, "worn": {"acquire"},
	} {
		for _, name := range []string{"acquire", "run", "finish", "release", "follow_up"} {
			if n := len(c.under(by[id], name)); n != 1 && slices.Contains(names, name) || n != 0 && !slices.Contains(names, name) {
				t.Errorf("%s: %d spans %s, want those of %v", id, n, name, names)
			}
		}
	}
	for id, d := range by { // 409 is none
		if failed := d.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR; failed != (id == "flaky") {
			t.Errorf("%s: error status %v", id, failed)
		}
	}
	run := c.under(long, "run")[0]
	if beats := c.under(run, "heartbeat"); len(beats) < 2 || beats[0].StartTimeUnixNano < run.StartTimeUnixNano {
		t.Errorf("heartbeats under the run: %v", beats)
	}
	if runs["long"].SpanID().String() != hex.EncodeToString(run.SpanId) {
		t.Errorf("the analyzer ran in span %v, want run's", runs["long"].SpanID())
	}
	if r := c.named("recovery"); len(r) != 1 || hex.EncodeToString(r[0].TraceId) != traceID || r[0].Kind != tracepb.Span_SPAN_KIND_SERVER {
		t.Errorf("recovery = %v", r)
	}
	for _, s := range c.spans {
		if strings.Contains(s.String(), "s3cret") {
			t.Errorf("a span contains it: %v", s)
		}
	}
}

// under are the spans of a name that are children of parent.
func (c *collector) under(parent *tracepb.Span, name string) []*tracepb.Span {
	return slices.DeleteFunc(c.named(name), func(s *tracepb.Span) bool {
		return !bytes.Equal(s.ParentSpanId, parent.SpanId) || !bytes.Equal(s.TraceId, parent.TraceId)
	})
}

func checkLines(t *testing.T, s *served, c *collector) {
	t.Helper()
	lines := s.lines(t, "delivery")
	if len(lines) != 10 {
		t.Fatalf("%d lines, want one a delivery", len(lines))
	}
	const prefix = "logging.googleapis.com/"
	long := lines[0]
	span := ""
	for _, d := range c.named("delivery") {
		if hex.EncodeToString(d.TraceId) == traceID {
			span = hex.EncodeToString(d.SpanId)
		}
	}
	if long[prefix+"trace"] != traceID || long[prefix+"spanId"] != span || long[prefix+"trace_sampled"] != true {
		t.Errorf("line = %v, want it in the delivery's span %s", long, span)
	}
	if beats, _ := long["heartbeats"].(float64); beats < 2 || long["task"] != "t-1" || long["task_retry"] != 3.0 {
		t.Errorf("line = %v", long)
	}
	if strings.Contains(s.log.String(), "s3cret") {
		t.Errorf("the log contains it: %s", s.log)
	}
}
