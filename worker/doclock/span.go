package doclock

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// spanned is a middleware that makes the span of a request, by its route: the room
// is not in it. Anybody may call, and is not to decide what is traced: the span
// begins a trace, with a link to the caller's, of which the log's lines stay.
// Probes have none, and sockets, which live for hours, have none.
func (s *Server) spanned(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		route := c.Path()
		if strings.HasPrefix(route, "/health/") || strings.HasSuffix(route, "/ws") {
			return next(c)
		}
		r := c.Request()
		_, span := s.o.Tracer.Start(r.Context(), "request", trace.WithSpanKind(trace.SpanKindServer),
			trace.WithNewRoot(), trace.WithLinks(trace.LinkFromContext(r.Context())))
		defer func() { span.End() }() // deferred itself, it would tell a panic's value
		err := next(c)
		if err != nil {
			c.Error(err) // is answered here, so that the status is known; it is not answered twice
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
		return err
	}
}

// method is a request's, or _OTHER: anybody may send any word.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "_OTHER"
}
