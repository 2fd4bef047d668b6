package repo

import (
	"fmt"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
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
func TestBacklog_Intervals(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		from := time.Now().UTC().Truncate(Step).Add(-4 * Step)
		for i, at := range []time.Time{from, from.Add(Step - time.Millisecond), from.Add(Step), from.Add(Step)} {
			for form, stored := range storedForms(at) {
				put := func(status, field string) {
					b.Put(t, fmt.Sprint(status, i, form), doc{"status": status, "updatedAt": stored, field: stored})
				}
				put("READY", "startedAt")
				put("FAILED", "updatedAt")
				put("QUEUED", "createdAt")
			}
		}
		got := must.Get(a.Backlog(t.Context(), 0))(t)
		for i, n := range []int64{0, 6, 6, 0} {
			at := from.Add(time.Duration(i-1) * Step)
			same(t, Interval{From: at, Started: n, Finished: n, Failed: n}, intervalOf(&got, at))
		}
		same(t, steps, len(got.Intervals))
		same(t, []int64{12, 12, 0, 0}, []int64{got.Top, got.Stuck, got.Created, got.Ended}) // before the last three
		same(t, from, got.OldestCreatedAt.UTC())
	})
}

// A run, a retry that was updated long ago, one in the queue, two that are stuck, and an update that
// is not credible.
func TestBacklog(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		now, ago, soon := time.Now(), timeValue(time.Now().Add(-time.Hour)), timeValue(time.Now().Add(time.Hour))
		for i, at := range storedForms(now) {
			b.Put(t, fmt.Sprint("ready", i), doc{"status": "READY", "createdAt": at, "updatedAt": at})
		}
		for id, fields := range map[string]doc{
			"run":         {"updatedAt": now, "lockOwner": "w", "lockExpiresAt": soon},
			"retry":       {"updatedAt": ago, "nextAttemptAt": soon},
			"queued":      {"updatedAt": now, "createdAt": timeValue(now)},
			"marked soon": {"updatedAt": now.Add(-a.TTL() - time.Minute)},
			"stuck":       {"updatedAt": ago},
			"late":        {"updatedAt": ago, "nextAttemptAt": ago},
			"far":         {"updatedAt": timeValue(now.AddDate(9, 0, 0))},
		} {
			b.Put(t, id, with(doc{"status": "QUEUED"}, fields))
		}
		for listed, stuck := range []int64{3, 3, 3, 3, 4} { // a caller may know of more
			got := must.Get(a.Backlog(t.Context(), listed))(t)
			want := []int64{1, stuck, 6 - stuck, 4, 3}
			same(t, want, []int64{got.Running, got.Stuck, got.Waiting, got.Created, got.Ended})
			if over := got.At.Sub(got.Since); over < 2*Step || over >= 3*Step {
				t.Errorf("the rate is of %v", over)
			}
		}
	})
}

// What was committed late, in an interval that has just ended, is still counted.
func TestBacklog_Kept(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		from := time.Now().Truncate(Step).Add(Step)
		for n, tc := range []struct {
			at                  time.Duration // after the beginning of the interval
			finished, intervals int           // that are counted
		}{
			{time.Minute, 1, 12},
			{2 * time.Minute, 2, 1},
			{Step + 30*time.Second, 3, 2},
			{Step + 61*time.Second, 4, 2},
			{Step + 2*time.Minute, 4, 1},
			{5*Step + 2*time.Minute, 4, 5}, // the one that had not ended, and four more
		} {
			time.Sleep(time.Until(from.Add(tc.at)))
			b.Put(t, fmt.Sprint(n), doc{"status": "READY", "updatedAt": timeValue(from)})
			before := b.Calls.Count("RunAggregationQuery")
			got, err := a.Backlog(t.Context(), 0)
			calls := b.Calls.Count("RunAggregationQuery") - before
			if finished := int(intervalOf(&got, from).Finished); finished != tc.finished || calls != 5+3*tc.intervals {
				t.Errorf("%d finished, in %d counts, %v; want %+v", finished, calls, err, tc)
			}
		}
	})
}

func TestBacklog_DrainedAt(t *testing.T) {
	at := time.Date(2026, 1, 2, 12, 40, 0, 0, time.UTC)
	since := at.Add(-40 * time.Minute)
	const never, most = -1, 1 << 62 / int64(time.Minute)
	for _, tc := range []struct{ waiting, ended, minutes int64 }{
		{100, 40, 100}, {100, 0, never}, {1, 0, never}, {0, 0, 0}, {1, 80, 0}, {1 << 50, 2, most},
	} {
		b := Backlog{At: at, Since: since, Waiting: tc.waiting, Intervals: []Interval{
			{From: since.Add(-Step), Failed: 1000}, {From: since, Finished: tc.ended / 2},
			{From: since.Add(Step), Failed: tc.ended / 2},
		}}
		b.sum()
		minutes := int64(never)
		if !b.DrainedAt.IsZero() {
			minutes = int64(b.DrainedAt.Sub(at) / time.Minute)
		}
		same(t, tc.minutes, minutes, tc)
	}
}
