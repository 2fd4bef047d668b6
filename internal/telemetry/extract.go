package telemetry

import (
	"context"
	"encoding/binary"
	"net/http"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Extract returns ctx with the trace of a request's header: traceparent, or else
// X-Cloud-Trace-Context, which some of Google's clients set instead. It ignores a malformed
// header. If ctx already has a trace, it keeps that.
func Extract(ctx context.Context, h http.Header) context.Context {
	if trace.SpanContextFromContext(ctx).HasTraceID() {
		return ctx
	}
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(h))
	if !trace.SpanContextFromContext(ctx).HasTraceID() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parseGoogleTrace(h.Get("X-Cloud-Trace-Context")))
	}
	return ctx
}

// parseGoogleTrace reads TRACE_ID[/SPAN_ID][;o=OPTIONS]: 32 hexadecimal digits, a
// decimal number, and 1 for sampled.
func parseGoogleTrace(header string) trace.SpanContext {
	ids, options, _ := strings.Cut(header, ";o=")
	traceText, spanText, hasSpan := strings.Cut(ids, "/")
	traceID, err := trace.TraceIDFromHex(strings.ToLower(traceText))
	if err != nil {
		return trace.SpanContext{}
	}
	c := trace.SpanContextConfig{TraceID: traceID, Remote: true}
	if hasSpan {
		spanID, err := strconv.ParseUint(spanText, 10, 64)
		if err != nil {
			return trace.SpanContext{}
		}
		binary.BigEndian.PutUint64(c.SpanID[:], spanID)
	}
	if options == "1" {
		c.TraceFlags = trace.FlagsSampled
	}
	return trace.NewSpanContext(c)
}

// Traced puts a request's trace into its context; see Extract.
func Traced(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(Extract(r.Context(), r.Header)))
	})
}
