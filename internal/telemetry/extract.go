package telemetry

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Extract returns ctx with the trace of a request's header traceparent, unless that is malformed.
// If ctx already has a trace, it keeps that.
func Extract(ctx context.Context, h http.Header) context.Context {
	if trace.SpanContextFromContext(ctx).HasTraceID() {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(h))
}

// Traced puts a request's trace into its context; see Extract.
func Traced(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(Extract(r.Context(), r.Header)))
	})
}
