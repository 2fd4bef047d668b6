package service

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/cloudrun"
	"taskguard/orchestrator"
)

func TestSlowClientsAreCutOff(t *testing.T) {
	const soon = 50 * time.Millisecond
	cases := map[string]struct {
		limit func(*cloudrun.Limits)
		send  string
		want  string // how the server's last words begin
	}{
		"half a header": {
			func(m *cloudrun.Limits) { m.Header = soon },
			"POST /internal/tasks/analysis HTTP/1.1\r\nHost: x\r\n", "",
		},
		"half a body": {
			func(m *cloudrun.Limits) { m.Request = soon },
			"POST /internal/tasks/analysis HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{", "HTTP/1.1 400 ",
		},
		"nothing after a request": {
			func(m *cloudrun.Limits) { m.Idle = soon },
			"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 ",
		},
		"a header too long": {
			func(m *cloudrun.Limits) { m.HeaderBytes = 1000 },
			"GET /health/live HTTP/1.1\r\nHost: x\r\nPad: " + strings.Repeat("x", 6000) + "\r\n\r\n", "HTTP/1.1 431 ",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil, func(c *Config) {
				c.limits.Header, c.limits.Request, c.limits.Idle = time.Hour, time.Hour, time.Hour
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
	const limit = 500 * time.Millisecond
	s := serve(t, func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
		time.Sleep(2 * limit)
		return "done", nil
	}, func(c *Config) { c.limits.Header, c.limits.Request, c.limits.Idle = limit, limit, limit })
	if got := <-s.delivered(); !strings.HasPrefix(got, "200") {
		t.Errorf("answer: %s", got)
	}
}
