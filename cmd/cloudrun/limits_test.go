package cloudrun

import (
	"log/slog"
	"testing"
	"time"
)

// A worker must be done within 9 s of SIGTERM, and a program that ignores it
// takes 5 s and its lock's release up to 2 s of them.
func TestTheDefaultLimitsAreTheContracts(t *testing.T) {
	m := DefaultLimits()
	if m.Drain != 8*time.Second || m.Drain+m.Answers > 9*time.Second {
		t.Errorf("limits = %+v", m)
	}
	s := m.Server(nil, slog.New(slog.DiscardHandler))
	if s.ReadHeaderTimeout == 0 || s.ReadTimeout == 0 || s.IdleTimeout == 0 || s.MaxHeaderBytes == 0 || s.WriteTimeout != 0 {
		t.Errorf("server = %+v", s)
	}
}
