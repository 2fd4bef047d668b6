package telemetry

import (
	"context"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// NewLogger returns a logger of Cloud Logging's JSON or, with the format text, of plain
// lines. A JSON line has its context's trace, by which Cloud Logging groups the lines of
// a request.
func NewLogger(w io.Writer, format string, level slog.Level) *slog.Logger {
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
	}
	h := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: cloudLogging})
	return slog.New(correlated{h})
}

// cloudLogging gives slog's fields the names that Cloud Logging reads.
func cloudLogging(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.LevelKey:
		a.Key = "severity"
		if a.Value.String() == "WARN" {
			a.Value = slog.StringValue("WARNING")
		}
	case slog.MessageKey:
		a.Key = "message"
	}
	return a
}

// correlated adds the context's trace to each line. Cloud Logging reads the trace only outside a
// group.
type correlated struct{ slog.Handler }

// Handle implements slog.Handler.
func (h correlated) Handle(ctx context.Context, r slog.Record) error {
	r = r.Clone()
	r.AddAttrs(traceFields(trace.SpanContextFromContext(ctx))...)
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h correlated) WithAttrs(attrs []slog.Attr) slog.Handler {
	return correlated{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h correlated) WithGroup(name string) slog.Handler { return correlated{h.Handler.WithGroup(name)} }

// traceFields returns Cloud Logging's fields of a trace. It omits the id of a span of this process
// that is not sampled, since that span is not sent.
func traceFields(sc trace.SpanContext) []slog.Attr {
	if !sc.HasTraceID() {
		return nil
	}
	const prefix = "logging.googleapis.com/"
	fields := []slog.Attr{slog.String(prefix+"trace", sc.TraceID().String())}
	if sc.IsSampled() || sc.IsRemote() {
		fields = append(fields, slog.String(prefix+"spanId", sc.SpanID().String()))
	}
	return append(fields, slog.Bool(prefix+"trace_sampled", sc.IsSampled()))
}
