package service

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// A collector that has refused one export shortly before the stop gets that one
// and all that waits behind it.
func TestARefusedExportBeforeTheStopLosesNoSpan(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
	c := newCollector(t)
	to, err := url.Parse(c.url)
	if err != nil {
		t.Fatal(err)
	}
	var refusals atomic.Int32
	refused := make(chan struct{})
	onward := httputil.NewSingleHostReverseProxy(to)
	between := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/traces" && refusals.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			close(refused)
			return
		}
		onward.ServeHTTP(w, r)
	}))
	t.Cleanup(between.Close)
	s := observe(t, allSorts(t, map[string]trace.SpanContext{}), "OTEL_EXPORTER_OTLP_ENDPOINT="+between.URL)
	s.Put(t, "x", map[string]any{"status": "QUEUED"})
	s.deliver(t, "x", 200)
	select {
	case <-refused:
	case <-time.After(hang):
		t.Fatal("nothing is exported")
	}
	for range 20 {
		s.deliver(t, "x", 200)
	}
	s.stop()
	if err := s.wait(t); err != nil {
		t.Fatal(err)
	}
	if got := len(c.named("delivery")); got != 21 {
		t.Errorf("%d of 21 spans arrived; warnings %v", got, s.lines(t, "telemetry not exported"))
	}
}
