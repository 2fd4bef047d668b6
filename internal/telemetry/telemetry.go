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

// Telemetry records metrics and spans. New makes it; a nil *Telemetry records nothing. It
// is safe for concurrent use, and none of its methods blocks.
type Telemetry struct {
	tracer  trace.Tracer
	records []func(context.Context, float64, metric.MeasurementOption) // by row of Metrics
	kind    []attribute.KeyValue                                       // of every value
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

// OfKind returns a Telemetry of the same instruments whose values have the attribute WorkKind,
// unless kind is empty.
func (t *Telemetry) OfKind(kind string) *Telemetry {
	if t == nil || kind == "" {
		return t
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
		return func(ctx context.Context, v float64, by metric.MeasurementOption) { i.Add(ctx, int64(v), by) }, err
	case UpDownCounter:
		i, err := meter.Int64UpDownCounter(m.Name, unit, description)
		return func(ctx context.Context, v float64, by metric.MeasurementOption) { i.Add(ctx, int64(v), by) }, err
	case Gauge:
		i, err := meter.Int64Gauge(m.Name, unit, description)
		return func(ctx context.Context, v float64, by metric.MeasurementOption) { i.Record(ctx, int64(v), by) }, err
	}
	i, err := meter.Float64Histogram(m.Name, unit, description, metric.WithExplicitBucketBoundaries(m.Buckets...))
	return func(ctx context.Context, v float64, by metric.MeasurementOption) { i.Record(ctx, v, by) }, err
}

func (t *Telemetry) record(ctx context.Context, row int, value float64, by ...attribute.KeyValue) {
	if t != nil {
		t.records[row](ctx, value, metric.WithAttributes(slices.Concat(by, t.kind)...))
	}
}

// Delivered counts a delivery that was answered with status.
func (t *Telemetry) Delivered(ctx context.Context, outcome string, status int) {
	t.record(ctx, deliveries, 1, attribute.String(Outcome, outcome), attribute.Int(Status, status))
}

// Rejected counts a task that can never succeed, by the outcome of its last delivery.
func (t *Telemetry) Rejected(ctx context.Context, outcome string) {
	t.record(ctx, rejections, 1, attribute.String(Outcome, outcome))
}

// Acquired measures an attempt to acquire: outcome is acquired, already_finished,
// locked, waiting, attempts_exhausted, run_time_exhausted or error.
func (t *Telemetry) Acquired(ctx context.Context, outcome string, took time.Duration) {
	t.record(ctx, acquireDuration, took.Seconds(), attribute.String(Outcome, outcome))
}

// Began counts the beginning of a run, its attempt, and whether its lock was stolen.
func (t *Telemetry) Began(ctx context.Context, attempt int, stolen bool) {
	t.record(ctx, runsActive, 1)
	t.record(ctx, runAttempt, float64(attempt))
	if stolen {
		t.record(ctx, steals, 1)
	}
}

// Ended counts the end of a run that has begun.
func (t *Telemetry) Ended(ctx context.Context) { t.record(ctx, runsActive, -1) }

// Ran measures a run by the outcome of its delivery.
func (t *Telemetry) Ran(ctx context.Context, outcome string, took time.Duration) {
	t.record(ctx, runDuration, took.Seconds(), attribute.String(Outcome, outcome))
}

// Renewed measures a heartbeat: outcome is renewed, lost or failed.
func (t *Telemetry) Renewed(ctx context.Context, outcome string, took time.Duration) {
	t.record(ctx, heartbeatDuration, took.Seconds(), attribute.String(Outcome, outcome))
}

// Lost counts a lost lock: reason is taken, finished, cancelled, deleted or out_of_time.
func (t *Telemetry) Lost(ctx context.Context, reason string) {
	t.record(ctx, losses, 1, attribute.String(Reason, reason))
}

// TimedOut counts a run that passed a limit of time: reason is continued, run_timeout, stalled
// or run_time_exhausted.
func (t *Telemetry) TimedOut(ctx context.Context, reason string) {
	t.record(ctx, timeouts, 1, attribute.String(Reason, reason))
}

// FollowedUp counts the booking of a delivery: outcome is booked, already or failed.
func (t *Telemetry) FollowedUp(ctx context.Context, outcome string) {
	t.record(ctx, followups, 1, attribute.String(Outcome, outcome))
}

// Stuck records how many orphaned analyses a recovery found.
func (t *Telemetry) Stuck(ctx context.Context, found int) { t.record(ctx, stuck, float64(found)) }

// Recovered counts the deliveries that a recovery has booked.
func (t *Telemetry) Recovered(ctx context.Context, booked int) {
	t.record(ctx, recoveries, float64(booked))
}

// Checkpointed measures a committed checkpoint of that many bytes.
func (t *Telemetry) Checkpointed(ctx context.Context, bytes int) {
	t.record(ctx, checkpointSize, float64(bytes))
}

// Started measures the time from an analysis's creation to its first acquisition; zero: unknown.
func (t *Telemetry) Started(ctx context.Context, after time.Duration) {
	t.since(ctx, startDuration, after)
}

// Ready measures the time from an analysis's creation until it was READY; zero: unknown.
func (t *Telemetry) Ready(ctx context.Context, after time.Duration) {
	t.since(ctx, readyDuration, after)
}

func (t *Telemetry) since(ctx context.Context, row int, after time.Duration) {
	if after > 0 {
		t.record(ctx, row, after.Seconds())
	}
}

// Oldest records the age of the oldest unfinished analysis; zero: there is none.
func (t *Telemetry) Oldest(ctx context.Context, age time.Duration) {
	t.record(ctx, oldestAge, age.Seconds())
}
