package server

import (
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// spanned is a middleware that makes the span of a request, named by its route: the
// room is not in it. Since anybody may call, the caller does not decide what is
// sampled: the span begins a new trace, linked to the caller's, while the log lines
// belong to the caller's. Probes have no span, nor have sockets, which live for hours.
func (s *Server) spanned(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		route := c.Path()
		if strings.HasPrefix(route, "/health/") || strings.HasSuffix(route, "/ws") || route == "/app/:key" {
			return next(c)
		}

		r := c.Request()
		_, span := s.o.Tracer.Start(r.Context(), "request", trace.WithSpanKind(trace.SpanKindServer),
			trace.WithNewRoot(), trace.WithLinks(trace.LinkFromContext(r.Context())))
		defer func() { span.End() }() // span.End deferred directly would record a panic's value

		if err := next(c); err != nil {
			c.Error(err) // answers now, so that the status is known
		}
		status := c.Response().Status
		span.SetAttributes(attribute.String("http.request.method", method(r.Method)))
		if route != "" {
			span.SetAttributes(attribute.String("http.route", route))
		}
		span.SetAttributes(attribute.Int("http.response.status_code", status))
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
		return nil
	}
}

// method returns a request's method, or _OTHER: a client may send any text.
func method(name string) string {
	if slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}, name) {
		return name
	}
	return "_OTHER"
}
