package service

import (
	"bytes"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"taskguard/worker/telemetry"
)

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
			t.Errorf("a span tells it: %v", s)
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
		t.Errorf("the log tells it: %s", s.log)
	}
}
