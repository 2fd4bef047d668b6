package console

import (
	"context"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// The page of run times shows so many hours, and reads so many analyses of each: at most 2,400 and the counts.
const hoursShown, hourSample = 24, 100

// runTimesEvery is how long a reading of the run times is kept, in readings of a list.
const runTimesEvery = 38 // about five minutes

// hour is how long the runs took that ended in an hour.
type hour struct {
	From    time.Time
	Ready   int64 // analyses that became READY in it
	Sampled int   // the runs in P50, P95 and Longest
	spread
}

// spread are percentiles of some times. Each is one of them.
type spread struct{ P50, P95, Longest time.Duration }

// spreadOf returns the percentiles of times by the nearest rank: the least time that so many percent do not exceed.
func spreadOf(times []time.Duration) (s spread) {
	if len(times) == 0 {
		return s
	}
	times = slices.Sorted(slices.Values(times))
	rank := func(percent float64) time.Duration {
		return times[int(math.Ceil(percent*float64(len(times))/100))-1]
	}
	return spread{rank(50), rank(95), rank(100)}
}

// runTimes are the hours with a run, the newest first.
type runTimes struct {
	hours  []hour
	reads  int64
	readAt time.Time
}

// Reads returns about how many reads Firestore has billed for t.
func (t runTimes) Reads() int64 { return t.reads }

// runTimes reads how long runs took. It reads the newest analyses of each hour that are READY, and counts an hour that
// has more.
func (s *Server) runTimes(ctx context.Context) (t runTimes, err error) {
	if t.readAt, err = s.source.Now(ctx); err != nil {
		return t, err
	}
	first := t.readAt.UTC().Truncate(time.Hour).Add(-(hoursShown - 1) * time.Hour)
	hours, read := make([]hour, hoursShown), make([]int64, hoursShown)
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(4)
	for i := range hours {
		hours[i].From = first.Add(time.Duration(i) * time.Hour)
		reads.Go(func() (err error) {
			read[i], err = s.fillHour(ctx, &hours[i])
			return err
		})
	}
	err = reads.Wait()

	t.reads = 1
	for i := range slices.Backward(hours) {
		if t.reads += read[i]; hours[i].Ready > 0 {
			t.hours = append(t.hours, hours[i])
		}
	}
	return t, err
}

// fillHour reads an hour, and returns about how many reads that costs.
func (s *Server) fillHour(ctx context.Context, h *hour) (reads int64, err error) {
	f := repo.Filter{Status: analysislock.Ready, Since: h.From, Before: h.From.Add(time.Hour)}
	found, next, _, err := s.source.Page(ctx, f, "", hourSample)
	reads = max(1, int64(len(found)))
	if err != nil {
		return reads, err
	}

	var times []time.Duration
	for i := range found {
		if took := lastRun(&found[i]); took > 0 {
			times = append(times, took)
		}
	}
	h.Ready, h.Sampled, h.spread = int64(len(found)), len(times), spreadOf(times)
	if next == "" {
		return reads, nil
	}
	h.Ready, err = s.source.Count(ctx, f)
	return reads + 1 + h.Ready/1000, err
}

// lastRun returns how long the attempt took that made a READY; 0: unknown.
func lastRun(a *analysislock.Analysis) time.Duration {
	for i := range slices.Backward(a.History) {
		if h := &a.History[i]; h.Outcome == analysislock.OutcomeReady && !h.StartedAt.IsZero() && !h.EndedAt.IsZero() {
			return max(h.EndedAt.Sub(h.StartedAt), time.Millisecond)
		}
	}
	return 0
}

// runTimesPage is the page of run times by hour.
type runTimesPage struct {
	frame
	Hours   []hour
	Longest time.Duration // of all hours: the width of the bars
	Partial bool          // some hour has more analyses than were read
	Sample  int
	Shown   int
}

// Share returns d in thousandths of Longest.
func (p runTimesPage) Share(d time.Duration) int64 { return int64(1000 * d / max(p.Longest, 1)) }

// runs handles GET /run-times.
func (s *Server) runs(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), maxWait)
	defer cancel()
	r := s.shared(ctx, "run times", runTimesEvery*s.o.Every, func(ctx context.Context) (any, error) {
		return s.runTimes(ctx)
	})
	if r.busy != nil && !r.fresh() {
		c.Response().Header().Set("Refresh", strconv.Itoa(1))
	}

	t, _ := r.value.(runTimes)
	p := runTimesPage{frame: s.frame(c, "Run times"), Hours: t.hours, Sample: hourSample, Shown: hoursShown}
	p.Live, _ = r.age(t.readAt)
	for i := range t.hours {
		h := &t.hours[i]
		p.Longest, p.Partial = max(p.Longest, h.Longest), p.Partial || int64(h.Sampled) < h.Ready
	}
	return s.render(c, http.StatusOK, "runtimes", p)
}
