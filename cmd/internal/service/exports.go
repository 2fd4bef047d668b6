package service

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Exports sends a process's traces and metrics to a collector, until Stop.
//
// Cloud Run gives CPU only while a request is open. Between two requests the SDK's timers do not
// run, and data that is due is sent during the next request or at the stop. Metrics are not lost,
// since counts only grow. Spans are lost, without a log line, if more than 2,048 are waiting.
//
// OpenTelemetry's global providers are not set: Google's client libraries would add
// spans of their own, under names that change with their versions.
type Exports struct {
	Tracers trace.TracerProvider // nil: no traces are sent
	Meters  metric.MeterProvider // nil: no metrics are sent

	shutdown []func(context.Context) error
	end      context.CancelFunc // ends every export
}

// Export starts the exports. It makes no call yet, and its errors are those of the configuration
// and of missing credentials. Later failures are warnings in the log.
func (t Telemetry) Export(ctx context.Context, log *slog.Logger) (*Exports, error) {
	until, end := context.WithCancel(context.WithoutCancel(ctx))
	x := &Exports{end: end}
	if t.Traces == "" && t.Metrics == "" {
		return x, nil
	}
	sender, err := t.resource(ctx)
	if err != nil {
		return nil, err
	}

	// The SDK's first retry comes after 5 s by default, and a stop has 2 s for the flush.
	retries := otlptracehttp.RetryConfig{
		Enabled: true, InitialInterval: 300 * time.Millisecond,
		MaxInterval: time.Second, MaxElapsedTime: 20 * time.Second,
	}

	if t.Traces != "" {
		client, err := t.client(t.Traces)
		if err != nil {
			return nil, err
		}
		exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(t.Traces),
			otlptracehttp.WithHTTPClient(client), otlptracehttp.WithRetry(retries))
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: traces: %w", err)
		}
		batches := sdktrace.WithBatcher(spanSink{exporter, &sink{until: until, log: log, signal: "traces"}})
		p := sdktrace.NewTracerProvider(sdktrace.WithResource(sender), batches)
		x.Tracers, x.shutdown = p, append(x.shutdown, p.Shutdown)
	}

	if t.Metrics != "" {
		client, err := t.client(t.Metrics)
		if err != nil {
			return nil, err
		}
		exporter, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(t.Metrics),
			otlpmetrichttp.WithHTTPClient(client), otlpmetrichttp.WithRetry(otlpmetrichttp.RetryConfig(retries)))
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: metrics: %w", err)
		}
		reader := sdkmetric.NewPeriodicReader(metricSink{exporter, &sink{until: until, log: log, signal: "metrics"}})
		p := sdkmetric.NewMeterProvider(sdkmetric.WithResource(sender), sdkmetric.WithReader(reader))
		x.Meters, x.shutdown = p, append(x.shutdown, p.Shutdown)
	}
	return x, nil
}

// resource returns the attributes of the sender. Each process has its own id: otherwise a backend
// would add up the counts of several processes.
func (t Telemetry) resource(ctx context.Context) (*resource.Resource, error) {
	attrs := []attribute.KeyValue{
		attribute.String("service.name", t.Service), attribute.String("service.instance.id", rand.Text()),
	}
	if t.Version != "" {
		attrs = append(attrs, attribute.String("service.version", t.Version))
	}
	if t.Project != "" && (google(t.Traces) || google(t.Metrics)) {
		attrs = append(attrs, attribute.String("gcp.project_id", t.Project))
	}

	own := resource.WithAttributes(attrs...)
	sender, err := resource.New(ctx, resource.WithTelemetrySDK(), own, resource.WithFromEnv())
	if err != nil {
		return nil, errors.New("OTEL_RESOURCE_ATTRIBUTES: the SDK cannot read it") // its error has the value
	}
	return sender, nil
}

// Stop sends the remaining data until ctx ends. When it returns, no export is in progress.
func (x *Exports) Stop(ctx context.Context) {
	defer x.end()
	defer context.AfterFunc(ctx, x.end)()
	var all sync.WaitGroup
	for _, shutdown := range x.shutdown {
		// With ctx, shutdown would return before the exports end. A failure is logged by the sink.
		all.Go(func() { _ = shutdown(context.WithoutCancel(ctx)) })
	}
	all.Wait()
}
