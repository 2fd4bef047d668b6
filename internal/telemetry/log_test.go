package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/slogtest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const (
	someTrace = "0af7651916cd43dd8448eb211c80319c"
	someSpan  = "b7ad6b7169203331"
	prefix    = "logging.googleapis.com/"
)

// traced is the context of a request with these headers, such as "name: value".
func traced(t *testing.T, headers ...string) (ctx context.Context) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	Traced(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { ctx = r.Context() })).ServeHTTP(nil, r)
	return ctx
}

const w3c = "traceparent: 00-" + someTrace + "-" + someSpan

func TestTheTraceOfARequest(t *testing.T) {
	for name, tc := range map[string]struct {
		headers []string
		want    map[string]any
	}{
		"none":             {nil, map[string]any{}},
		"sampled":          {[]string{w3c + "-01"}, map[string]any{"trace": someTrace, "spanId": someSpan, "trace_sampled": true}},
		"not sampled":      {[]string{w3c + "-00"}, map[string]any{"trace": someTrace, "spanId": someSpan, "trace_sampled": false}},
		"text of a client": {[]string{"traceparent: <script>"}, map[string]any{}},
	} {
		var log bytes.Buffer
		NewLogger(&log, "json", 0).InfoContext(traced(t, tc.headers...), "m", "a", 1)
		var line map[string]any
		if err := json.Unmarshal(log.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		delete(line, "time")
		want := map[string]any{"severity": "INFO", "message": "m", "a": 1.0}
		for k, v := range tc.want {
			want[prefix+k] = v
		}
		if diff := cmp.Diff(want, line); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A span that is not sampled is sent nowhere, but for the caller's, which its own
// service may have sent.
func TestALineOmitsASpanThatIsNotSent(t *testing.T) {
	for want, sampler := range map[bool]sdktrace.Sampler{true: sdktrace.AlwaysSample(), false: sdktrace.NeverSample()} {
		var log bytes.Buffer
		ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler)).Tracer("").Start(traced(t, w3c+"-00"), "x")
		NewLogger(&log, "json", 0).InfoContext(ctx, "m")
		if got := strings.Contains(log.String(), span.SpanContext().SpanID().String()); got != want || !strings.Contains(log.String(), someTrace) {
			t.Errorf("sampled %v: %s", want, &log)
		}
	}
}

func TestTheHandlerPassesSlogtest(t *testing.T) {
	var log *bytes.Buffer
	slogtest.Run(t, func(*testing.T) slog.Handler {
		log = &bytes.Buffer{}
		return NewLogger(log, "json", 0).Handler()
	}, func(t *testing.T) map[string]any {
		var line map[string]any
		if err := json.Unmarshal(log.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		for ours, theirs := range map[string]string{"severity": "level", "message": "msg"} {
			if v, ok := line[ours]; ok {
				line[theirs] = v
			}
		}
		return line
	})
}

func TestARecordThatTwoHandlersGetIsWhole(t *testing.T) {
	var lines bytes.Buffer
	r := slog.NewRecord(time.Now(), 0, "m", 0)
	r.Add("a", 1, "b", 2, "c", 3, "d", 4, "e", 5, "f", 6, "g", 7, "h", 8)
	r.Add("i", 9) // there is room for the trace's fields in what copies of r share
	h := NewLogger(&lines, "json", 0).Handler()
	if err := errors.Join(h.Handle(traced(t, w3c+"-01"), r), h.Handle(traced(t, w3c+"-01"), r)); err != nil || strings.Contains(lines.String(), "BUG") {
		t.Errorf("a record that two handlers get: %s, %v", &lines, err)
	}
}
