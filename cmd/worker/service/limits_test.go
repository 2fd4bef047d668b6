package service

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// A worker must be done within 9 s of SIGTERM, and a program that ignores it
// takes 5 s and its lock's release up to 2 s of them.
func TestTheDefaultLimitsAreTheContracts(t *testing.T) {
	m := defaultLimits()
	if m.drain != 8*time.Second || m.drain+m.answers > 9*time.Second {
		t.Errorf("limits = %+v", m)
	}
	s := m.server(nil, slog.New(slog.DiscardHandler))
	if s.ReadHeaderTimeout == 0 || s.ReadTimeout == 0 || s.IdleTimeout == 0 || s.MaxHeaderBytes == 0 || s.WriteTimeout != 0 {
		t.Errorf("server = %+v", s)
	}
}

func TestSlowClientsAreCutOff(t *testing.T) {
	const soon = 50 * time.Millisecond
	cases := map[string]struct {
		limit func(*limits)
		send  string
		want  string // how the server's last words begin
	}{
		"half a header": {
			func(m *limits) { m.header = soon },
			"POST /internal/tasks/analysis HTTP/1.1\r\nHost: x\r\n", "",
		},
		"half a body": {
			func(m *limits) { m.request = soon },
			"POST /internal/tasks/analysis HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{", "HTTP/1.1 400 ",
		},
		"nothing after a request": {
			func(m *limits) { m.idle = soon },
			"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 ",
		},
		"a header too long": {
			func(m *limits) { m.headerBytes = 1000 },
			"GET /health/live HTTP/1.1\r\nHost: x\r\nPad: " + strings.Repeat("x", 6000) + "\r\n\r\n", "HTTP/1.1 431 ",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil, func(c *Config) {
				c.limits.header, c.limits.request, c.limits.idle = time.Hour, time.Hour, time.Hour
				tc.limit(&c.limits)
			})
			got, err := io.ReadAll(s.send(t, tc.send))
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("the connection is left open")
			}
			if !strings.HasPrefix(string(got), tc.want) {
				t.Errorf("the server said %q", got)
			}
		})
	}
}

// The limits are the clients'; a run may take longer, and is answered.
func TestARunLongerThanTheLimitsIsAnswered(t *testing.T) {
	const limit = 100 * time.Millisecond
	s := serve(t, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
		time.Sleep(5 * limit)
		return "done", nil
	}, func(c *Config) { c.limits.header, c.limits.request, c.limits.idle = limit, limit, limit })
	if got := <-s.delivered(); !strings.HasPrefix(got, "200") {
		t.Errorf("answer: %s", got)
	}
}
