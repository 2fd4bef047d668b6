package telemetry_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"taskguard/internal/telemetry"
	"taskguard/internal/testing/emulatortest"
)

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	os.Exit(m.Run())
}

// made is telemetry.New with good providers.
func made(meters metric.MeterProvider, tracers trace.TracerProvider) *telemetry.Telemetry {
	tel, err := telemetry.New(meters, tracers)
	if err != nil {
		panic(err)
	}
	return tel
}

// use records id+1 in each metric, with the value x for each of its attributes.
func use(ctx context.Context, tel *telemetry.Telemetry) {
	for id, m := range telemetry.Metrics() {
		var attributes []attribute.KeyValue
		for _, name := range m.Attributes {
			attributes = append(attributes, attribute.String(name, "x"))
		}
		tel.Record(ctx, telemetry.ID(id), float64(id+1), attributes...)
	}
	tel.RecordAge(ctx, telemetry.StartDuration, 10*time.Second)
	tel.RecordAge(ctx, telemetry.StartDuration, 0) // unknown
}

// docs/reference.md has the names of all metrics; here is that each value reaches its own.
func TestMetrics(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	tel := made(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), tracenoop.NewTracerProvider())
	use(t.Context(), tel.OfKind("order"))
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil || len(all.ScopeMetrics) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	if got := all.ScopeMetrics[0].Scope.Name; got != telemetry.Scope {
		t.Errorf("the scope is %s", got)
	}
	for id, m := range all.ScopeMetrics[0].Metrics {
		var by attribute.Set
		var value any
		var bounds []float64
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			by, value = data.DataPoints[0].Attributes, data.DataPoints[0].Value
		case metricdata.Gauge[int64]:
			by, value = data.DataPoints[0].Attributes, data.DataPoints[0].Value
		case metricdata.Histogram[float64]:
			by, value, bounds = data.DataPoints[0].Attributes, data.DataPoints[0].Sum, data.DataPoints[0].Bounds
		}
		row, attributes, used := telemetry.Metrics()[id], []string{"kind=order"}, id+1
		for _, name := range row.Attributes {
			attributes = append(attributes, name+"=x")
		}
		slices.Sort(attributes)
		if telemetry.ID(id) == telemetry.StartDuration {
			used += 10 // seconds; an unknown age does not count
		}
		got := fmt.Sprint(m.Name, m.Unit, m.Description, value, by.Encoded(attribute.DefaultEncoder()), bounds)
		want := fmt.Sprint(row.Name, row.Unit, row.Description, used, strings.Join(attributes, ","), row.Buckets)
		if got != want || !slices.IsSorted(bounds) {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	for id, name := range map[telemetry.ID]string{ // the worker's tests name the others
		telemetry.Stuck: "stuck", telemetry.OldestAge: "oldest.age", telemetry.RunsActive: "runs.active",
		telemetry.UncertainActs: "effects.uncertain", telemetry.AbandonedRecords: "records.abandoned",
	} {
		if got := telemetry.Metrics()[id].Name; got != "taskguard."+name {
			t.Errorf("metric %d is %s, want %s", id, got, name)
		}
	}
}

// A user's view may have an aggregation that the instrument cannot have.
func TestNew_Refused(t *testing.T) {
	for kind, wrong := range map[sdkmetric.InstrumentKind]sdkmetric.Aggregation{
		sdkmetric.InstrumentKindCounter:       sdkmetric.AggregationLastValue{},
		sdkmetric.InstrumentKindUpDownCounter: sdkmetric.AggregationLastValue{},
		sdkmetric.InstrumentKindHistogram:     sdkmetric.AggregationLastValue{},
		sdkmetric.InstrumentKindGauge:         sdkmetric.AggregationSum{},
	} {
		view := sdkmetric.NewView(sdkmetric.Instrument{Kind: kind}, sdkmetric.Stream{Aggregation: wrong})
		reader := sdkmetric.WithReader(sdkmetric.NewManualReader())
		meters := sdkmetric.NewMeterProvider(reader, sdkmetric.WithView(view))
		_, err := telemetry.New(meters, tracenoop.NewTracerProvider())
		if err == nil || !strings.HasPrefix(err.Error(), "telemetry: taskguard.") {
			t.Errorf("%v: %v, want the name of the metric", kind, err)
		}
	}
}

func TestTelemetry_Nil(t *testing.T) {
	var none *telemetry.Telemetry
	caller := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}})
	ctx := trace.ContextWithRemoteSpanContext(t.Context(), caller)
	for _, begin := range []func(context.Context, string) (context.Context, telemetry.Span){none.Serve, none.Start} {
		inside, span := begin(ctx, "x")
		if inside != ctx || span.IsRecording() {
			t.Error("a span is made")
		}
		span.Describe("x", 1, 1)
		span.Close("x", true)
	}
	use(ctx, none.OfKind("order"))
	none.Past(ctx, "x", "y", 1, true)
}

func TestExtract(t *testing.T) {
	var got context.Context
	h := telemetry.Traced(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Context() }))
	serve := func(ctx context.Context) trace.TraceID {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", http.NoBody)
		r.Header.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		h.ServeHTTP(nil, r)
		return trace.SpanContextFromContext(got).TraceID()
	}
	if id := serve(t.Context()); id.String() != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("the trace of the header: %v", id)
	}
	caller := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}})
	if id := serve(trace.ContextWithRemoteSpanContext(t.Context(), caller)); id != caller.TraceID() {
		t.Errorf("a header replaces the trace by %v", id)
	}
	long := telemetry.Carry(t.Context(), got)
	if id := trace.SpanContextFromContext(long).TraceID(); id != caller.TraceID() {
		t.Errorf("carried %v", id)
	}
}

// tracing returns a Telemetry, and what records its spans.
func tracing() (*telemetry.Telemetry, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	return made(noop.NewMeterProvider(), sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))), spans
}

func TestTelemetry_Past(t *testing.T) {
	tel, spans := tracing()
	ctx, parent := tel.Start(t.Context(), telemetry.Run)
	tel.Past(ctx, telemetry.Heartbeat, "failed", 1500, true)
	parent.Close("", false)
	all := spans.Ended()
	if len(all) != 2 {
		t.Fatalf("%d spans, want 2", len(all))
	}
	beat, run := all[0], all[1]
	if beat.Parent().SpanID() != run.SpanContext().SpanID() {
		t.Errorf("the heartbeat is not inside the run: %v", beat)
	}
	if took := beat.EndTime().Sub(beat.StartTime()); took != 1500 {
		t.Errorf("it took %v, want 1500ns", took)
	}
	if beat.Status().Code != codes.Error || run.Status().Code != codes.Unset {
		t.Errorf("the heartbeat is %v, the run %v", beat.Status().Code, run.Status().Code)
	}
}

// A span has what is known, and is recorded if its caller's is.
func TestTelemetry_Serve(t *testing.T) {
	tel, spans := tracing()
	const known = "[taskguard.analysis_id=x taskguard.lock_token=2 taskguard.attempt=3 taskguard.outcome=ready] Error"
	parent := trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}
	sampled := parent
	sampled.TraceFlags = trace.FlagsSampled
	for _, tc := range []struct {
		caller trace.SpanContextConfig
		want   []string
	}{
		{sampled, []string{known, "[] Unset"}},
		{parent, nil},
		{trace.SpanContextConfig{}, []string{known, "[] Unset"}},
	} {
		spans.Reset()
		ctx := trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(tc.caller))
		_, delivery := tel.Serve(ctx, telemetry.Delivery)
		delivery.Describe("x", 2, 3)
		delivery.Close("ready", true)
		_, recovery := tel.Serve(ctx, telemetry.Recovery)
		recovery.Describe("", 0, 0)
		recovery.Close("", false)
		var got []string
		for _, span := range spans.Ended() {
			var attributes []string
			for _, a := range span.Attributes() {
				attributes = append(attributes, string(a.Key)+"="+a.Value.String())
			}
			got = append(got, fmt.Sprint(attributes, " ", span.Status().Code))
			if span.SpanKind() != trace.SpanKindServer || span.Parent().TraceID() != tc.caller.TraceID {
				t.Errorf("%s: kind %v, parent %v", span.Name(), span.SpanKind(), span.Parent())
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%+v: spans %q, want %q", tc.caller, got, tc.want)
		}
	}
}
