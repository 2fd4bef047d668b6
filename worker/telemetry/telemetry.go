package telemetry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Scope is the instrumentation scope of all.
const Scope = "taskguard"

// Telemetry measures. A nil one does nothing and costs nothing; else make it with
// New. It is safe for concurrent use, and none of its methods blocks.
type Telemetry struct {
	tracer trace.Tracer

	deliveries, steals, losses, followups, recoveries metric.Int64Counter
	active                                            metric.Int64UpDownCounter
	stuck                                             metric.Int64Gauge
	run, attempt, acquire, heartbeat                  metric.Float64Histogram
}

// New makes the instruments of Metrics.
func New(meters metric.MeterProvider, tracers trace.TracerProvider) (*Telemetry, error) {
	m := maker{meter: meters.Meter(Scope), all: Metrics()}
	t := &Telemetry{
		tracer:     tracers.Tracer(Scope),
		deliveries: m.counter(deliveries), steals: m.counter(steals), losses: m.counter(losses),
		followups: m.counter(followups), recoveries: m.counter(recoveries),
		run: m.histogram(runDuration), attempt: m.histogram(runAttempt),
		acquire: m.histogram(acquireDuration), heartbeat: m.histogram(heartbeatDuration),
	}
	var err error
	active := m.all[runsActive]
	t.active, err = m.meter.Int64UpDownCounter(active.Name, metric.WithUnit(active.Unit), metric.WithDescription(active.Description))
	m.failed(active, err)
	gauge := m.all[stuck]
	t.stuck, err = m.meter.Int64Gauge(gauge.Name, metric.WithUnit(gauge.Unit), metric.WithDescription(gauge.Description))
	m.failed(gauge, err)
	if m.err != nil {
		return nil, fmt.Errorf("telemetry: %w", m.err)
	}
	return t, nil
}

// maker makes instruments by their rows, and gathers errors.
type maker struct {
	meter metric.Meter
	all   []Metric
	err   error
}

func (m *maker) failed(d Metric, err error) {
	if err != nil {
		m.err = errors.Join(m.err, fmt.Errorf("%s: %w", d.Name, err))
	}
}

func (m *maker) counter(row int) metric.Int64Counter {
	d := m.all[row]
	c, err := m.meter.Int64Counter(d.Name, metric.WithUnit(d.Unit), metric.WithDescription(d.Description))
	m.failed(d, err)
	return c
}

func (m *maker) histogram(row int) metric.Float64Histogram {
	d := m.all[row]
	h, err := m.meter.Float64Histogram(d.Name, metric.WithUnit(d.Unit), metric.WithDescription(d.Description), metric.WithExplicitBucketBoundaries(d.Buckets...))
	m.failed(d, err)
	return h
}

// by are the attributes of one measurement.
func by(name, value string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String(name, value)))
}

// Delivered counts a delivery that has been answered with status.
func (t *Telemetry) Delivered(ctx context.Context, outcome string, status int) {
	if t != nil {
		t.deliveries.Add(ctx, 1, metric.WithAttributeSet(attribute.NewSet(attribute.String(Outcome, outcome), attribute.Int(Status, status))))
	}
}

// Acquired measures an attempt to acquire: outcome is acquired, already_finished,
// locked, attempts_exhausted or error.
func (t *Telemetry) Acquired(ctx context.Context, outcome string, took time.Duration) {
	if t != nil {
		t.acquire.Record(ctx, took.Seconds(), by(Outcome, outcome))
	}
}

// Began counts the beginning of a run, whose attempt it is, and whether its lock
// was stolen.
func (t *Telemetry) Began(ctx context.Context, attempt int, stolen bool) {
	if t == nil {
		return
	}
	t.active.Add(ctx, 1)
	t.attempt.Record(ctx, float64(attempt))
	if stolen {
		t.steals.Add(ctx, 1)
	}
}

// Ended counts the end of a run that has begun.
func (t *Telemetry) Ended(ctx context.Context) {
	if t != nil {
		t.active.Add(ctx, -1)
	}
}

// Ran measures a run by what its delivery has come to.
func (t *Telemetry) Ran(ctx context.Context, outcome string, took time.Duration) {
	if t != nil {
		t.run.Record(ctx, took.Seconds(), by(Outcome, outcome))
	}
}

// Renewed measures a heartbeat: outcome is renewed, lost or failed.
func (t *Telemetry) Renewed(ctx context.Context, outcome string, took time.Duration) {
	if t != nil {
		t.heartbeat.Record(ctx, took.Seconds(), by(Outcome, outcome))
	}
}

// Lost counts a lock that was lost: reason is taken, finished, deleted or
// out_of_time.
func (t *Telemetry) Lost(ctx context.Context, reason string) {
	if t != nil {
		t.losses.Add(ctx, 1, by(Reason, reason))
	}
}

// FollowedUp counts a delivery that was to be booked: outcome is booked, already
// or failed.
func (t *Telemetry) FollowedUp(ctx context.Context, outcome string) {
	if t != nil {
		t.followups.Add(ctx, 1, by(Outcome, outcome))
	}
}

// Stuck tells how many analyses a recovery found that nobody works on.
func (t *Telemetry) Stuck(ctx context.Context, found int) {
	if t != nil {
		t.stuck.Record(ctx, int64(found))
	}
}

// Recovered counts the deliveries that a recovery has booked.
func (t *Telemetry) Recovered(ctx context.Context, booked int) {
	if t != nil {
		t.recoveries.Add(ctx, int64(booked))
	}
}
