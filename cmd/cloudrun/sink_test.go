package cloudrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// No warning comes after it.
func TestAStopTellsOfEachFailureThatNoWarningHas(t *testing.T) {
	var log bytes.Buffer
	x := exporting(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, &log)
	for signal, flush := range map[string]func(context.Context) error{"traces": x.traces.ForceFlush, "metrics": x.metrics.ForceFlush} {
		if err := flush(t.Context()); err != nil || strings.Count(log.String(), `"signal":"`+signal+`"`) != 1 {
			t.Fatalf("%v, log: %s", err, &log)
		}
	}
	log.Reset()
	_, span := x.Tracers().Tracer("").Start(t.Context(), "x")
	span.End()
	x.Stop(t.Context())
	if said := log.String(); strings.Count(said, `"signal":"traces","failures":1,"error":"traces export: `) != 1 || strings.Count(said, `"signal":"metrics","failures":1,"error":"`) != 1 || strings.Count(said, "\n") != 2 {
		t.Errorf("log: %s", said)
	}
}

// The SDK repeats what a collector has answered, and nothing that has not reached
// one: one that is just being replaced would cost what is left at the stop.
func TestAStopSendsToACollectorThatComesBackInItsTime(t *testing.T) {
	address := refusing(t)
	var log bytes.Buffer
	x, err := environment("OTEL_EXPORTER_OTLP_ENDPOINT=http://"+address).Telemetry("s", true).Export(t.Context(), NewLogger(&log, "json", 0))
	if err != nil {
		t.Fatal(err)
	}
	_, span := x.Tracers().Tracer("").Start(t.Context(), "x")
	span.End()
	counter, err := x.Meters().Meter("").Int64Counter("c")
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(t.Context(), 1)
	came := make(chan string, 2)
	s := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { came <- r.URL.Path })}
	defer func() { _ = s.Close() }()
	time.AfterFunc(200*time.Millisecond, func() {
		if l, err := net.Listen("tcp", address); err != nil {
			t.Error(err)
		} else {
			_ = s.Serve(l)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // 2 s where a processor is to be had
	defer cancel()
	x.Stop(ctx)
	if len(came) != 2 || log.Len() > 0 {
		t.Errorf("%d requests came, want the spans and the counts; log: %s", len(came), &log)
	}
}

// What waits for its next try at the stop is sent in the stop's time all the same.
func TestAStopIsNotHeldUpByATryThatWaits(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
	address := refusing(t)
	var log bytes.Buffer
	x, err := environment("OTEL_EXPORTER_OTLP_ENDPOINT=http://"+address).Telemetry("s", false).Export(t.Context(), NewLogger(&log, "json", 0))
	if err != nil {
		t.Fatal(err)
	}
	_, span := x.Tracers().Tracer("").Start(t.Context(), "first")
	span.End()
	time.Sleep(2300 * time.Millisecond) // several tries: by now the longest wait
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	came := make(chan string, 2)
	s := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { came <- r.URL.Path })}
	defer func() { _ = s.Close() }()
	go func() { _ = s.Serve(l) }()
	_, span = x.Tracers().Tracer("").Start(t.Context(), "second")
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	x.Stop(ctx)
	if len(came) != 2 || log.Len() > 0 {
		t.Errorf("%d requests came, want both; log: %s", len(came), &log)
	}
}

// refusing is an address at which nobody listens.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func TestOnlyAConnectionThatIsRefusedIsTriedAgainAndFor20SecondsAtMost(t *testing.T) {
	dial := fmt.Errorf("traces export: %w", &net.OpError{Op: "dial", Err: errors.New("connection refused")})
	for _, tc := range []struct {
		err   error
		until time.Duration // the sink's end
		tries int
		took  time.Duration
		said  string
	}{
		{dial, time.Hour, 22, 19900 * time.Millisecond, `"error":"traces export: dial: connection refused"`},
		{dial, 2 * time.Second, 4, 2 * time.Second, `"error":"traces export: dial: connection refused"`},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, time.Hour, 1, 0, "reset"},
		{errors.New("403 Forbidden"), time.Hour, 1, 0, "403"},
		{nil, time.Hour, 1, 0, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			until, end := context.WithTimeout(t.Context(), tc.until)
			defer end()
			s, tries, began := &sink{until: until, log: slog.New(slog.NewJSONHandler(&log, nil)), signal: "traces"}, 0, time.Now()
			s.export(t.Context(), func(context.Context) error {
				tries++
				return tc.err
			})
			if took := time.Since(began); tries != tc.tries || took != tc.took || !strings.Contains(log.String(), tc.said) || tc.said == "" && log.Len() > 0 {
				t.Errorf("%v: %d tries in %v, want %d in %v; log: %s", tc.err, tries, took, tc.tries, tc.took, &log)
			}
		})
	}
}
