package doclock

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
)

// sweep is POST /internal/sweep, for Cloud Scheduler (D4). Its body says nothing.
func (s *Server) sweep(c echo.Context) error {
	began, r := time.Now(), c.Request()
	err := s.admit(r)
	swept := 0
	if err == nil {
		defer s.Pass()()
		swept, err = s.sweepOnce(r.Context())
	}
	status := http.StatusOK
	if err != nil {
		status, _, _ = refusal(err)
	}
	s.record(r.Context(), "sweep", "", err, status, began)
	if err != nil {
		return s.refuse(c, err)
	}
	return c.JSON(status, map[string]int{"swept": swept})
}

// admit says whether r may call an internal route.
func (s *Server) admit(r *http.Request) error {
	if s.sites.Check(r) != nil {
		return errCrossSite
	}
	if s.o.Tasks == nil {
		return nil
	}
	return s.o.Tasks.Check(r)
}

// sweepOnce logs what was swept: also where some failed, the others are gone.
func (s *Server) sweepOnce(ctx context.Context) (swept int, err error) {
	if s.o.Finder == nil {
		return 0, nil
	}
	swept, err = s.locks.Sweep(ctx, s.o.Finder)
	if swept > 0 {
		s.log.LogAttrs(ctx, slog.LevelInfo, "expired locks swept", slog.Int("swept", swept))
	}
	if err != nil {
		err = sweepError{err}
	}
	return swept, err
}

// sweepError says that some rooms were not swept. What became of each is for the
// log: the answer is one.
type sweepError struct{ rooms error }

func (e sweepError) Error() string { return e.rooms.Error() }

// Is makes it errNoSweep, and nothing that a room's error is.
func (sweepError) Is(target error) bool { return target == errNoSweep }

// SweepEvery sweeps each time that every has passed, until ctx ends (D4). It is
// for where no Cloud Scheduler calls, and harmless where several instances do.
func (s *Server) SweepEvery(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if _, err := s.sweepOnce(ctx); err != nil && ctx.Err() == nil {
			s.log.LogAttrs(ctx, slog.LevelWarn, "not all expired locks swept", slog.String("error", withoutInput(err)))
		}
	}
}
