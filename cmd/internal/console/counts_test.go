package console_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/console"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// millions are three million analyses. Its counts are billed as Firestore's, and may be too slow for
// the console's time limit.
type millions struct {
	*memorySource
	slow   bool
	billed atomic.Int64
}

func (m *millions) count(ctx context.Context, reads int64) error {
	m.billed.Add(reads)
	if m.slow {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (m *millions) Count(ctx context.Context, f repo.Filter) (int64, error) {
	n := map[string]int64{"": 3e6, "READY": 1e6, "FAILED": 1e6, "QUEUED": 1e6}[f.Status]
	return n, m.count(ctx, 1+n/1000)
}

func (m *millions) Backlog(ctx context.Context, _ int) (repo.Backlog, error) {
	b := repo.Backlog{At: storeNow(), Waiting: 1e6, Created: 1e5}
	return b, m.count(ctx, b.Reads())
}

func (m *millions) Failures(ctx context.Context, _ int) ([]repo.Failure, int, error) {
	f := repo.Failure{Code: "a", N: 1e6, Newest: []analysislock.Analysis{failed("x", "a", "b", time.Hour)}}
	return []repo.Failure{f}, 0, m.count(ctx, 2+f.N/1000)
}

func TestCounts(t *testing.T) {
	// 35 people look at lists of their own, one at the overview and one at the failures, and one changes an
	// analysis each minute.
	for name, slow := range map[string]bool{"that are counted": false, "that are too slow": true} {
		virtual(t, "millions "+name+" cost a bounded number of reads", func(t *testing.T) {
			source := &millions{memorySource: newSource(), slow: slow}
			operator := &recorder{bulk: console.Bulk{Before: storeNow(), Matched: 1, Changed: 1}}
			server := open(t, source, console.Options{Operator: operator})
			const minutes = 60
			for range minutes {
				for range 2 {
					for i := range 35 {
						go ask(t, server, http.MethodGet, fmt.Sprint("/?code=", i), "")
					}
					go ask(t, server, http.MethodGet, "/", "")
					go ask(t, server, http.MethodGet, "/failures", "")
					time.Sleep(30 * time.Second)
				}
				seen := fmt.Sprint(storeNow().UnixMilli(), "-1")
				post(t, server, "/all/requeue?code=a", url.Values{"seen": {seen}})
			}
			time.Sleep(time.Minute)
			synctest.Wait()

			if reads := source.billed.Load() / minutes; reads > 1000 {
				t.Errorf("the counts cost %d reads a minute, want at most 1,000", reads)
			}
			if slow {
				return
			}
			time.Sleep(5 * time.Minute) // the last ones have become due
			get(t, server, "/")
			get(t, server, "/failures")
			time.Sleep(2 * time.Minute)
			has(t, page(t, server, "/"), "All <b>3,000,000</b>", `id="tally-age"`)
			has(t, page(t, server, "/failures"), `id="counted"`)
		})
	}
	virtual(t, "work within a minute after an outage in which the console was opened", func(t *testing.T) {
		source := &millions{memorySource: newSource(), slow: true}
		server := open(t, source, console.Options{})
		page(t, server, "/failures")
		page(t, server, "/")
		time.Sleep(12 * time.Second)
		synctest.Wait()
		source.slow = false

		answer := get(t, server, "/failures")
		wait, err := strconv.Atoi(answer.Header().Get("Refresh")) // when the failures are counted again
		if err != nil {
			t.Error(err)
		}
		if wait < 30 || wait > 60 {
			t.Errorf("Refresh %d, want 30 to 60", wait)
		}
		has(t, answer.Body.String(), "last count failed: no answer. Counted again in 3")
		has(t, page(t, server, "/"), `id="tally-age">The last count failed`, "<strong>The last count failed")
		time.Sleep(time.Minute)
		has(t, page(t, server, "/"), "All <b>3,000,000</b>", `id="backlog-running"`)
		has(t, page(t, server, "/failures"), `data-code="a"`)
	})
}

func TestBacklog(t *testing.T) {
	virtual(t, "is shown as last read, and a large one is read less often", func(t *testing.T) {
		source := newSource(analysis("a", "READY"), at(analysis("b", "QUEUED"), time.Hour),
			at(analysis("c", "QUEUED"), time.Hour))
		server := open(t, source, console.Options{})
		source.errs["Backlog"] = status.Error(codes.PermissionDenied, "odd")
		has(t, page(t, server, "/"), `data-id="a"`, "PERMISSION_DENIED", "Nothing is known yet")
		hasNot(t, page(t, server, "/"), `id="backlog-empty"`)

		now := storeNow().UTC()
		source.change(func() { delete(source.errs, "Backlog") })
		source.backlog = repo.Backlog{
			Running: 40, Waiting: 99_950, Stuck: 1, Created: 100, Ended: 2600, Top: 2000,
			Since: now.Add(-30 * time.Minute), OldestCreatedAt: now.Add(-2 * time.Hour),
			DrainedAt: now.Add(110 * time.Minute),
			Intervals: []repo.Interval{
				{From: now.Add(-15 * time.Minute), Started: 1, Finished: 1500, Failed: 500}, {From: now},
			},
		}
		time.Sleep(5 * time.Second)
		text := page(t, server, "/")
		has(t, text, `id="backlog-running">40<`, `id="backlog-waiting">99,950<`,
			`id="backlog-stuck" class="stuck">2</b> or more`, "<b>1 h 49 min</b>", "2,600 ended", "last 30 min",
			`viewBox="0 0 12 2000"`, `y="1500" width=".35" height="500"/>`, `<line class="now" x1="1.0`,
			"23:45 UTC</time> 1 started, 1,500 finished, 500 failed</li>",
			`title="2000-01-02 00:00:05 UTC">00:00 UTC</time>`)
		equal(t, "ages of the oldest", len(found(text, `Oldest unfinished`)), 1) // of two readings, two would differ
		for _, target := range []string{"/?state=READY", "/?q=a", "/?after=1"} {
			hasNot(t, page(t, server, target), `id="backlog"`)
		}

		source.change(func() { source.backlog.DrainedAt, source.backlog.Created = time.Time{}, 1_200_000 })
		for minutes, want := range []int{2, 3, 3, 3, 3, 3, 4} { // a reading costs 315 reads, and then 1,515
			page(t, server, "/")
			equal(t, fmt.Sprint("reads after ", minutes, " minutes"), source.calls("Backlog"), want)
			time.Sleep(time.Minute + 5*time.Second)
		}
		has(t, page(t, server, "/"), "<b>Not drained</b>")
		source.breaks(true)
		time.Sleep(time.Hour)
		page(t, server, "/")
		has(t, page(t, server, "/"), `id="backlog-running">40<`, "as of 00:06:35 UTC, 1 h ago.")
	})
	// A sorted page does not read what is stuck. The overview would show its number.
	t.Run("is not counted for a sorted page", func(t *testing.T) {
		source := newSource(at(analysis("lost", "QUEUED"), 4*time.Hour))
		source.backlog = repo.Backlog{At: storeNow(), Waiting: 1}
		for _, order := range []string{"id", "-updated", "age"} {
			server := open(t, source, console.Options{})
			hasNot(t, page(t, server, "/?sort="+order), `id="backlog"`)
			has(t, page(t, server, "/"), `id="backlog-stuck" class="stuck">1</b>`)
		}
	})
}

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
