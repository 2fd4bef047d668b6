package console_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/cmd/internal/console"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// busyDay is a source in which every hour has n analyses that are READY. The run of each took as many seconds
// as its number. It bills its reads.
type busyDay struct {
	*memorySource
	n      int
	billed int
}

func (b *busyDay) Page(_ context.Context, f repo.Filter, _ string, limit int) (
	found []analysislock.Analysis, next string, at time.Time, err error,
) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pages = append(b.pages, f)
	for i := range min(b.n, limit) {
		a, began := analysis(fmt.Sprint(i), "READY"), f.Since.Add(time.Minute)
		a.History = []analysislock.Attempt{
			{Outcome: "retry", StartedAt: f.Since.Add(-time.Hour), EndedAt: f.Since},
			{Outcome: "ready", StartedAt: began, EndedAt: began.Add(time.Duration(1+i) * time.Second)},
		}
		if i == 0 {
			a.History = nil // of another program
		}
		found = append(found, a)
	}
	b.billed += max(1, len(found))
	if b.n > limit {
		next = "more"
	}
	return found, next, storeNow(), nil
}

func (b *busyDay) Count(context.Context, repo.Filter) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.billed += 1 + b.n/1000
	return int64(b.n), nil
}

func TestRunTimes(t *testing.T) {
	for n, want := range map[int]string{5: "5 4 3 s 5 s 5 s", 2_000_000: "2,000,000 99 51 s 1 min 36 s 1 min 40 s"} {
		virtual(t, fmt.Sprint("are those of the runs that succeeded, of ", n), func(t *testing.T) {
			hour := storeNow().UTC().Truncate(time.Hour)
			source := &busyDay{memorySource: newSource(), n: n}
			text := page(t, open(t, source, console.Options{}), "/run-times")
			hours := found(text, `(?s)<tr><th scope="row".*?</tr>`)
			equal(t, "hours", len(hours), 24)
			equal(t, "the first", words(hours[0]), hour.Format("01-02 15:04 ")+want)
			has(t, text, `id="sampled"`) // of the first one, one has no run
			for _, f := range source.pages {
				equal(t, "since", f.Since, f.Since.Truncate(time.Hour))
				equal(t, "read", f, repo.Filter{Status: "READY", Since: f.Since, Before: f.Since.Add(time.Hour)})
			}
		})
	}
	t.Run("are none without a run", func(t *testing.T) {
		none := page(t, open(t, newSource(), console.Options{}), "/run-times")
		has(t, none, `id="empty"`)
		hasNot(t, none, "<table", "data-poll") // nothing is read until somebody opens it
	})
	// Ten people open the page each minute, for two hours.
	for n, most := range map[int]int{50: 24 * (24*50 + 1), 20_000: 5*2*60*60 + 24*(100+21) + 1} {
		virtual(t, fmt.Sprint("cost a bounded number of reads, of ", n), func(t *testing.T) {
			source := &busyDay{memorySource: newSource(), n: n}
			server := open(t, source, console.Options{})
			page(t, server, "/")
			source.billed = 0
			for range 120 {
				for range 10 {
					go get(t, server, "/run-times")
				}
				time.Sleep(time.Minute)
			}
			synctest.Wait()
			if source.billed > most || source.billed < most/2 {
				t.Errorf("%d reads, want at most %d, and half of them", source.billed, most)
			}
		})
	}
}
