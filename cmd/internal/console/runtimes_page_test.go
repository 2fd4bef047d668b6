package console_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
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
	filter []repo.Filter
}

func (b *busyDay) Page(_ context.Context, f repo.Filter, _ string, limit int) (
	found []analysislock.Analysis, next string, at time.Time, err error,
) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filter = append(b.filter, f)
	for i := range min(b.n, limit) {
		a := analysis(fmt.Sprint(i), "READY")
		began := f.Since.Add(time.Minute)
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

// cells returns the texts of the first row of the table.
func cells(text string) (all []string) {
	_, body, _ := strings.Cut(text, "<tbody>")
	first, _, _ := strings.Cut(body, "</tr>")
	for _, cell := range regexp.MustCompile(`(?s)<t[dh][^>]*>(.*?)</t[dh]>`).FindAllStringSubmatch(first, 6) {
		all = append(all, regexp.MustCompile(`<[^>]*>`).ReplaceAllString(cell[1], ""))
	}
	return all
}

func TestTheRunTimesOfAnHourAreThoseOfItsRunsThatSucceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hour := storeNow().UTC().Truncate(time.Hour)
		few := &busyDay{memorySource: newSource(), n: 5}
		text := page(t, open(t, few, console.Options{}), "/run-times")
		if got, want := strings.Join(cells(text), "|"), hour.Format("01-02 15:04")+"|5|4|3 s|5 s|5 s"; got != want {
			t.Errorf("the first hour is %q, want %q", got, want)
		}
		if n := strings.Count(text, `scope="row"`); n != 24 {
			t.Errorf("%d hours", n)
		}
		has(t, text, `id="sampled"`) // one has no run

		many := &busyDay{memorySource: newSource(), n: 2_000_000}
		text = page(t, open(t, many, console.Options{}), "/run-times")
		if got, want := strings.Join(cells(text), "|"), hour.Format("01-02 15:04")+"|2,000,000|99|51 s|1 min 36 s|1 min 40 s"; got != want {
			t.Errorf("the first hour is %q, want %q", got, want)
		}
		has(t, text, `id="sampled"`, "the 100 analyses that were updated last")
		for _, f := range many.filter {
			if f.Status != "READY" || f.Before.Sub(f.Since) != time.Hour || !f.Since.Equal(f.Since.Truncate(time.Hour)) {
				t.Errorf("read by %+v", f)
			}
		}
		none := page(t, open(t, newSource(), console.Options{}), "/run-times")
		has(t, none, `id="empty"`)
		hasNot(t, none, "<table", "data-poll") // nothing is read until somebody opens it
	})
}

// Ten people open the page each minute, for two hours.
func TestTheRunTimesCostABoundedNumberOfReadsWhoeverLooks(t *testing.T) {
	for n, most := range map[int]int{50: 24 * (24*50 + 1), 20_000: 5*2*60*60 + 24*(100+21) + 1} {
		synctest.Test(t, func(t *testing.T) {
			source := &busyDay{memorySource: newSource(), n: n}
			server := open(t, source, console.Options{})
			page(t, server, "/")
			source.billed = 0
			for range 120 {
				for range 10 {
					go ask(t, server, http.MethodGet, "/run-times", "")
				}
				time.Sleep(time.Minute)
			}
			synctest.Wait()
			if source.billed > most || source.billed < most/2 {
				t.Errorf("%d an hour: %d reads, want at most %d", n, source.billed, most)
			}
		})
	}
}
