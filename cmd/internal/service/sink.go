package service

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// warnEvery is the shortest time between two warnings. Without a collector, each batch fails.
const warnEvery = 5 * time.Minute

// sink ends the exports of one signal with the process, and logs their failures.
type sink struct {
	until  context.Context // its end ends the exports
	log    *slog.Logger
	signal string

	mu       sync.Mutex
	warned   time.Time
	failures int // since warned
}

// export runs one export until the sink's end.
func (s *sink) export(parent context.Context, do func(context.Context) error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	defer context.AfterFunc(s.until, cancel)()
	err := do(ctx)
	if err == nil || errors.Is(parent.Err(), context.Canceled) { // the SDK exports again as it stops
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures++
	if !s.warned.IsZero() && time.Since(s.warned) < warnEvery {
		return
	}

	// The SDK appends the collector's answer, which may repeat our headers.
	text, _, _ := strings.Cut(err.Error(), " (body:")
	s.log.WarnContext(parent, "telemetry not exported", "signal", s.signal, "failures", s.failures, "error", text)
	s.warned, s.failures = time.Now(), 0
}

// spanSink exports spans. It returns no error: the SDK would print it.
type spanSink struct {
	sdktrace.SpanExporter
	*sink
}

// ExportSpans implements sdktrace.SpanExporter.
func (s spanSink) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	s.export(ctx, func(ctx context.Context) error { return s.SpanExporter.ExportSpans(ctx, spans) })
	return nil
}

// metricSink exports metrics. It returns no error either.
type metricSink struct {
	sdkmetric.Exporter
	*sink
}

// Export implements sdkmetric.Exporter.
func (s metricSink) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	s.export(ctx, func(ctx context.Context) error { return s.Exporter.Export(ctx, m) })
	return nil
}

// Temporality implements sdkmetric.Exporter. A gauge is sent only after it was set: otherwise an
// old value of one instance would be exported beside the present value of another.
func (s metricSink) Temporality(kind sdkmetric.InstrumentKind) metricdata.Temporality {
	if kind == sdkmetric.InstrumentKindGauge {
		return metricdata.DeltaTemporality
	}
	return s.Exporter.Temporality(kind)
}
