package service

import (
	"context"
	"log/slog"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestLimits(t *testing.T) {
	m := DefaultLimits()
	if want := (Limits{10e9, 30e9, 120e9, 65536, 8e9, 5e8, 2e9}); m != want {
		t.Errorf("limits = %+v, want %+v", m, want)
	}
	s := m.Server(nil, slog.New(slog.DiscardHandler))
	got := []time.Duration{s.ReadHeaderTimeout, s.ReadTimeout, s.IdleTimeout, s.WriteTimeout}
	if want := []time.Duration{m.Header, m.Request, m.Idle, 0}; !slices.Equal(got, want) {
		t.Errorf("timeouts of %v, want %v: an answer may take long", got, want)
	}
	if s.MaxHeaderBytes != m.HeaderBytes {
		t.Errorf("headers of %d bytes, want %d", s.MaxHeaderBytes, m.HeaderBytes)
	}
}

// A run that does not end takes all of the drain, and a collector that never answers
// all of the flush.
func TestService_SlowestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, wait := slog.New(slog.DiscardHandler), func(ctx context.Context) { <-ctx.Done() }
		m := DefaultLimits()
		began := time.Now()
		Service{Limits: m, Flush: wait, Log: log, Drain: wait}.shut(t.Context(), m.Server(nil, log))
		if took := time.Since(began); took < m.Drain || took >= 9*time.Second {
			t.Errorf("took %v, want all of the drain, and less than 9s", took)
		}
	})
}

func TestCollectLess(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	for _, tc := range []struct {
		limit int64
		set   string // GOGC, of which the runtime has read the default 100
		want  uint64
	}{{math.MaxInt64, "", 100}, {1 << 30, "", 400}, {1 << 30, "100", 100}, {1 << 30, "off", 100}} {
		debug.SetMemoryLimit(tc.limit)
		debug.SetGCPercent(100)
		t.Setenv("GOGC", tc.set)
		collectLess()
		percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		if metrics.Read(percent); percent[0].Value.Uint64() != tc.want {
			t.Errorf("limit %d, GOGC %q: %d, want %d", tc.limit, tc.set, percent[0].Value.Uint64(), tc.want)
		}
	}
}
