package cloudrun

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric"
	nometric "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	notrace "go.opentelemetry.io/otel/trace/noop"
)

// Exports send a process's traces and metrics to a collector, until Stop. One of a
// Telemetry that is nowhere has no goroutine and sends nothing. Its methods may be
// called concurrently.
//
// Metrics are sent each minute, and spans 5 s after they have ended, or as the
// SDK's variables say. On Cloud Run, where CPU is given only while a request is
// open, those timers stand still between two requests: what is due then leaves
// with the next request, or at the stop, for which CPU is given. So a graph of an
// idle instance has gaps. Counts are not lost by that, since they only grow. Spans
// may be: 2,048 wait, those beyond are dropped and told of nowhere, and so is, with
// a warning, a batch that its time runs out for.
//
// Whether a request is traced its caller decides, by the SDK's default, where the
// caller is known: on Cloud Run that is its front end, which samples few.
// OTEL_TRACES_SAMPLER=always_on traces all. A service for anybody begins traces of
// its own, with a link to the caller's.
//
// OpenTelemetry's global providers are not set. Google's client libraries would
// hang a span of their own on each call to Firestore, under names that change with
// their versions, and a program with an analyzer of its own may have set them.
// Such a program gets those spans, inside ours, by setting them itself.
type Exports struct {
	traces  *sdktrace.TracerProvider // nil: none
	metrics *sdkmetric.MeterProvider // nil: none
	end     context.CancelFunc       // of every export
	stop    sync.Once
}

// Export begins to send. It makes no call yet, and an error is one of the
// configuration. What fails later is a warning now and then.
func (t Telemetry) Export(ctx context.Context, log *slog.Logger) (*Exports, error) {
	x := &Exports{end: func() {}}
	if t.Traces == "" && t.Metrics == "" {
		return x, nil
	}
	who, err := t.resource(ctx)
	if err != nil {
		return nil, err
	}
	during, end := context.WithCancel(context.WithoutCancel(ctx))
	x.end = end
	sink := func(signal string) *sink {
		return &sink{until: during, log: log, signal: signal, secrets: t.secrets}
	}
	if t.Traces != "" {
		to, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(t.Traces), otlptracehttp.WithHTTPClient(t.client(during, t.Traces)),
			otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: firstRetry, MaxInterval: longestRetry, MaxElapsedTime: allRetries}))
		if err != nil {
			end()
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: traces: %w", err)
		}
		x.traces = sdktrace.NewTracerProvider(sdktrace.WithResource(who), sdktrace.WithBatcher(spanSink{to, sink("traces")}))
	}
	if t.Metrics != "" {
		to, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(t.Metrics), otlpmetrichttp.WithHTTPClient(t.client(during, t.Metrics)),
			otlpmetrichttp.WithRetry(otlpmetrichttp.RetryConfig{Enabled: true, InitialInterval: firstRetry, MaxInterval: longestRetry, MaxElapsedTime: allRetries}))
		if err != nil {
			end()
			x.Stop(ctx)
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: metrics: %w", err)
		}
		x.metrics = sdkmetric.NewMeterProvider(sdkmetric.WithResource(who), sdkmetric.WithReader(sdkmetric.NewPeriodicReader(metricSink{to, sink("metrics")})))
	}
	return x, nil
}

// resource is who sends. Each process is an instance of its own: else a backend
// would take the counts of several for one that jumps up and down.
func (t Telemetry) resource(ctx context.Context) (*resource.Resource, error) {
	attrs := []attribute.KeyValue{attribute.String("service.name", t.Service), attribute.String("service.instance.id", rand.Text())}
	if t.Version != "" {
		attrs = append(attrs, attribute.String("service.version", t.Version))
	}
	if t.Project != "" && (google(t.Traces) || google(t.Metrics)) {
		attrs = append(attrs, attribute.String("gcp.project_id", t.Project))
	}
	who, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(attrs...), resource.WithFromEnv())
	if err != nil {
		return nil, errors.New("OTEL_RESOURCE_ATTRIBUTES: the SDK cannot read it") // it would quote it
	}
	return who, nil
}

// On reports whether anything is sent.
func (x *Exports) On() bool { return x.traces != nil || x.metrics != nil }

// Tracers makes spans; where none are sent, none are made.
func (x *Exports) Tracers() trace.TracerProvider {
	if x.traces == nil {
		return notrace.NewTracerProvider()
	}
	return x.traces
}

// Meters makes instruments; where no metrics are sent, they measure nothing.
func (x *Exports) Meters() metric.MeterProvider {
	if x.metrics == nil {
		return nometric.NewMeterProvider()
	}
	return x.metrics
}

// Stop sends what is left, in what time ctx leaves, and returns when no export is
// under way. Spans that end later are dropped. Only the first call does anything.
func (x *Exports) Stop(ctx context.Context) {
	x.stop.Do(func() {
		defer x.end()
		defer context.AfterFunc(ctx, x.end)()
		// Of their own, with an end of ctx, the providers would return before their
		// exports. What fails is told by the sinks.
		whole := context.WithoutCancel(ctx)
		var both sync.WaitGroup
		if x.traces != nil {
			both.Go(func() { _ = x.traces.Shutdown(whole) })
		}
		if x.metrics != nil {
			both.Go(func() { _ = x.metrics.Shutdown(whole) })
		}
		both.Wait()
	})
}
