package service

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"taskguard/internal/telemetry"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

type failing struct{ closed bool }

func (*failing) Write([]byte) (int, error) { return 0, errors.New("full") }
func (*failing) Read([]byte) (int, error)  { return 0, io.EOF }
func (f *failing) Close() error            { f.closed = true; return nil }

func TestAFailureIsReturnedOrLogged(t *testing.T) {
	body := &failing{}
	if err := telemetry.NewLogger(body, "json", 0).Handler().Handle(t.Context(), slog.Record{}); err == nil {
		t.Error("a line that is not written is no error")
	}
	a := account(func() (http.RoundTripper, error) { return nil, errors.New("none") })
	for _, b := range []io.ReadCloser{nil, body} {
		if _, err := a.RoundTrip(&http.Request{Body: b}); err == nil || (b != nil) != body.closed { //nolint:bodyclose // there is no response
			t.Errorf("%v, closed %v", err, body.closed)
		}
	}
	var log bytes.Buffer
	until, end := context.WithCancel(t.Context())
	end()
	s := &sink{until: until, log: telemetry.NewLogger(&log, "json", 0), signal: "traces"}
	var exporting context.Context
	s.export(t.Context(), func(ctx context.Context) error { exporting = ctx; return errors.New("gone") })
	if !strings.Contains(log.String(), errNoTime.Error()) || exporting.Err() == nil {
		t.Errorf("log: %s", &log)
	}
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
