package cloudrun

import (
	"context"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// NewLogger writes Cloud Logging's JSON or, with the format text, lines for people.
// A line of JSON whose context has a trace names it in Cloud Logging's fields, by
// which the line stands under its request.
func NewLogger(w io.Writer, format string, level slog.Level) *slog.Logger {
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
	}
	h := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: cloudLogging})
	return slog.New(correlated{Handler: h})
}

// cloudLogging renames slog's fields to those that Cloud Logging reads.
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

// correlated adds a context's trace to its lines, at the top: so groups and
// attributes of the logger are added after it, to each line anew.
type correlated struct {
	slog.Handler                                   // with nothing added
	added        []func(slog.Handler) slog.Handler // in their order
}

// Handle implements slog.Handler.
func (h correlated) Handle(ctx context.Context, r slog.Record) error {
	to := h.Handler.WithAttrs(traceFields(trace.SpanContextFromContext(ctx)))
	for _, add := range h.added {
		to = add(to)
	}
	return to.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h correlated) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(func(to slog.Handler) slog.Handler { return to.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h correlated) WithGroup(name string) slog.Handler {
	return h.with(func(to slog.Handler) slog.Handler { return to.WithGroup(name) })
}

func (h correlated) with(add func(slog.Handler) slog.Handler) slog.Handler {
	return correlated{h.Handler, append(h.added[:len(h.added):len(h.added)], add)}
}

// traceFields are Cloud Logging's of a trace; none where there is none.
func traceFields(sc trace.SpanContext) []slog.Attr {
	if !sc.HasTraceID() {
		return nil
	}
	const prefix = "logging.googleapis.com/"
	fields := []slog.Attr{slog.String(prefix+"trace", sc.TraceID().String())}
	if sc.HasSpanID() {
		fields = append(fields, slog.String(prefix+"spanId", sc.SpanID().String()))
	}
	return append(fields, slog.Bool(prefix+"trace_sampled", sc.IsSampled()))
}
