package telemetry_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"taskguard/internal/telemetry"
)

func TestEachMetricIsComplete(t *testing.T) {
	name, unit := regexp.MustCompile(`^taskguard(\.[a-z]+)+$`), regexp.MustCompile(`^(s|By|\{[a-z]+\})$`)
	seen := map[string]bool{}
	for _, m := range telemetry.Metrics() {
		if !name.MatchString(m.Name) || !unit.MatchString(m.Unit) || m.Description == "" || seen[m.Name] {
			t.Errorf("metric %+v", m)
		}
		if seen[m.Name] = true; (m.Kind == telemetry.Histogram) != (len(m.Buckets) > 0) || !slices.IsSorted(m.Buckets) {
			t.Errorf("%s: buckets %v of a %s", m.Name, m.Buckets, m.Kind)
		}
	}
}

// use records a value of each metric.
func use(ctx context.Context, t *telemetry.Telemetry) {
	for id, m := range telemetry.Metrics() {
		var attributes []attribute.KeyValue
		for _, name := range m.Attributes {
			attributes = append(attributes, attribute.String(name, "x"))
		}
		t.Record(ctx, telemetry.ID(id), float64(id+1), attributes...)
	}
	t.RecordAge(ctx, telemetry.StartDuration, 10*time.Second)
	t.RecordAge(ctx, telemetry.StartDuration, 0) // unknown
}

func TestEachValueIsThatOfItsMetric(t *testing.T) {
	want := map[string]string{
		"deliveries": "http.response.status_code=x,kind=order,outcome=x: 1", "rejections": "kind=order,outcome=x: 2", "runs.active": "kind=order: 3",
		"run.duration": "kind=order,outcome=x: 1 of 4", "run.attempt": "kind=order: 1 of 5", "lock.acquire.duration": "kind=order,outcome=x: 1 of 6",
		"lock.heartbeat.duration": "kind=order,outcome=x: 1 of 7", "lock.steals": "kind=order: 8", "lock.losses": "kind=order,reason=x: 9",
		"run.timeouts": "kind=order,reason=x: 10", "followups": "kind=order,outcome=x: 11", "recoveries": "kind=order: 12", "stuck": "kind=order: 13",
		"checkpoint.size": "kind=order: 1 of 14", "analysis.start.duration": "kind=order: 2 of 25", "analysis.ready.duration": "kind=order: 1 of 16", "oldest.age": "kind=order: 17",
		"parked": "kind=order: 18", "effects.uncertain": "kind=order: 19", "records.abandoned": "kind=order: 20",
	}
	reader := sdkmetric.NewManualReader()
	tel, err := telemetry.New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), tracenoop.NewTracerProvider())
	if err != nil {
		t.Fatal(err)
	}
	use(t.Context(), tel.OfKind("order"))
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil || len(all.ScopeMetrics) != 1 || all.ScopeMetrics[0].Scope.Name != telemetry.Scope {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, m := range all.ScopeMetrics[0].Metrics {
		var got string
		var bounds []float64
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			got = fmt.Sprint(data.DataPoints[0].Attributes.Encoded(attribute.DefaultEncoder()), ": ", data.DataPoints[0].Value)
		case metricdata.Gauge[int64]:
			got = fmt.Sprint(data.DataPoints[0].Attributes.Encoded(attribute.DefaultEncoder()), ": ", data.DataPoints[0].Value)
		case metricdata.Histogram[float64]:
			p := data.DataPoints[0]
			got, bounds = fmt.Sprint(p.Attributes.Encoded(attribute.DefaultEncoder()), ": ", p.Count, " of ", p.Sum), p.Bounds
		}
		declared := telemetry.Metrics()[i]
		if got != want[strings.TrimPrefix(m.Name, "taskguard.")] || m.Name != declared.Name || m.Unit != declared.Unit || m.Description != declared.Description || !slices.Equal(bounds, declared.Buckets) {
			t.Errorf("%s: %s, %+v, want %+v", m.Name, got, m, declared)
		}
	}
	if len(all.ScopeMetrics[0].Metrics) != len(want) {
		t.Errorf("%d metrics, want %d", len(all.ScopeMetrics[0].Metrics), len(want))
	}
}

// A user's view may have an aggregation that the instrument cannot have.
func TestAnInstrumentThatTheMeterRefusesIsAnError(t *testing.T) {
	for kind, wrong := range map[sdkmetric.InstrumentKind]sdkmetric.Aggregation{
		sdkmetric.InstrumentKindCounter: sdkmetric.AggregationLastValue{}, sdkmetric.InstrumentKindUpDownCounter: sdkmetric.AggregationLastValue{},
		sdkmetric.InstrumentKindHistogram: sdkmetric.AggregationLastValue{}, sdkmetric.InstrumentKindGauge: sdkmetric.AggregationSum{},
	} {
		view := sdkmetric.NewView(sdkmetric.Instrument{Kind: kind}, sdkmetric.Stream{Aggregation: wrong})
		meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()), sdkmetric.WithView(view))
		if _, err := telemetry.New(meters, tracenoop.NewTracerProvider()); err == nil || !strings.HasPrefix(err.Error(), "telemetry: taskguard.") {
			t.Errorf("%v: %v", kind, err)
		}
	}
}

// The caller's trace continues.
func TestNoTelemetryDoesNothing(t *testing.T) {
	var none *telemetry.Telemetry
	ctx := trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}}))
	for name, start := range map[string]func(context.Context, string) (context.Context, telemetry.Span){"serve": none.Serve, "start": none.Start} {
		inside, span := start(ctx, "x")
		if inside != ctx || span.IsRecording() {
			t.Errorf("%s: a span is made", name)
		}
		span.Describe("x", 1, 1)
		span.Close("x", true)
	}
	use(ctx, none.OfKind("order"))
	none.Past(ctx, "x", "y", 1, true)
	if telemetry.Extract(ctx, http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}) != ctx {
		t.Error("a header replaces the trace")
	}
	long := telemetry.Carry(context.Background(), ctx)
	if got := trace.SpanContextFromContext(long).TraceID(); got != (trace.TraceID{1}) {
		t.Errorf("carried %v", got)
	}
}

func TestPastRecordsTheTimesAndTheStatus(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tel, err := telemetry.New(noop.NewMeterProvider(), sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, parent := tel.Start(t.Context(), telemetry.Run)
	tel.Past(ctx, telemetry.Heartbeat, "failed", 1500, true)
	parent.Close("", false)
	all := spans.Ended()
	if len(all) != 2 {
		t.Fatalf("%d spans, want 2", len(all))
	}
	beat, run := all[0], all[1]
	if beat.Parent().SpanID() != run.SpanContext().SpanID() || beat.EndTime().Sub(beat.StartTime()) != 1500 || beat.Status().Code.String() != "Error" || run.Status().Code.String() != "Unset" {
		t.Errorf("beat %v of %v, %v", beat, run, beat.EndTime().Sub(beat.StartTime()))
	}
}

func TestASpanHasWhatIsKnownAndFollowsItsCaller(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tel, err := telemetry.New(noop.NewMeterProvider(), sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		caller   trace.SpanContextConfig
		recorded int
	}{
		{trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled}, 2},
		{trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}, 0},
		{trace.SpanContextConfig{}, 2},
	} {
		spans.Reset()
		ctx := trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(tc.caller))
		_, known := tel.Serve(ctx, telemetry.Delivery)
		known.Describe("x", 2, 3)
		known.Close("ready", true)
		_, unknown := tel.Serve(ctx, telemetry.Recovery)
		unknown.Describe("", 0, 0)
		unknown.Close("", false)
		all := spans.Ended()
		if len(all) != tc.recorded {
			t.Errorf("%+v: %d spans, want %d", tc.caller, len(all), tc.recorded)
			continue
		}
		for i, want := range []string{"[{taskguard.analysis_id x} {taskguard.lock_token 2} {taskguard.attempt 3} {taskguard.outcome ready}] Error", "[] Unset"}[:len(all)] {
			var attrs []string
			for _, a := range all[i].Attributes() {
				attrs = append(attrs, fmt.Sprint("{", a.Key, " ", a.Value.String(), "}"))
			}
			if got := fmt.Sprint(attrs, " ", all[i].Status().Code); got != want || all[i].SpanKind() != trace.SpanKindServer || tc.caller.SpanID.IsValid() != all[i].Parent().HasSpanID() {
				t.Errorf("%+v: %s, want %s", tc.caller, got, want)
			}
		}
	}
}
