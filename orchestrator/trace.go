package orchestrator

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
)

// traceHeaders returns the span of ctx as W3C's traceparent and tracestate. It is
// empty if ctx has no span.
func traceHeaders(ctx context.Context) propagation.MapCarrier {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier
}
