package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/slogtest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"taskguard/internal/testing/must"
)

const (
	someTrace  = "0af7651916cd43dd8448eb211c80319c"
	someSpan   = "b7ad6b7169203331"
	notSampled = "00-" + someTrace + "-" + someSpan + "-00"
	sampled    = "00-" + someTrace + "-" + someSpan + "-01"
)

// traced returns the context of a request with this header.
func traced(t *testing.T, traceparent string) context.Context {
	t.Helper()
	return Extract(t.Context(), http.Header{"Traceparent": {traceparent}})
}

// written logs a line by log and returns its fields, without the time.
func written(t *testing.T, log func(*slog.Logger)) map[string]any {
	t.Helper()
	var text bytes.Buffer
	log(NewLogger(&text, "json", 0))
	var line map[string]any
	if err := json.Unmarshal(text.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, &text)
	}
	delete(line, "time")
	return line
}

func TestNewLogger(t *testing.T) {
	const prefix = "logging.googleapis.com/"
	t.Run("a line has the trace of its request", func(t *testing.T) {
		for header, want := range map[string]map[string]any{
			"":         {},
			sampled:    {prefix + "trace": someTrace, prefix + "spanId": someSpan, prefix + "trace_sampled": true},
			notSampled: {prefix + "trace": someTrace, prefix + "spanId": someSpan, prefix + "trace_sampled": false},
		} {
			got := written(t, func(log *slog.Logger) { log.WarnContext(traced(t, header), "m", "a", 1) })
			want["severity"], want["message"], want["a"] = "WARNING", "m", 1.0
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%q (-want +got):\n%s", header, diff)
			}
		}
	})
	// A span that is not sampled is sent nowhere, but for the caller's, which its own service may have sent.
	t.Run("a line omits a span that is not sent", func(t *testing.T) {
		for sent, share := range map[bool]float64{true: 1, false: 0} {
			sampler := sdktrace.WithSampler(sdktrace.TraceIDRatioBased(share))
			tracer := sdktrace.NewTracerProvider(sampler).Tracer("")
			ctx, span := tracer.Start(traced(t, notSampled), "x")
			line := written(t, func(log *slog.Logger) { log.InfoContext(ctx, "m") })
			if got := line[prefix+"spanId"] == span.SpanContext().SpanID().String(); got != sent {
				t.Errorf("sampled %t: %v", sent, line)
			}
			if line[prefix+"trace"] != someTrace {
				t.Errorf("sampled %t: another trace: %v", sent, line)
			}
		}
	})
	t.Run("a record that two handlers get is whole", func(t *testing.T) {
		var lines bytes.Buffer
		r := slog.NewRecord(time.Now(), 0, "m", 0)
		for name := range strings.SplitSeq("a b c d e f g h i j", " ") {
			r.Add(name, 1) // at the end there is room for the trace's fields in what copies of r share
		}
		h := NewLogger(&lines, "json", 0).Handler()
		err := errors.Join(h.Handle(traced(t, sampled), r), h.Handle(traced(t, sampled), r))
		if err != nil || strings.Contains(lines.String(), "BUG") {
			t.Errorf("%v: %s", err, &lines)
		}
	})
}

func TestNewLogger_Slogtest(t *testing.T) {
	var log *bytes.Buffer
	slogtest.Run(t, func(*testing.T) slog.Handler {
		log = &bytes.Buffer{}
		return NewLogger(log, "json", 0).Handler()
	}, func(t *testing.T) map[string]any {
		var line map[string]any
		must.OK(t, json.Unmarshal(log.Bytes(), &line))
		for ours, theirs := range map[string]string{"severity": "level", "message": "msg"} {
			if v, ok := line[ours]; ok {
				line[theirs] = v
			}
		}
		return line
	})
}
