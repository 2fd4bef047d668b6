package service

import (
	"bytes"
	"cmp"
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

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"taskguard/internal/env"
	"taskguard/internal/telemetry"
)

// environment returns the environment of settings such as PORT=1.
func environment(words ...string) *env.Environment {
	set := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		set[k] = v
	}
	return env.NewEnvironment(func(k string) (string, bool) { v, ok := set[k]; return v, ok })
}

func TestTelemetryIsSentToTheEndpointOfTheVariables(t *testing.T) {
	const base = "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318"
	for name, tc := range map[string]struct {
		env             []string
		traces, metrics string
	}{
		"nothing set":           {},
		"a base":                {[]string{base}, "http://c:4318/v1/traces", "http://c:4318/v1/metrics"},
		"a base with a path":    {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c/otlp/"}, "https://c/otlp/v1/traces", "https://c/otlp/v1/metrics"},
		"one of a signal's own": {[]string{base, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://t/in"}, "https://t/in", "http://c:4318/v1/metrics"},
		"only traces":           {[]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://t/in"}, "https://t/in", ""},
		"switched off":          {[]string{base, "OTEL_SDK_DISABLED=TRUE"}, "", ""},
		"no traces":             {[]string{base, "OTEL_TRACES_EXPORTER=none"}, "", "http://c:4318/v1/metrics"},
		"nor metrics":           {[]string{base, "OTEL_TRACES_EXPORTER=none", "OTEL_METRICS_EXPORTER=none"}, "", ""},
	} {
		e := environment(tc.env...)
		if got := ReadTelemetry(e, "s", true); e.Err() != nil || got.Traces != tc.traces || got.Metrics != tc.metrics {
			t.Errorf("%s: %q, %q, %v; want %q, %q", name, got.Traces, got.Metrics, e.Err(), tc.traces, tc.metrics)
		} else if logged := got.Attr().Value.String(); logged != cmp.Or(tc.traces, tc.metrics) {
			t.Errorf("%s: %s is logged", name, logged)
		}
		if got := ReadTelemetry(environment(tc.env...), "s", false); got.Traces != tc.traces || got.Metrics != "" {
			t.Errorf("%s: %+v of a service without metrics", name, got)
		}
	}
}

func TestAWrongTelemetryVariableIsNamedAndNotQuoted(t *testing.T) {
	const secret = "s3cret"
	for _, env := range []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=c:4318", "OTEL_EXPORTER_OTLP_ENDPOINT=http://", "OTEL_EXPORTER_OTLP_ENDPOINT=http://" + secret + ":x y@c",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://u:" + secret + "@c", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c/?key=" + secret,
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=c", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json",
		"OTEL_TRACES_EXPORTER=console", "OTEL_METRICS_EXPORTER=prometheus",
		"OTEL_EXPORTER_OTLP_HEADERS=" + secret, "OTEL_EXPORTER_OTLP_TRACES_HEADERS=key=%" + secret, "OTEL_BSP_MAX_QUEUE_SIZE=-1", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=0",
	} {
		e := environment(env)
		ReadTelemetry(e, "s", true)
		name, _, _ := strings.Cut(env, "=")
		if err := e.Err(); err == nil || !strings.HasPrefix(err.Error(), name+": ") || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, want one line naming it", env, err)
		}
	}
}

func TestWithoutACollectorNothingIsSent(t *testing.T) {
	x, err := Telemetry{Service: "s"}.Export(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil || x.Tracers != nil || x.Meters != nil {
		t.Fatalf("%+v, %v", x, err)
	}
	x.Stop(t.Context())
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "s3cret")
	if _, err := (Telemetry{Traces: "http://c"}).Export(t.Context(), slog.New(slog.DiscardHandler)); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("malformed attributes: %v", err)
	}
}

// exporting returns an Exports to h, with one span to send.
func exporting(t *testing.T, h http.HandlerFunc, log io.Writer) *Exports {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret-word")
	e := environment("OTEL_EXPORTER_OTLP_ENDPOINT="+s.URL, "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20s3cret-word")
	x, err := ReadTelemetry(e, "s", true).Export(t.Context(), telemetry.NewLogger(log, "json", 0))
	if err != nil || e.Err() != nil {
		t.Fatal(err, e.Err())
	}
	_, span := x.Tracers.Tracer("").Start(t.Context(), "x")
	span.End()
	return x
}

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
	if text := log.String(); strings.Contains(text, "s3cret") || strings.Count(text, `"severity":"WARNING"`) != 2 || strings.Count(text, "403 Forbidden") != 2 {
		t.Errorf("log: %s", text)
	}
}

func TestAStopEndsWithItsContextAndItsExports(t *testing.T) {
	release := make(chan struct{})
	var log bytes.Buffer
	x := exporting(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	}, &log)
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	x.Stop(ctx)
	if took := time.Since(began); took > time.Second || strings.Count(log.String(), `"message":"telemetry not exported"`) != 2 {
		t.Errorf("took %v: %s", took, &log)
	}
}

func TestAMissingCollectorIsAWarningEveryFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &sink{until: t.Context(), log: telemetry.NewLogger(&log, "json", 0), signal: "traces"}
		for range 60 {
			var own context.Context
			if s.export(t.Context(), func(ctx context.Context) error { own = ctx; return errors.New("gone") }); own.Err() == nil {
				t.Fatal("the context of an export outlives it")
			}
			time.Sleep(10 * time.Second)
		}
		if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, `"failures":1,`) || !strings.Contains(text, `"failures":30,`) {
			t.Errorf("log: %s", text)
		}
	})
}

type cumulative struct{ sdkmetric.Exporter }

func (cumulative) Temporality(sdkmetric.InstrumentKind) metricdata.Temporality {
	return metricdata.CumulativeTemporality
}

func TestOnlyAGaugeIsSentOnceAfterItWasSet(t *testing.T) {
	for kind, want := range map[sdkmetric.InstrumentKind]metricdata.Temporality{
		sdkmetric.InstrumentKindGauge: metricdata.DeltaTemporality, sdkmetric.InstrumentKindCounter: metricdata.CumulativeTemporality,
	} {
		if got := (metricSink{Exporter: cumulative{}}).Temporality(kind); got != want {
			t.Errorf("%v: %v, want %v", kind, got, want)
		}
	}
}
