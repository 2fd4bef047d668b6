package telemetry

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Scope is the instrumentation scope of all metrics and spans.
const Scope = "taskguard"

// Telemetry records metrics and spans. A nil *Telemetry records nothing. It is safe for
// concurrent use, and none of its methods blocks.
type Telemetry struct {
	tracer  trace.Tracer
	records []func(context.Context, float64, metric.MeasurementOption) // by ID
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
// those that Metrics names for m.
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
