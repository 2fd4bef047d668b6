package cloudrun

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// A worker must be done within 9 s of SIGTERM, and a program that ignores it
// takes 5 s of them.
func TestTheDefaultLimitsAreTheContracts(t *testing.T) {
	m := DefaultLimits()
	if m.Drain != 8*time.Second || m.Drain+m.Answers > 9*time.Second {
		t.Errorf("limits = %+v", m)
	}
	s := m.Server(nil, slog.New(slog.DiscardHandler))
	if s.ReadHeaderTimeout == 0 || s.ReadTimeout == 0 || s.IdleTimeout == 0 || s.MaxHeaderBytes == 0 || s.WriteTimeout != 0 {
		t.Errorf("server = %+v", s)
	}
}

// dark is an exporter to a collector that never answers.
type dark struct{ sdktrace.SpanExporter }

func (dark) ExportSpans(ctx context.Context, _ []sdktrace.ReadOnlySpan) error {
	<-ctx.Done()
	return ctx.Err()
}

func (dark) Shutdown(context.Context) error { return nil }

// A run that ends by nothing takes all of the drain, and a collector that never
// answers all of the flush.
func TestTheWorstStopEndsWithinNineSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		during, end := context.WithCancel(t.Context())
		x := &Exports{end: end, traces: sdktrace.NewTracerProvider(sdktrace.WithBatcher(spanSink{dark{}, &sink{until: during, log: log, signal: "traces"}}))}
		_, span := x.Tracers().Tracer("").Start(t.Context(), "x")
		span.End()
		m := DefaultLimits()
		began := time.Now()
		Service{Limits: m, Flush: x.Stop, Log: log, Drain: func(ctx context.Context) { <-ctx.Done() }}.shut(t.Context(), m.Server(nil, log))
		if took := time.Since(began); took < m.Drain || took >= 9*time.Second {
			t.Errorf("took %v, want all of the drain, and less than 9s", took)
		}
	})
}
