package orchestrator_test

import (
	"context"
	"net/http"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"taskguard/orchestrator"
)

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// inTrace is in the span that traceparent names, with a tracestate.
func inTrace(t *testing.T) context.Context {
	t.Helper()
	state, err := trace.ParseTraceState("vendor=1")
	if err != nil {
		t.Fatal(err)
	}
	return trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID:    trace.TraceID{0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c},
		SpanID:     trace.SpanID{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31},
		TraceFlags: trace.FlagsSampled, TraceState: state,
	}))
}

func TestEndpointIsSentTheTraceThatTheRunIsOf(t *testing.T) {
	var got http.Header
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Clone() })
	for name, ctx := range map[string]context.Context{"in a trace": inTrace(t), "in none": t.Context()} {
		want, state := traceparent, "vendor=1"
		if name == "in none" {
			want, state = "", ""
		}
		if _, err := post(ctx, t, s.URL, orchestrator.Job{}); err != nil {
			t.Fatal(err)
		}
		if got.Get("traceparent") != want || got.Get("tracestate") != state {
			t.Errorf("%s: traceparent %q, tracestate %q; want %q, %q", name, got.Get("traceparent"), got.Get("tracestate"), want, state)
		}
	}
}
