package orchestrator

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
)

// traced is the span of ctx in W3C's form, to be carried on: traceparent and
// tracestate; empty where there is none.
func traced(ctx context.Context) propagation.MapCarrier {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier
}
