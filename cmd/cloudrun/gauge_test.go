package cloudrun

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// What an instance found an hour ago must not stand beside what another has found
// since; what it has counted must.
func TestAGaugeIsSentOnceAndACounterAgain(t *testing.T) {
	to, err := otlpmetrichttp.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	reader := sdkmetric.NewManualReader(sdkmetric.WithTemporalitySelector(metricSink{Exporter: to}.Temporality))
	meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("x")
	gauge, err := meter.Int64Gauge("gauge")
	if err != nil {
		t.Fatal(err)
	}
	counter, err := meter.Int64Counter("counter")
	if err != nil {
		t.Fatal(err)
	}
	gauge.Record(t.Context(), 5)
	counter.Add(t.Context(), 5)
	for _, want := range [][]string{{"gauge", "counter"}, {"counter"}} {
		got := collected(t.Context(), t, reader)
		if len(got) != len(want) || got[len(got)-1] != "counter" {
			t.Errorf("collected %v, want %v", got, want)
		}
	}
}

func collected(ctx context.Context, t *testing.T, r sdkmetric.Reader) (names []string) {
	t.Helper()
	var m metricdata.ResourceMetrics
	if err := r.Collect(ctx, &m); err != nil {
		t.Fatal(err)
	}
	for _, scope := range m.ScopeMetrics {
		for _, one := range scope.Metrics {
			names = append(names, one.Name)
		}
	}
	return names
}
