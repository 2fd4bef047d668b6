package worker

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"taskguard/internal/delivery"
	"taskguard/internal/telemetry"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// gauges holds the metrics of a worker.
type gauges struct {
	*telemetry.Telemetry
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
}

func measured(t testing.TB) gauges {
	t.Helper()
	g := gauges{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	var err error
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(g.reader))
	g.Telemetry, err = telemetry.New(meters, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(g.spans)))
	must.OK(t, err)
	return g
}

func (g gauges) counts(t *testing.T, metric string) string { return Counts(t, g.reader, metric) }

// checkCounts compares the values of a metric with want.
func (g gauges) checkCounts(t *testing.T, metric, want string) {
	t.Helper()
	if got := g.counts(t, metric); got != want {
		t.Errorf("%s: %q, want %q", metric, got, want)
	}
}

// Counts returns the values of a metric, such as "booked :1 failed :2". Of a histogram it returns
// the sums, in tenths.
func Counts(t *testing.T, reader *sdkmetric.ManualReader, metric string) string {
	t.Helper()
	var all metricdata.ResourceMetrics
	must.OK(t, reader.Collect(context.Background(), &all))
	counts := map[string]float64{}
	add := func(attributes attribute.Set, n float64) {
		by := ""
		for _, a := range attributes.ToSlice() {
			by += a.Value.String() + " "
		}
		counts[by] += n
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != metric {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, float64(p.Value))
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, math.Round(p.Sum*10)/10)
				}
			}
		}
	}
	return strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(counts), "map["), "]")
}

// It is a line, a count and ended spans, all without its value.
func TestPanic(t *testing.T) {
	var log bytes.Buffer
	m := measured(t)
	load := func(context.Context, lease.Cell[analysislock.Analysis]) (analysislock.Work, error) {
		panic("s3cret input of the user")
	}
	s := serverOf(t.Context(), &delivery.Runner{
		Locks: new(memory).locks(t, load), RunTimeout: time.Minute,
		Log: slog.New(slog.NewJSONHandler(&log, nil)), Telemetry: m.Telemetry,
	}, CheckedByProxy(), succeed)
	(&process{Guard: s}).deliver(t, "x").check(t, 500, map[string]any{"reason": "internal"})

	if n := s.lifecycle.Drain(t.Context()); n != 0 {
		t.Errorf("%d runs are still counted", n)
	}
	said := log.String()
	for _, part := range []string{`"outcome":"internal"`, `"analysis_id":"x"`, "TestPanic" /* of the stack */} {
		if !strings.Contains(said, part) {
			t.Errorf("want %s in %s", part, said)
		}
	}
	if strings.Contains(said, "s3cret") || len(said) > 6000 {
		t.Errorf("log: %s", said)
	}
	m.checkCounts(t, "taskguard.deliveries", "500 internal :1")
	m.checkCounts(t, "taskguard.runs.active", ":0")
	ended := map[string]string{}
	for _, span := range m.spans.Ended() {
		ended[span.Name()] = span.Status().Code.String()
		if len(span.Events()) > 0 {
			t.Errorf("%s has %v", span.Name(), span.Events())
		}
	}
	if ended["delivery"] != "Error" || ended["run"] != "Error" {
		t.Errorf("ended %v", ended)
	}
	if started := len(m.spans.Started()); started != len(ended) {
		t.Errorf("ended %v of %d", ended, started)
	}
}

// No acquisition has checked the id.
func TestDelivery_StoppedID(t *testing.T) {
	for id, want := range map[string]any{"order-17": "order-17", "a/": nil, strings.Repeat("a/", 400_000): nil} {
		w := start(t, emulatortest.Embedded(t), succeed)
		stopped, stop := context.WithCancel(t.Context())
		stop()
		w.stop(delivery.ErrStopping)
		o := w.runner.Deliver(stopped, delivery.Delivery{AnalysisID: id, Analyzer: w.analyze})
		if named, _ := want.(string); o.Reason != delivery.NotClaimed || o.ID != named {
			t.Errorf("to the guard: %v, %.20q; want the id %v", o.Reason, o.ID, want)
		}
		w.deliver(t, id).check(t, 500, map[string]any{"reason": "shutting_down", "analysis_id": want})
		w.line(t, deliveryRoute, id, map[string]any{"outcome": "shutting_down", "analysis_id": want})
		if w.log.Len() > 1000 {
			t.Errorf("a line of %d bytes: %.300s", w.log.Len(), w.log)
		}
	}
}
