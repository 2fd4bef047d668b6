package cloudrun

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/goleak"
)

// environment reads words such as PORT=1.
func environment(words ...string) *Environment {
	env := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		env[k] = v
	}
	return NewEnvironment(func(k string) (string, bool) { v, ok := env[k]; return v, ok })
}

func TestWhereTelemetryGoes(t *testing.T) {
	const base = "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318"
	for name, tc := range map[string]struct {
		env             []string
		traces, metrics string
	}{
		"nothing set":               {},
		"a base":                    {[]string{base}, "http://c:4318/v1/traces", "http://c:4318/v1/metrics"},
		"a base with a path":        {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c/otlp/"}, "https://c/otlp/v1/traces", "https://c/otlp/v1/metrics"},
		"one of a signal's own":     {[]string{base, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://t/in"}, "https://t/in", "http://c:4318/v1/metrics"},
		"traces alone":              {[]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://t/in"}, "https://t/in", ""},
		"switched off":              {[]string{base, "OTEL_SDK_DISABLED=TRUE"}, "", ""},
		"not switched off":          {[]string{base, "OTEL_SDK_DISABLED=false"}, "http://c:4318/v1/traces", "http://c:4318/v1/metrics"},
		"no traces":                 {[]string{base, "OTEL_TRACES_EXPORTER=none"}, "", "http://c:4318/v1/metrics"},
		"nor metrics":               {[]string{base, "OTEL_TRACES_EXPORTER=none", "OTEL_METRICS_EXPORTER=none"}, "", ""},
		"the exporter that is ours": {[]string{base, "OTEL_TRACES_EXPORTER=otlp"}, "http://c:4318/v1/traces", "http://c:4318/v1/metrics"},
		"what the SDK reads": {[]string{
			base, "OTEL_SERVICE_NAME=a b", "OTEL_RESOURCE_ATTRIBUTES=app.kubernetes.io/name=x, k=a%20b c", "OTEL_TRACES_SAMPLER= ParentBased_TraceIDRatio",
			"OTEL_TRACES_SAMPLER_ARG=0.5", "OTEL_BSP_SCHEDULE_DELAY=100", "OTEL_BSP_MAX_QUEUE_SIZE=10000", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=1", "OTEL_EXPORTER_OTLP_TIMEOUT=1", "OTEL_METRIC_EXPORT_INTERVAL=60000",
		}, "http://c:4318/v1/traces", "http://c:4318/v1/metrics"},
		"the protocol that is ours": {[]string{base, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"}, "http://c:4318/v1/traces", "http://c:4318/v1/metrics"},
	} {
		e := environment(tc.env...)
		if got := e.Telemetry("s", true); e.Err() != nil || got.Traces != tc.traces || got.Metrics != tc.metrics {
			t.Errorf("%s: %q, %q, %v; want %q, %q", name, got.Traces, got.Metrics, e.Err(), tc.traces, tc.metrics)
		}
		if got := environment(tc.env...).Telemetry("s", false); got.Traces != tc.traces || got.Metrics != "" {
			t.Errorf("%s: %+v of a service without metrics", name, got)
		}
	}
}

func TestATelemetryThatCannotBeIsNamedAndNotQuoted(t *testing.T) {
	const secret = "s3cret"
	for _, env := range []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=c:4318", "OTEL_EXPORTER_OTLP_ENDPOINT=http://", "OTEL_EXPORTER_OTLP_ENDPOINT=http://" + secret + ":x y@c",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://u:" + secret + "@c", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c/?key=" + secret,
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=grpc://c", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=c",
		"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=grpc",
		"OTEL_SDK_DISABLED=yes", "OTEL_EXPORTER_OTLP_HEADERS=" + secret, "OTEL_EXPORTER_OTLP_HEADERS=a b=" + secret,
		"OTEL_EXPORTER_OTLP_HEADERS=k=%zz" + secret, "OTEL_EXPORTER_OTLP_TRACES_HEADERS=k=v,",
		"OTEL_TRACES_EXPORTER=console", "OTEL_METRICS_EXPORTER=prometheus",
		"OTEL_RESOURCE_ATTRIBUTES=" + secret, "OTEL_RESOURCE_ATTRIBUTES=k=%zz" + secret, "OTEL_RESOURCE_ATTRIBUTES=a=b,",
		"OTEL_TRACES_SAMPLER=" + secret, "OTEL_TRACES_SAMPLER_ARG=" + secret, "OTEL_TRACES_SAMPLER_ARG=2", "OTEL_TRACES_SAMPLER_ARG=-1", "OTEL_TRACES_SAMPLER_ARG=NaN",
		"OTEL_BSP_SCHEDULE_DELAY=5s", "OTEL_EXPORTER_OTLP_TIMEOUT=0", "OTEL_METRIC_EXPORT_INTERVAL=-1", "OTEL_METRIC_EXPORT_INTERVAL=9999999999999",
		"OTEL_BSP_MAX_QUEUE_SIZE=-1", "OTEL_BSP_MAX_QUEUE_SIZE=1000001", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=-1", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=0",
	} {
		e := environment(env)
		e.Telemetry("s", true)
		name, _, _ := strings.Cut(env, "=")
		if err := e.Err(); err == nil || !strings.HasPrefix(err.Error(), name+": ") || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, want one line naming it", env, err)
		}
	}
}

func TestWithoutACollectorNothingIsMade(t *testing.T) {
	defer goleak.VerifyNone(t)
	x, err := Telemetry{Service: "s"}.Export(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil || x.On() {
		t.Fatalf("on %v, %v", x.On(), err)
	}
	if _, span := x.Tracers().Tracer("").Start(t.Context(), ""); span.SpanContext().IsValid() {
		t.Error("a span is made")
	}
	x.Stop(t.Context())
}

// exporting is an Exports to h, with one span to send.
func exporting(t *testing.T, h http.HandlerFunc, log io.Writer) *Exports {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret-word")
	e := environment("OTEL_EXPORTER_OTLP_ENDPOINT="+s.URL, "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20s3cret-word")
	x, err := e.Telemetry("s", true).Export(t.Context(), NewLogger(log, "json", 0))
	if err != nil || e.Err() != nil {
		t.Fatal(err, e.Err())
	}
	_, span := x.Tracers().Tracer("").Start(t.Context(), "x")
	span.End()
	return x
}

// A collector may quote in its answer what it was sent.
func TestAFailedExportIsAWarningWithoutTheHeaders(t *testing.T) {
	var log bytes.Buffer
	sent := make(chan string, 2)
	exporting(t, func(w http.ResponseWriter, r *http.Request) {
		sent <- r.Header.Get("Authorization")
		http.Error(w, "no access with "+r.Header.Get("Authorization"), http.StatusForbidden)
	}, &log).Stop(t.Context())
	if got := <-sent; got != "Bearer s3cret-word" {
		t.Errorf("sent %q", got)
	}
	if said := log.String(); strings.Contains(said, "s3cret") || strings.Count(said, `"severity":"WARNING"`) != 2 || strings.Count(said, "403 Forbidden") != 2 {
		t.Errorf("log: %s", said)
	}
}

// slow is an exporter that takes a second to notice that its context has ended.
type slow struct {
	sdktrace.SpanExporter
	exports, ended int
}

func (s *slow) ExportSpans(ctx context.Context, _ []sdktrace.ReadOnlySpan) error {
	s.exports++
	<-ctx.Done()
	time.Sleep(time.Second)
	s.ended++
	return ctx.Err()
}

func (s *slow) Shutdown(context.Context) error { return nil }

func TestAStopEndsWithItsContextAndWaitsForTheExportsThatItCutsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		to := &slow{}
		during, end := context.WithCancel(t.Context())
		x := &Exports{end: end, traces: sdktrace.NewTracerProvider(sdktrace.WithBatcher(
			spanSink{to, &sink{until: during, log: NewLogger(&log, "json", 0), signal: "traces"}}, sdktrace.WithMaxExportBatchSize(1)))}
		for range 10 {
			_, span := x.Tracers().Tracer("").Start(t.Context(), "x")
			span.End()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		x.Stop(ctx)
		if took := time.Since(began); took != 3*time.Second || to.exports != 1 || to.ended != 1 {
			t.Errorf("%d exports, %d ended, after %v; want one, after 3s", to.exports, to.ended, took)
		}
		if !strings.Contains(log.String(), errNoTime.Error()) {
			t.Errorf("log: %s", &log)
		}
		x.Stop(t.Context()) // does nothing
	})
}

func TestACollectorThatIsGoneIsTheWarningOfFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &sink{until: t.Context(), log: NewLogger(&log, "json", 0), signal: "traces"}
		gone := func(context.Context) error { return errors.New("gone") }
		for range 60 {
			s.export(t.Context(), gone)
			time.Sleep(10 * time.Second)
		}
		if said := log.String(); strings.Count(said, "\n") != 2 || !strings.Contains(said, `"failures":1,`) || !strings.Contains(said, `"failures":30,`) {
			t.Errorf("log: %s", said)
		}
		log.Reset()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		time.Sleep(quiet)
		s.export(ended, func(ctx context.Context) error { return ctx.Err() }) // the SDK's own stop
		if log.Len() > 0 {
			t.Errorf("log: %s", &log)
		}
	})
}

func TestTheFlushHasTwoSecondsButNoneBeyondTheStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for drained, want := range map[time.Duration]time.Duration{0: 2 * time.Second, 7 * time.Second: 1500 * time.Millisecond, 8 * time.Second: 500 * time.Millisecond} {
			m := DefaultLimits()
			latest := time.Now().Add(m.Drain + m.Answers)
			time.Sleep(drained)
			var got time.Duration
			s := Service{Limits: m, Flush: func(ctx context.Context) {
				until, _ := ctx.Deadline()
				got = time.Until(until)
			}}
			s.flush(t.Context(), latest)
			if got != want {
				t.Errorf("after a drain of %v: %v, want %v", drained, got, want)
			}
		}
	})
}
