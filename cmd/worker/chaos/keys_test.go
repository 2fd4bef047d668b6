package chaos

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/internal/testing/proof"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

// keysRun is how long an analysis of TestChaosKeys runs.
const keysRun = time.Second

// keysSize is small, but with CHAOS_KEYS, which is how long workers are killed: two minutes are 2,000 analyses of
// 20 keys, or a fifth where they run one at a time.
func keysSize(t *testing.T, limit int) (s size, keys int) {
	t.Helper()
	s = size{duration: 3 * time.Second, analyses: 24, workers: 2, ttl: 1500 * time.Millisecond, seed: rand.Uint64()}
	s.runTimeout, s.retryMax, keys = time.Minute, 5*time.Second, 2
	if long := os.Getenv("CHAOS_KEYS"); long != "" {
		var err error
		s.duration, err = time.ParseDuration(long)
		must.OK(t, err)
		s.analyses, s.workers, s.ttl, keys = int(1000*s.duration.Minutes()), 4, 3*time.Second, 20
	}
	if limit == 1 {
		s.analyses /= 3
	}
	return s, keys
}

// keyed is one TestChaosKeys.
type keyed struct {
	*chaos
	limit  int // of the runs of a key; with one, a failure holds the key
	keys   int
	live   map[string]int
	most   int // runs of one key at a time, as the analyzer sees it
	failed map[string]bool
}

// TestChaosKeys kills a worker each second while analyses wait for the slots of their keys. There are never more
// live locks of one key than it has slots, and all become READY.
func TestChaosKeys(t *testing.T) {
	t.Parallel()
	t.Run("three at a time", func(t *testing.T) { chaosOfKeys(t, 3) })
	t.Run("one at a time, also after a failure", func(t *testing.T) { chaosOfKeys(t, 1) })
}

// chaosOfKeys gives the workers these programs in turn; none: this version.
func chaosOfKeys(t *testing.T, limit int, programs ...string) {
	t.Helper()
	size, keys := keysSize(t, limit)
	t.Logf("%d keys, %+v", keys, size)
	c := &keyed{chaos: newChaos(t, size), limit: limit, keys: keys, live: map[string]int{}, failed: map[string]bool{}}
	analyzer := httptest.NewServer(http.HandlerFunc(c.run))
	t.Cleanup(analyzer.Close)
	c.environment = []string{
		"ANALYZER=" + analyzer.URL, "CONCURRENCY_KEY=tenant", fmt.Sprint("CONCURRENCY_LIMIT=", limit), "MAX_RUNS=80",
	}
	if limit == 1 {
		c.environment = append(c.environment, "CONCURRENCY_RETRY=hold")
	}
	for i, s := range c.slots {
		if len(programs) > 0 {
			s.program = programs[i%len(programs)]
		}
	}
	stop := c.begin(t)
	during, over := context.WithTimeout(t.Context(), size.duration)
	defer over()
	var killing sync.WaitGroup
	killing.Go(func() { c.killEachSecond(during) })
	for i := range size.analyses { // in a quarter of the time, so that they wait
		at := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
		c.docs.Put(t, id(i), map[string]any{
			"status": "QUEUED", "tenant": c.tenant(i), "createdAt": at, "updatedAt": at,
		})
		must.OK(t, c.queue.deliver(t.Context(), id(i), 0))
		pause(during, size.duration/4/time.Duration(size.analyses))
	}
	for i := range size.analyses {
		c.await(t, id(i), analysislock.Ready)
	}
	killing.Wait()
	t.Logf("all READY after %v", c.since().Round(time.Second))
	c.drain(t)
	stop()
	c.judgeKeys(t)
}

func (c *keyed) tenant(i int) string { return fmt.Sprint("tenant-", i%c.keys) }

// killEachSecond kills one worker after another.
func (c *keyed) killEachSecond(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		pause(ctx, time.Second)
		c.slots[n%len(c.slots)].worker().kill()
		c.add(leasetest.Crash)
	}
}

// run is the analyzer. Where a failure holds the key, every fifth analysis fails for now, once.
func (c *keyed) run(w http.ResponseWriter, r *http.Request) {
	var got job
	c.check(json.NewDecoder(r.Body).Decode(&got))
	tenant := c.tenant(number(got.Analysis))
	c.locked(func() {
		c.live[tenant]++
		c.most = max(c.most, c.live[tenant])
		c.counts["runs"]++
	})
	pause(r.Context(), keysRun)
	fails := false
	c.locked(func() {
		c.live[tenant]--
		fails = c.limit == 1 && number(got.Analysis)/c.keys%5 == 1 && !c.failed[got.Analysis]
		c.failed[got.Analysis] = true
	})
	if fails {
		http.Error(w, "for now", http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]int64{"token": got.Token})
}

// number returns i of id(i).
func number(id string) (i int) {
	_, _ = fmt.Sscanf(id, "analysis-%d", &i)
	return i
}

// judgeKeys judges the history of each analysis and of each key, and prints the figures.
func (c *keyed) judgeKeys(t *testing.T) {
	t.Helper()
	for _, err := range c.errs {
		t.Error(err)
	}
	histories := map[string][]*write{}
	c.proxy.mu.Lock() // a killed worker's commit may still be on its way
	defer c.proxy.mu.Unlock()
	for i := range c.proxy.applied {
		w := &c.proxy.applied[i]
		histories[w.doc] = append(histories[w.doc], w)
	}
	for _, writes := range histories {
		slices.SortStableFunc(writes, func(a, b *write) int { return a.at.Compare(b.at) })
	}

	for i := range c.analyses {
		var h proof.History
		for _, w := range histories[id(i)] {
			h.Add(w.Write)
			c.counts["wrote "+figure(w.Kind)]++
		}
		c.counts["steals"] += h.Steals
		if len(h.Wrong) > 0 || !h.Finished {
			t.Errorf("%s: history %+v", id(i), h)
		}
	}
	for k := range c.keys {
		c.judgeLocks(t, k, histories)
		for _, w := range histories[analysislock.KeyID(c.tenant(k))] {
			for owner := range w.fields["slots"].GetMapValue().GetFields() {
				if strings.HasPrefix(owner, "next attempt of ") {
					c.counts["slots kept"]++
				}
			}
		}
	}

	wanted := []figure{leasetest.Crash, "steals", "wrote park"}
	if c.limit == 1 {
		wanted = append(wanted, "slots kept")
	}
	c.expect(t, wanted)
	if c.most > c.limit {
		t.Errorf("%d runs of a key at a time, want at most %d", c.most, c.limit)
	}
	t.Logf("at most %d runs of a key at a time; %v; answers %v", c.most, c.counts, c.queue.answers())
}

// judgeLocks checks that a key never had more live locks than slots.
func (c *keyed) judgeLocks(t *testing.T, key int, histories map[string][]*write) {
	t.Helper()
	type change struct {
		at   time.Time
		more int
	}
	var changes []change
	for i := key; i < c.analyses; i += c.keys {
		var from, until time.Time // of the lock
		end := func(at time.Time) {
			if at.After(until) {
				at = until
			}
			if !from.IsZero() {
				changes = append(changes, change{from, 1}, change{at, -1})
			}
			from = time.Time{}
		}
		for _, w := range histories[id(i)] {
			switch w.Kind {
			case proof.Acquire:
				end(w.at)
				from, until = w.at, w.Expires
			case proof.Heartbeat:
				until = w.Expires
			case proof.Release, proof.Finish, proof.GiveUp, proof.Park, proof.Delay, proof.Requeue, proof.Unlock:
				end(w.at)
			}
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), a.more-b.more) })

	live := 0
	for _, change := range changes {
		live += change.more
		c.counts["most live locks of a key"] = max(c.counts["most live locks of a key"], live)
		if live > c.limit {
			t.Errorf("%s had %d live locks at %v", c.tenant(key), live, change.at)
		}
	}
}
