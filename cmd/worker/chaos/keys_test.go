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
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"

	"taskguard/internal/testing/proof"
	"taskguard/lease/analysislock"
)

// The keys of TestChaosKeys, and how many analyses of each may run at a time.
const (
	keysLimit = 3
	keysRun   = time.Second // of an analysis
)

// keysSize is small, but with CHAOS_KEYS, which is how long workers are killed: two minutes are 2,000 analyses of
// 20 keys.
func keysSize(t *testing.T) (s size, keys int) {
	t.Helper()
	s = size{duration: 3 * time.Second, analyses: 24, workers: 2, ttl: 1500 * time.Millisecond, seed: rand.Uint64()}
	s.runTimeout, s.retryMax, keys = time.Minute, 5*time.Second, 2
	if long := os.Getenv("CHAOS_KEYS"); long != "" {
		var err error
		s.duration, err = time.ParseDuration(long)
		check(t, err)
		s.analyses, s.workers, s.ttl, keys = int(1000*s.duration.Minutes()), 4, 3*time.Second, 20
	}
	return s, keys
}

// keyed is one TestChaosKeys.
type keyed struct {
	*chaos
	keys int
	at   []time.Time // when each analysis was created
	live map[string]int
	most int // runs of one key at a time, as the analyzer sees it
}

// TestChaosKeys kills a worker each second while analyses wait for the slots of their keys. There are never more
// live locks of one key than it has slots, all become READY, and those created first come first.
func TestChaosKeys(t *testing.T) {
	t.Parallel()
	size, keys := keysSize(t)
	t.Logf("%d keys, %+v", keys, size)
	c := &keyed{chaos: newChaos(t, size), keys: keys, live: map[string]int{}}
	analyzer := httptest.NewServer(http.HandlerFunc(c.run))
	t.Cleanup(analyzer.Close)
	c.environment = []string{
		"ANALYZER=" + analyzer.URL, "CONCURRENCY_KEY=tenant", fmt.Sprint("CONCURRENCY_LIMIT=", keysLimit), "MAX_RUNS=80",
	}
	throughout, done := context.WithCancel(context.WithoutCancel(t.Context()))
	var others sync.WaitGroup
	t.Cleanup(func() {
		done()
		others.Wait()
	})
	for _, s := range c.slots {
		check(t, c.startIn(s))
		others.Go(func() { c.keepRunning(throughout, s) })
	}
	for _, other := range []func(context.Context){c.recover, c.requeueCrashed, c.watchMachine} {
		others.Go(func() { other(throughout) })
	}

	during, over := context.WithTimeout(throughout, size.duration)
	defer over()
	others.Go(func() { c.killEachSecond(during) })
	for i := range size.analyses { // in a quarter of the time, so that they wait
		c.at = append(c.at, time.Now().UTC().Truncate(time.Millisecond))
		at := c.at[i].Format("2006-01-02T15:04:05.000Z")
		c.docs.Put(t, id(i), map[string]any{
			"status": "QUEUED", "tenant": c.tenant(i), "createdAt": at, "updatedAt": at,
		})
		check(t, c.queue.deliver(t.Context(), id(i), 0))
		pause(during, size.duration/4/time.Duration(size.analyses))
	}
	for i := range size.analyses {
		c.await(t, id(i), analysislock.Ready)
	}
	settled := c.since()
	done()
	others.Wait()
	t.Logf("all READY after %v", settled.Round(time.Second))
	c.judgeKeys(t)
}

func (c *keyed) tenant(i int) string { return fmt.Sprint("tenant-", i%c.keys) }

// killEachSecond kills one worker after another.
func (c *keyed) killEachSecond(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		pause(ctx, time.Second)
		c.slots[n%len(c.slots)].worker().kill()
		c.add("kill -9")
	}
}

// run is the analyzer.
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
	c.locked(func() { c.live[tenant]-- })
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
			c.counts["wrote "+string(w.Kind)]++
		}
		c.counts["steals"] += h.Steals
		if len(h.Wrong) > 0 || !h.Finished {
			t.Errorf("%s: history %+v", id(i), h)
		}
	}
	for k := range c.keys {
		c.judgeLocks(t, k, histories)
		c.judgeOrder(t, k, histories)
	}

	for name, least := range map[string]int{"kill -9": 1, "steals": 1, "wrote park": 1, "slots taken": c.analyses} {
		if c.counts[name] < least {
			t.Errorf("%s: %d; a run without it proves nothing", name, c.counts[name])
		}
	}
	if c.most > keysLimit {
		t.Errorf("%d runs of a key at a time, want at most %d", c.most, keysLimit)
	}
	t.Logf("at most %d runs of a key at a time; %v; answers %v", c.most, c.counts, c.queue.counts)
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
		if live > keysLimit {
			t.Errorf("%s had %d live locks at %v", c.tenant(key), live, change.at)
		}
	}
}

// judgeOrder checks that an analysis takes a slot only if one is left for each of its key that is parked in front of
// it. It ignores those that have waited for less than two seconds, as the decision may be older.
func (c *keyed) judgeOrder(t *testing.T, key int, histories map[string][]*write) {
	t.Helper()
	ahead := func(i int, taken *write) (n int) {
		at, having := taken.at, map[string]bool{}
		for _, slot := range taken.slots {
			having[analysisOf(slot)] = true
		}
		for j := key; j < i; j += c.keys {
			var parked time.Time
			for _, w := range histories[id(j)] {
				if w.at.After(at) {
					break
				}
				switch {
				case w.Kind != proof.Park:
					parked = time.Time{}
				case parked.IsZero():
					parked = w.at
				}
			}
			waited := proof.Span{From: parked.Sub(c.began), Until: at.Sub(c.began)}
			if !parked.IsZero() && !having[id(j)] && waited.Uncovered(c.stalls...) > 2*time.Second {
				n++
			}
		}
		return n
	}
	for i := key; i < c.analyses; i += c.keys {
		for _, taken := range c.slotsTaken(i, histories) {
			c.counts["slots taken"]++
			n := ahead(i, taken)
			if n > 0 {
				c.counts["overtook"]++
			}
			if n > keysLimit-len(taken.slots) {
				t.Errorf("%s took the slot %d at %v, with %d of its key in front of it",
					id(i), len(taken.slots), taken.at, n)
			}
		}
	}
}

// slotsTaken returns the writes with which deliveries of an analysis took slots.
func (c *keyed) slotsTaken(i int, histories map[string][]*write) (all []*write) {
	owners := map[string]bool{}
	for _, w := range histories[analysislock.KeyID(c.tenant(i))] {
		for owner, slot := range w.slots {
			if analysisOf(slot) == id(i) && !owners[owner] {
				owners[owner] = true
				all = append(all, w)
			}
		}
	}
	return all
}

func analysisOf(slot *firestorepb.Value) string {
	return slot.GetMapValue().GetFields()["analysis"].GetStringValue()
}

// slotsOf returns the slots that a write to the record of a key has.
func slotsOf(w *firestorepb.Write) map[string]*firestorepb.Value {
	if path.Base(path.Dir(w.GetUpdate().GetName())) != "analysesKeys" {
		return nil
	}
	return w.GetUpdate().GetFields()["slots"].GetMapValue().GetFields()
}
