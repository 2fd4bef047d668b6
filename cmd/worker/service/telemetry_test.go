package service

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	apiv2 "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/api/option"

	"taskguard/cmd/cloudrun"
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

// nowhere is a network on which the queue's tasks reach nobody.
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

// observe starts a worker with the environment more, whose log is Cloud Logging's.
func observe(t *testing.T, analyzer func(b *emulatortest.Backend) orchestrator.AnalyzerFunc, more ...string) *served {
	t.Helper()
	b := emulatortest.Embedded(t)
	firestore := listen(t)
	ended := make(chan error, 1)
	go func() { ended <- b.Server.Serve(firestore) }()
	t.Cleanup(func() {
		b.Server.Close()
		<-ended
	})
	t.Setenv("FIRESTORE_EMULATOR_HOST", firestore.Addr().String())
	cfg, err := parse(append([]string{"TASK_AUTH=iam", "GOOGLE_CLOUD_PROJECT=" + b.Project, "LOCK_TTL=10s", "LOCK_HEARTBEAT=100ms"}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Analyzer = analyzer(b)
	l := listen(t)
	ctx, stop := context.WithCancel(t.Context())
	s := &served{Backend: b, url: "http://" + l.Addr().String(), stop: stop, returned: make(chan error, 1), log: &emulatortest.Log{}}
	go func() { s.returned <- Serve(ctx, cfg, l, cloudrun.NewLogger(s.log, "json", 0)) }()
	t.Cleanup(stop)
	return s
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

// allSorts is an analyzer that does as the analysis's name says.
func allSorts(t *testing.T, spans map[string]trace.SpanContext) func(*emulatortest.Backend) orchestrator.AnalyzerFunc {
	return func(b *emulatortest.Backend) orchestrator.AnalyzerFunc {
		return func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			spans[job.AnalysisID] = trace.SpanContextFromContext(ctx)
			switch job.AnalysisID {
			case "long":
				renewed(ctx, t, b, "long", 3) // so that the reply to the second has come
			case "lost":
				b.Merge(t, "lost", map[string]any{"lockOwner": "them", "lockExpiresAt": "2999-01-01T00:00:00Z"})
				<-ctx.Done()
			case "flaky":
				return nil, errors.New("s3cret words of the analyzer")
			}
			return "done", nil
		}
	}
}

// Everything that can happen, once, in a worker whose collector is another process.
func TestARealRunsMetricsAndTracesArriveAtACollector(t *testing.T) {
	for _, compression := range []string{"none", "gzip"} {
		t.Run(compression, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
			c, spans := newCollector(t), map[string]trace.SpanContext{}
			s := observe(t, allSorts(t, spans), append(queueOnAPort(t), "OTEL_EXPORTER_OTLP_ENDPOINT="+c.url, "K_REVISION=r7")...)
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
			if said := cmp.Diff(map[string]bool{telemetry.Scope: true}, c.scopes); said != "" {
				t.Errorf("scopes (-want +got):\n%s", said)
			}
		})
	}
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

// Cloud Logging puts a line under its request also where no telemetry is sent, and
// then nothing else is made of it.
func TestLinesNameTheirTraceWithoutACollector(t *testing.T) {
	for name, header := range map[string]string{
		"W3C's": "traceparent: " + traceparent, "Google's": "X-Cloud-Trace-Context: " + traceID + "/13235353014750950193;o=1",
	} {
		t.Run(name, func(t *testing.T) {
			s := observe(t, allSorts(t, map[string]trace.SpanContext{}))
			s.Put(t, "flaky", map[string]any{"status": "QUEUED", "lockToken": 4})
			s.deliver(t, "flaky", 500, header)
			s.stop()
			if err := s.wait(t); err != nil {
				t.Fatal(err)
			}
			lines := s.lines(t, "delivery")
			if len(lines) != 1 {
				t.Fatalf("%d lines, want 1", len(lines))
			}
			const prefix = "logging.googleapis.com/"
			if l := lines[0]; l[prefix+"trace"] != traceID || l[prefix+"spanId"] != callersSpan || l[prefix+"trace_sampled"] != true {
				t.Errorf("line = %v, want the caller's trace", l)
			}
		})
	}
}

// A collector that accepts and never answers holds up no stop for longer than
// there is for it.
func TestADarkCollectorHoldsUpNoStop(t *testing.T) {
	dark := listen(t)
	var open []net.Conn
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := dark.Accept()
			if err != nil {
				return
			}
			open = append(open, conn)
		}
	})
	s := observe(t, allSorts(t, map[string]trace.SpanContext{}), "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+dark.Addr().String())
	s.Put(t, "x", map[string]any{"status": "QUEUED"})
	s.deliver(t, "x", 200)
	s.stop()
	if err := s.wait(t); err != nil { // the exporters by themselves try for a minute
		t.Error(err)
	}
	warnings := s.lines(t, "telemetry not exported")
	for _, l := range warnings {
		if l["severity"] != "WARNING" || l["error"] != "the stop has left no more time" {
			t.Errorf("warning %v", l)
		}
	}
	if len(warnings) != 2 {
		t.Errorf("%d warnings, want one a signal", len(warnings))
	}
	_ = dark.Close()
	accepting.Wait()
	for _, conn := range open {
		_ = conn.Close()
	}
}
