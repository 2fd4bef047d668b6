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
