package server_test

import (
	"bytes"
	"cmp"
	"net/http"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"taskguard/internal/testing/must"
	"taskguard/locks/document/server/web"
)

func TestPage_Files(t *testing.T) {
	b := newSite(t, nil).browser(t)
	for path, kind := range map[string]string{
		"/": "text/html", "/index.html": "text/html", "/locks.js": "text/javascript", "/locks.d.ts": "text/plain",
		"/page.js": "text/javascript", "/page.css": "text/css",
	} {
		want := must.Get(web.Files.ReadFile(cmp.Or(strings.TrimPrefix(path, "/"), "index.html")))(t)
		if path == "/locks.js" { // its own server
			want = append(want, "\ndefaults.endpoint = new URL('/api/documents', import.meta.url).href;"...)
		}
		got := b.do(http.MethodGet, path, http.NoBody)
		if got.status != http.StatusOK || got.body != string(bytes.TrimSpace(want)) {
			t.Errorf("%s: %d, %d bytes", path, got.status, len(got.body))
		}
		if !strings.HasPrefix(got.header.Get("Content-Type"), kind) {
			t.Errorf("%s: %v", path, got.header)
		}
		again := b.do(http.MethodGet, path, http.NoBody, "If-None-Match", got.header.Get("ETag"))
		if again.status != http.StatusNotModified || again.body != "" {
			t.Errorf("%s: unchanged, but sent again: %d", path, again.status)
		}
	}
}

func TestSecurityHeaders(t *testing.T) {
	b := newSite(t, nil).browser(t)
	const policy = "Content-Security-Policy"
	for path, cache := range map[string]string{
		"/": "private, no-cache", "/locks.js": "private, no-cache", lockPath: "no-store", "/nope": "no-store",
		"/health/live": "no-store", lockPath + "/ws": "no-store",
	} {
		plain := b.do(http.MethodGet, path, http.NoBody).header
		if plain.Get("Strict-Transport-Security") != "" {
			t.Errorf("%s in clear: %v", path, plain)
		}
		got := b.do(http.MethodGet, path, http.NoBody, "X-Forwarded-Proto", "https").header
		for _, want := range [][2]string{
			{policy, "default-src 'self'"}, {policy, "worker-src 'self' blob:"}, {policy, "connect-src 'self'"},
			{policy, "frame-ancestors 'none'"}, {"Strict-Transport-Security", "max-age=31536000"},
			{"X-Frame-Options", "DENY"}, {"X-Content-Type-Options", "nosniff"}, {"Referrer-Policy", "no-referrer"},
			{"Cache-Control", cache},
		} {
			if !strings.Contains(got.Get(want[0]), want[1]) {
				t.Errorf("%s: %s is %q, want %s", path, want[0], got.Get(want[0]), want[1])
			}
		}
	}
}

// The span has the route and not the room. Probes and sockets have no span.
func TestSpans(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	b := newSite(t, func(s *setup) {
		s.options.Tracer, s.options.Finder = tracers.Tracer("x"), failing{}
	}).browser(t)
	for _, request := range []string{
		"GET /health/live", "GET /health/ready", "GET /api/documents/s3cret/lock/ws", "GET /api/documents/s3cret/lock",
		"PATCH /api/documents/s3cret/lock", "S3CRET /api/documents/s3cret/lock", "GET /s3cret/s3cret",
		"POST /internal/sweep",
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
		if failed := span.Status().Code == codes.Error; failed != strings.HasSuffix(line, "503") {
			t.Errorf("%s: %v", line, span.Status())
		}
		if span.SpanKind() != trace.SpanKindServer {
			t.Errorf("%s: %v", line, span.SpanKind())
		}
		got = append(got, line)
	}
	if want := []string{
		"request GET /api/documents/:roomId/lock 200",
		"request PATCH /api/documents/:roomId/lock 405",
		"request _OTHER /api/documents/:roomId/lock 405",
		"request GET 404",
		"request POST /internal/sweep 503",
	}; !slices.Equal(got, want) {
		t.Errorf("spans: %q\nwant: %q", got, want)
	}
}
