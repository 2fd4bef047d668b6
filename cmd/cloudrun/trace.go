package cloudrun

import (
	"encoding/binary"
	"net/http"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// googleTrace is the header that Google's load balancers and Cloud Run set beside
// traceparent, and that some of their clients set alone.
const googleTrace = "X-Cloud-Trace-Context"

// Traced puts the trace that a request belongs to, as traceparent says or else
// X-Cloud-Trace-Context, into its context. A malformed header says nothing.
func Traced(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if r.Header.Get("Traceparent") != "" {
			ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header))
		}
		if said := r.Header.Get(googleTrace); said != "" && !trace.SpanContextFromContext(ctx).HasTraceID() {
			if sc, ok := parseGoogleTrace(said); ok {
				ctx = trace.ContextWithRemoteSpanContext(ctx, sc)
			}
		}
		if ctx != r.Context() {
			r = r.WithContext(ctx)
		}
		h.ServeHTTP(w, r)
	})
}

// parseGoogleTrace reads TRACE_ID[/SPAN_ID][;o=OPTIONS]: 32 hexadecimal digits, a
// decimal number, and 1 for sampled.
func parseGoogleTrace(s string) (sc trace.SpanContext, ok bool) {
	s, options, _ := strings.Cut(s, ";o=")
	id, span, spanned := strings.Cut(s, "/")
	traceID, err := trace.TraceIDFromHex(strings.ToLower(id))
	if err != nil {
		return sc, false
	}
	c := trace.SpanContextConfig{TraceID: traceID, Remote: true}
	if spanned {
		n, err := strconv.ParseUint(span, 10, 64)
		if err != nil {
			return sc, false
		}
		binary.BigEndian.PutUint64(c.SpanID[:], n)
	}
	if options == "1" {
		c.TraceFlags = trace.FlagsSampled
	}
	return trace.NewSpanContext(c), true
}
