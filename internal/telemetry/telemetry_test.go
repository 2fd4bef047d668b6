package telemetry_test

import (
	"context"
	"regexp"
	"slices"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

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

// The caller's trace continues.
func TestNoTelemetryDoesNothing(t *testing.T) {
	var none *telemetry.Telemetry
	ctx := trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
	for name, start := range map[string]func(context.Context, string) (context.Context, telemetry.Span){"serve": none.Serve, "start": none.Start} {
		inside, span := start(ctx, "x")
		if inside != ctx || span.Span != nil {
			t.Errorf("%s: a span is made", name)
		}
		span.Describe("x", 1, 1)
		span.Close("x", true)
	}
	none.Delivered(ctx, "x", 200)
	none.Acquired(ctx, "x", 1)
	none.Began(ctx, 1, true)
	none.Ended(ctx)
	none.Ran(ctx, "x", 1)
	none.Renewed(ctx, "x", 1)
	none.Lost(ctx, "x")
	none.FollowedUp(ctx, "x")
	none.Stuck(ctx, 1)
	none.Recovered(ctx, 1)
	none.Started(ctx, 1)
	none.Ready(ctx, 1)
	none.Oldest(ctx, 1)
	none.Past(ctx, "x", "y", 1, true)
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
