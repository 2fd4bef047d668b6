package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/internal/clock"
)

// sweep handles POST /internal/sweep, for Cloud Scheduler (SEEDS D4). The body is ignored.
func (s *Server) sweep(c echo.Context) error {
	r := c.Request()
	if err := s.checkSite(r); err != nil {
		return err
	}
	if s.o.Tasks != nil {
		if err := s.o.Tasks.Check(r); err != nil {
			return err
		}
	}

	swept, err := s.sweepOnce(r.Context())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]int{"swept": swept})
}

// sweepOnce sweeps and logs the number, also if some rooms failed. The error is
// errNoSweep with the reason only in its text: the answer does not depend on it.
func (s *Server) sweepOnce(ctx context.Context) (swept int, err error) {
	swept, err = s.locks.Sweep(ctx, s.o.Finder)
	if swept > 0 {
		s.log.LogAttrs(ctx, slog.LevelInfo, "expired locks swept", slog.Int("swept", swept))
	}
	if err != nil {
		err = fmt.Errorf("%w: %v", errNoSweep, err) //nolint:errorlint // see above
	}
	return swept, err
}

// SweepEvery sweeps at this interval until ctx ends. It replaces a job of Cloud
// Scheduler. Several instances may sweep at the same time.
func (s *Server) SweepEvery(ctx context.Context, every time.Duration) {
	for clock.Sleep(ctx, every) {
		if _, err := s.sweepOnce(ctx); err != nil && ctx.Err() == nil {
			s.log.LogAttrs(ctx, slog.LevelWarn, "not all expired locks swept", slog.String("error", withoutInput(err)))
		}
	}
}
