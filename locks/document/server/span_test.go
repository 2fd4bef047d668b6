package server_test

import (
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// The span has the route and not the room. Probes and sockets have no span.
func TestARequestIsASpanWithoutItsRoom(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	b := newSite(t, func(parts *setup) { parts.options.Tracer, parts.options.Finder = tracers.Tracer("x"), failing{} }).browser(t)
	for _, request := range []string{
		"GET /health/live", "GET /health/ready", "GET /api/documents/s3cret/lock/ws", "GET /api/documents/s3cret/lock",
		"PATCH /api/documents/s3cret/lock", "S3CRET /api/documents/s3cret/lock", "GET /s3cret/s3cret", "POST /internal/sweep",
	} {
		method, path, _ := strings.Cut(request, " ")
		b.ask(method, path)
	}
	var got []string
	for _, span := range spans.Ended() {
		line := span.Name()
		for _, a := range span.Attributes() {
			line += " " + a.Value.String()
		}
		if span.SpanKind() != trace.SpanKindServer || (span.Status().Code == codes.Error) != strings.HasSuffix(line, "503") {
			t.Errorf("%s: %v, %v", line, span.SpanKind(), span.Status())
		}
		got = append(got, line)
	}
	want := []string{
		"request GET /api/documents/:roomId/lock 200",
		"request PATCH /api/documents/:roomId/lock 405",
		"request _OTHER /api/documents/:roomId/lock 405",
		"request GET 404",
		"request POST /internal/sweep 503",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("spans:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
