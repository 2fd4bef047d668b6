package telemetry

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Scope is the instrumentation scope of all metrics and spans.
const Scope = "taskguard"

// Telemetry records metrics and spans. A nil *Telemetry records nothing. It is safe for
// concurrent use, and none of its methods blocks.
type Telemetry struct {
	tracer  trace.Tracer
	records []func(context.Context, float64, metric.MeasurementOption) // the index is the ID
	kind    []attribute.KeyValue                                       // attributes of every value
}

// New makes the instruments of Metrics.
func New(meters metric.MeterProvider, tracers trace.TracerProvider) (*Telemetry, error) {
	t := &Telemetry{tracer: tracers.Tracer(Scope)}
	meter := meters.Meter(Scope)
	for _, m := range Metrics() {
		record, err := m.instrument(meter)
		if err != nil {
			return nil, fmt.Errorf("telemetry: %s: %w", m.Name, err)
		}
		t.records = append(t.records, record)
	}
	return t, nil
}

// OfKind returns a Telemetry with the same instruments. Its values have the attribute WorkKind.
func (t *Telemetry) OfKind(kind string) *Telemetry {
	if t == nil {
		return nil
	}
	labelled := *t
	labelled.kind = []attribute.KeyValue{attribute.String(WorkKind, kind)}
	return &labelled
}

// instrument makes the instrument, and returns the function that records a value.
func (m Metric) instrument(meter metric.Meter) (func(context.Context, float64, metric.MeasurementOption), error) {
	unit, description := metric.WithUnit(m.Unit), metric.WithDescription(m.Description)
	switch m.Kind {
	case Counter:
		i, err := meter.Int64Counter(m.Name, unit, description)
		return func(ctx context.Context, v float64, o metric.MeasurementOption) { i.Add(ctx, int64(v), o) }, err
	case UpDownCounter:
		i, err := meter.Int64UpDownCounter(m.Name, unit, description)
		return func(ctx context.Context, v float64, o metric.MeasurementOption) { i.Add(ctx, int64(v), o) }, err
	case Gauge:
		i, err := meter.Int64Gauge(m.Name, unit, description)
		return func(ctx context.Context, v float64, o metric.MeasurementOption) { i.Record(ctx, int64(v), o) }, err
	}
	i, err := meter.Float64Histogram(m.Name, unit, description, metric.WithExplicitBucketBoundaries(m.Buckets...))
	return func(ctx context.Context, v float64, o metric.MeasurementOption) { i.Record(ctx, v, o) }, err
}

// Record adds value to the counter m, or records it in another instrument. The attributes are
// the ones in Metrics for m.
func (t *Telemetry) Record(ctx context.Context, m ID, value float64, attributes ...attribute.KeyValue) {
	if t != nil {
		t.records[m](ctx, value, metric.WithAttributes(slices.Concat(attributes, t.kind)...))
	}
}

// RecordAge records the time since an analysis was created, unless it is unknown: zero.
func (t *Telemetry) RecordAge(ctx context.Context, m ID, age time.Duration) {
	if age > 0 {
		t.Record(ctx, m, age.Seconds())
	}
}

// Names of spans. Delivery, Recovery and SelfTest are of kind server. The others are of kind
// internal and children of Delivery, except Heartbeat, which is a child of Run.
const (
	Delivery  = "delivery"
	Recovery  = "recovery"
	SelfTest  = "self-test"
	Acquire   = "acquire"
	Run       = "run"
	Heartbeat = "heartbeat"
	Finish    = "finish"
	Release   = "release"
	FollowUp  = "follow_up"
)

// Attributes of spans. The span Delivery has every attribute whose value is known. Another span has
// SpanOutcome if it has an outcome.
const (
	SpanAnalysis = "taskguard.analysis_id"
	SpanOutcome  = "taskguard.outcome"
	SpanToken    = "taskguard.lock_token"
	SpanAttempt  = "taskguard.attempt"
)

// Span is a span that has begun. A Span contains no text of an error, since that may quote the
// user's data. So end it by Close: a deferred End would record the value of a panic.
type Span struct{ trace.Span }

// NoSpan is a Span that records nothing.
func NoSpan() Span { return Span{noop.Span{}} }

// Serve begins the span of a request.
func (t *Telemetry) Serve(ctx context.Context, name string) (context.Context, Span) {
	return t.start(ctx, name, trace.SpanKindServer)
}

// Start begins a span inside the span of ctx.
func (t *Telemetry) Start(ctx context.Context, name string) (context.Context, Span) {
	return t.start(ctx, name, trace.SpanKindInternal)
}

func (t *Telemetry) start(ctx context.Context, name string, kind trace.SpanKind) (context.Context, Span) {
	if t == nil {
		return ctx, NoSpan()
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(kind))
	return ctx, Span{span}
}

// Past records a span that ends now and took that long, inside the span of ctx.
func (t *Telemetry) Past(ctx context.Context, name, outcome string, took time.Duration, failed bool) {
	if t == nil {
		return
	}
	now := time.Now()
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(now.Add(-took)))
	Span{span}.Close(outcome, failed, trace.WithTimestamp(now))
}

// Close ends the span. The outcome may be empty.
func (s Span) Close(outcome string, failed bool, end ...trace.SpanEndOption) {
	if outcome != "" {
		s.SetAttributes(attribute.String(SpanOutcome, outcome))
	}
	if failed {
		s.SetStatus(codes.Error, "")
	}
	s.End(end...)
}

// Describe adds the known attributes of a delivery; zero is unknown.
func (s Span) Describe(analysis string, token int64, attempt int) {
	if analysis != "" {
		s.SetAttributes(attribute.String(SpanAnalysis, analysis))
	}
	if token != 0 {
		s.SetAttributes(attribute.Int64(SpanToken, token))
	}
	if attempt != 0 {
		s.SetAttributes(attribute.Int(SpanAttempt, attempt))
	}
}

// Carry returns ctx with the span of request, a context that may end earlier.
func Carry(ctx, request context.Context) context.Context {
	return trace.ContextWithSpan(ctx, trace.SpanFromContext(request))
}

// Detached returns ctx without its span: a span started in it begins a new trace.
func Detached(ctx context.Context) context.Context {
	return trace.ContextWithSpanContext(ctx, trace.SpanContext{})
}

// Extract returns ctx with the trace of a request's header traceparent, unless that is malformed.
// If ctx already has a trace, it keeps that.
func Extract(ctx context.Context, h http.Header) context.Context {
	if trace.SpanContextFromContext(ctx).HasTraceID() {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(h))
}

// Traced puts a request's trace into its context; see Extract.
func Traced(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(Extract(r.Context(), r.Header)))
	})
}
