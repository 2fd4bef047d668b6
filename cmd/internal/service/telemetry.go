package service

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/auth/credentials"
	"cloud.google.com/go/auth/httptransport"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"taskguard/internal/env"
)

// Telemetry configures the export of traces and metrics, by OTLP over HTTP. The zero value exports
// nothing.
type Telemetry struct {
	Service string // service.name, unless OTEL_SERVICE_NAME sets another
	Version string // service.version; empty: none
	Traces  string // URL; empty: none are sent
	Metrics string // URL; empty: none are sent
	Project string // gcp.project_id, for Google's own endpoint; empty: unknown

	transport http.RoundTripper // tests replace the way to Google; nil: the default
}

// ReadTelemetry reads the variables that enable OpenTelemetry's exporters. The SDK reads its
// other variables itself. metrics reports whether the service has metrics.
func ReadTelemetry(e *env.Environment, service string, metrics bool) Telemetry {
	t := Telemetry{Service: service, Version: e.Text("K_REVISION", ""), Project: e.Text("GOOGLE_CLOUD_PROJECT", "")}
	base := collector(e, "OTEL_EXPORTER_OTLP_ENDPOINT")
	e.OneOf("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	disabled := strings.EqualFold(e.Text("OTEL_SDK_DISABLED", ""), "true")
	// The SDK panics on an impossible size, and logs the text of malformed headers.
	e.Integer("OTEL_BSP_MAX_QUEUE_SIZE", 2048, 1, 1_000_000)
	e.Integer("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, 1, 1_000_000)
	checkHeaders(e, "OTEL_EXPORTER_OTLP_HEADERS")

	signal := func(name, path string) string {
		checkHeaders(e, "OTEL_EXPORTER_OTLP_"+name+"_HEADERS")
		e.OneOf("OTEL_EXPORTER_OTLP_"+name+"_PROTOCOL", "http/protobuf")
		none := e.OneOf("OTEL_"+name+"_EXPORTER", "otlp", "none") == "none"
		u := collector(e, "OTEL_EXPORTER_OTLP_"+name+"_ENDPOINT")

		switch {
		case none || disabled || u == nil && base == nil:
			return ""
		case u != nil:
			return u.String()
		}
		return base.JoinPath(path).String()
	}

	t.Traces = signal("TRACES", "v1/traces")
	if metrics {
		t.Metrics = signal("METRICS", "v1/metrics")
	}
	return t
}

// collector reads the URL of a collector. It returns nil if the URL is unset, or refused because
// it cannot be logged.
func collector(e *env.Environment, name string) *url.URL {
	v := e.Text(name, "")
	if v == "" {
		return nil
	}
	u, err := url.Parse(v)
	plain := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
	if plain && u.User == nil && u.RawQuery == "" && u.Fragment == "" {
		return u
	}

	// The message does not quote it: it may contain a password.
	e.Problem(name, "is not an http or https URL of scheme, host and path; "+
		"a key belongs into OTEL_EXPORTER_OTLP_HEADERS")
	return nil
}

// checkHeaders refuses headers that the SDK cannot parse.
func checkHeaders(e *env.Environment, name string) {
	for pair := range strings.SplitSeq(e.Text(name, ""), ",") {
		header, value, found := strings.Cut(pair, "=")
		_, err := url.PathUnescape(value)
		if pair != "" && (!found || err != nil || !validName.MatchString(strings.TrimSpace(header))) {
			e.Problem(name, "is not of the form name=value,…")
			return
		}
	}
}

// validName matches the name of an HTTP header.
var validName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

// Attr returns the collector's URL, for the log.
func (t Telemetry) Attr() slog.Attr { return slog.String("otlp", cmp.Or(t.Traces, t.Metrics)) }

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

// Export starts the exports. It makes no call yet: it returns an error only for a wrong
// configuration or missing credentials. Later failures are warnings in the log.
func (t Telemetry) Export(ctx context.Context, log *slog.Logger) (*Exports, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
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
		batches := sdktrace.WithBatcher(spanSink{exporter, &sink{life: life, log: log, signal: "traces"}})
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
		reader := sdkmetric.NewPeriodicReader(metricSink{exporter, &sink{life: life, log: log, signal: "metrics"}})
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

	identity := resource.WithAttributes(attrs...)
	sender, err := resource.New(ctx, resource.WithTelemetrySDK(), identity, resource.WithFromEnv())
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

// googleHost is Google's own endpoint for telemetry, the global or a regional one.
var googleHost = regexp.MustCompile(`^telemetry\.([a-z0-9-]+\.rep\.)?googleapis\.com$`)

// google reports whether endpoint is the https URL of Google's own endpoint. Over http, the token
// could be read on the way.
func google(endpoint string) bool {
	u, err := url.Parse(endpoint)
	return err == nil && u.Scheme == "https" && googleHost.MatchString(strings.ToLower(u.Hostname()))
}

// client returns a client for Google's own endpoint that sends the token of the service's account
// (Application Default Credentials). For another endpoint the client is nil: it is the SDK's.
func (t Telemetry) client(endpoint string) (c *http.Client, err error) {
	if !google(endpoint) {
		return nil, nil
	}
	found, err := credentials.DetectDefault(&credentials.DetectOptions{
		Scopes:              []string{"https://www.googleapis.com/auth/cloud-platform"},
		DisableAsyncRefresh: true,                          // a goroutine that no stop would wait for
		Logger:              slog.New(slog.DiscardHandler), // GOOGLE_SDK_GO_LOGGING_LEVEL=debug shows tokens
	})
	if err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: no credentials: %w", err)
	}

	c = &http.Client{
		Transport: cmp.Or(t.transport, http.DefaultTransport),
		Timeout:   10 * time.Second, // the default of the SDK's own client
		// The token is only for Google, so a redirect is a failure.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, httptransport.AddAuthorizationMiddleware(c, found)
}

// warnEvery is the shortest time between two warnings. Without a collector, each batch fails.
const warnEvery = 5 * time.Minute

// sink ends the exports of one signal with the process, and logs their failures.
type sink struct {
	life   context.Context // its end ends the exports
	log    *slog.Logger
	signal string

	mu       sync.Mutex
	warned   time.Time
	failures int // the number of failures since the last warning
}

// export runs one export until the sink's end.
func (s *sink) export(parent context.Context, do func(context.Context) error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
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
