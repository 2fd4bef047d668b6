package cloudrun

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// quiet is how long after a warning the next comes at the earliest: a collector
// that is gone fails each batch.
const quiet = 5 * time.Minute

// maxSaid bounds what is logged of an error, in bytes: a collector's answer is
// part of it.
const maxSaid = 512

// sink is the end of one signal's exports: it bounds them, and tells what fails.
type sink struct {
	until   context.Context
	log     *slog.Logger
	signal  string
	secrets []string

	mu       sync.Mutex
	told     time.Time
	failures int   // since then
	last     error // of those
}

var errNoTime = errors.New("the stop has left no more time")

// export does it until the sink's end, and takes its error.
func (s *sink) export(ctx context.Context, do func(context.Context) error) {
	bounded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.until, func() { cancel(errNoTime) })()
	err := s.until.Err()
	if err == nil {
		err = again(bounded, do)
	}
	switch {
	case err == nil:
	case s.until.Err() != nil && !unreached(err):
		s.tell(errNoTime)
	case errors.Is(ctx.Err(), context.Canceled): // by the SDK, which exports all again as it stops
	default:
		s.tell(err)
	}
}

// The SDK's first retry comes after 5 s, and the flush at a stop has 2: it waits for
// an export that waits, so none waits for longer than half of that.
const firstRetry, longestRetry, allRetries = 300 * time.Millisecond, time.Second, 20 * time.Second

// again does it, and again where there was no connection: the SDK repeats only what
// a collector has answered, and one that is just being replaced refuses.
func again(ctx context.Context, do func(context.Context) error) error {
	began := time.Now()
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		err := do(ctx)
		if !unreached(err) || time.Since(began)+wait > allRetries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// unreached reports whether err is that of a connection that could not be made.
func unreached(err error) bool {
	var e *net.OpError
	return errors.As(err, &e) && e.Op == "dial"
}

// tell warns, or counts for the next warning.
func (s *sink) tell(err error) {
	s.mu.Lock()
	s.failures++
	s.last = err
	due := s.told.IsZero() || time.Since(s.told) >= quiet
	s.mu.Unlock()
	if due {
		s.warn()
	}
}

// warn tells of what no warning has yet.
func (s *sink) warn() {
	s.mu.Lock()
	failures, err := s.failures, s.last
	s.told, s.failures = time.Now(), 0
	s.mu.Unlock()
	if failures > 0 {
		s.log.Warn("telemetry not exported", "signal", s.signal, "failures", failures, "error", s.legible(err))
	}
}

// legible is an error without what a collector may have quoted of our headers.
func (s *sink) legible(err error) string {
	said := err.Error()
	for _, word := range s.secrets {
		if len(word) > 3 {
			said = strings.ReplaceAll(said, word, "…")
		}
	}
	return strings.ToValidUTF8(said[:min(maxSaid, len(said))], "")
}

// spanSink is a sink for spans.
type spanSink struct {
	sdktrace.SpanExporter
	*sink
}

// ExportSpans implements sdktrace.SpanExporter.
func (s spanSink) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	s.export(ctx, func(ctx context.Context) error { return s.SpanExporter.ExportSpans(ctx, spans) })
	return nil // the SDK would write it to standard error
}

// Shutdown implements sdktrace.SpanExporter: nothing is exported after it.
func (s spanSink) Shutdown(ctx context.Context) error {
	s.warn()
	return s.SpanExporter.Shutdown(ctx)
}

// metricSink is a sink for metrics.
type metricSink struct {
	sdkmetric.Exporter
	*sink
}

// Export implements sdkmetric.Exporter.
func (s metricSink) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	s.export(ctx, func(ctx context.Context) error { return s.Exporter.Export(ctx, m) })
	return nil // the SDK would write it to standard error
}

// Shutdown implements sdkmetric.Exporter: nothing is exported after it.
func (s metricSink) Shutdown(ctx context.Context) error {
	s.warn()
	return s.Exporter.Shutdown(ctx)
}

// Temporality implements sdkmetric.Exporter. A gauge is sent only after it was
// set: what one instance found an hour ago says nothing beside what another has
// found since.
func (s metricSink) Temporality(kind sdkmetric.InstrumentKind) metricdata.Temporality {
	if kind == sdkmetric.InstrumentKindGauge {
		return metricdata.DeltaTemporality
	}
	return s.Exporter.Temporality(kind)
}
