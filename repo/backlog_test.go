package repo

import (
	"fmt"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
)

// intervalOf returns the interval of b that begins at from.
func intervalOf(b *Backlog, from time.Time) (found Interval) {
	for _, i := range b.Intervals {
		if i.From.Equal(from) {
			found = i
		}
	}
	return found
}

// Each time is stored in each of its forms: at the beginning of an interval, just before its end,
// and twice at its end, which is in the next one.
func TestABacklogCountsWhatEndedAndBeganInEachInterval(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		from := time.Now().UTC().Truncate(Step).Add(-4 * Step)
		for i, at := range []time.Time{from, from.Add(Step - time.Millisecond), from.Add(Step), from.Add(Step)} {
			for form, stored := range storedForms(at) {
				b.Put(t, fmt.Sprint("ready ", i, form), map[string]any{"status": analysislock.Ready, "updatedAt": stored, "startedAt": stored})
				b.Put(t, fmt.Sprint("failed ", i, form), map[string]any{"status": analysislock.Failed, "updatedAt": stored})
				b.Put(t, fmt.Sprint("queued ", i, form), map[string]any{"status": analysislock.Queued, "updatedAt": stored, "createdAt": stored})
			}
		}
		got, err := a.Backlog(t.Context(), 0)
		fatal(t, err)
		for i, n := range []int64{0, 6, 6, 0} {
			at := from.Add(time.Duration(i-1) * Step)
			if want := (Interval{From: at, Started: n, Finished: n, Failed: n}); intervalOf(&got, at) != want {
				t.Errorf("%+v, want %+v", intervalOf(&got, at), want)
			}
		}
		if len(got.Intervals) != 12 || got.Top != 12 || got.Created != 0 || got.Ended != 0 || got.Stuck != 12 || !got.OldestCreatedAt.Equal(from) {
			t.Errorf("%+v, want 12 intervals, and 12 stuck that were created before the last three", got)
		}
	})
}

// A run, a retry that was updated long ago, one in the queue, two that are stuck, and an update that
// is not credible.
func TestABacklogCountsWhatRunsWaitsAndIsStuck(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		now, ago := time.Now(), timeValue(time.Now().Add(-time.Hour))
		for i, at := range storedForms(now) {
			b.Put(t, fmt.Sprint("ready", i), map[string]any{"status": analysislock.Ready, "createdAt": at, "updatedAt": at})
		}
		b.Put(t, "run", map[string]any{"status": analysislock.Processing, "lockOwner": "w", "lockToken": 1, "lockExpiresAt": timeValue(now.Add(time.Hour)), "updatedAt": now})
		b.Put(t, "retry", map[string]any{"status": analysislock.Queued, "nextAttemptAt": timeValue(now.Add(time.Hour)), "updatedAt": ago})
		b.Put(t, "queued", map[string]any{"status": analysislock.Queued, "createdAt": timeValue(now), "updatedAt": now})
		b.Put(t, "marked soon", map[string]any{"status": analysislock.Queued, "updatedAt": now.Add(-a.TTL() - time.Minute)})
		b.Put(t, "stuck", map[string]any{"status": analysislock.Queued, "updatedAt": ago})
		b.Put(t, "late", map[string]any{"status": analysislock.Queued, "nextAttemptAt": ago, "updatedAt": ago})
		b.Put(t, "far", map[string]any{"status": analysislock.Queued, "updatedAt": timeValue(now.AddDate(9, 0, 0))})
		for listed, want := range []int64{3, 3, 3, 3, 4} {
			got, err := a.Backlog(t.Context(), listed)
			if err != nil || got.Running != 1 || got.Stuck != want || got.Waiting != 6-want || got.Created != 4 || got.Ended != 3 || got.DrainedAt.IsZero() {
				t.Errorf("%+v, %v; want 1 that runs, %d that are stuck, 4 created, 3 ended", got, err, want)
			}
			if over := got.At.Sub(got.Since); over < 2*Step || over >= 3*Step {
				t.Errorf("the rate is of %v", over)
			}
		}
	})
}

// What was committed late, in an interval that has just ended, is still counted.
func TestAnIntervalIsCountedUntilAMinuteAfterItsEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		from := time.Now().Truncate(Step).Add(Step)
		for n, tc := range []struct {
			at                  time.Duration // after the beginning of the interval
			finished, intervals int
		}{
			{time.Minute, 1, 12}, {2 * time.Minute, 2, 1}, {Step + 30*time.Second, 3, 2}, {Step + 61*time.Second, 4, 2},
			{Step + 2*time.Minute, 4, 1}, {5*Step + 2*time.Minute, 4, 5}, // the one that had not ended, and four more
		} {
			time.Sleep(time.Until(from.Add(tc.at)))
			b.Put(t, fmt.Sprint(n), map[string]any{"status": analysislock.Ready, "updatedAt": timeValue(from)})
			before := b.Calls.Count("RunAggregationQuery")
			got, err := a.Backlog(t.Context(), 0)
			calls := b.Calls.Count("RunAggregationQuery") - before
			if err != nil || int(intervalOf(&got, from).Finished) != tc.finished || calls != 5+3*tc.intervals {
				t.Errorf("%+v, %v, in %d counts, want %+v", got, err, calls, tc)
			}
		}
	})
}

func TestABacklogIsDrainedAtTheRateOfWhatEnds(t *testing.T) {
	at := time.Date(2026, 1, 2, 12, 40, 0, 0, time.UTC)
	since := at.Add(-40 * time.Minute)
	for _, tc := range []struct{ unfinished, created, ended, minutes int64 }{
		{100, 20, 40, 100}, {100, 90, 40, 100}, {100, 9, 0, -1}, {1, 0, 0, -1}, {0, 9, 0, 0}, {1, 0, 80, 0}, {1 << 50, 0, 2, 1 << 62 / int64(time.Minute)},
	} {
		b := Backlog{At: at, Since: since, Waiting: tc.unfinished, Created: tc.created, Intervals: []Interval{{From: since.Add(-Step), Failed: 1000}, {From: since, Finished: tc.ended / 2}, {From: since.Add(Step), Failed: tc.ended / 2}}}
		b.sum()
		if drains := tc.minutes >= 0; drains != !b.DrainedAt.IsZero() || drains && b.DrainedAt.Sub(at).Truncate(time.Minute) != time.Duration(tc.minutes)*time.Minute {
			t.Errorf("%+v: drained at %v", tc, b.DrainedAt)
		}
	}
}
