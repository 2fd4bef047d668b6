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
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"

	"taskguard/internal/testing/proof"
	"taskguard/lease/analysislock"
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
		check(t, err)
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
// live locks of one key than it has slots, all become READY, and those created first come first.
func TestChaosKeys(t *testing.T) {
	t.Parallel()
	t.Run("three at a time", func(t *testing.T) { chaosOfKeys(t, 3) })
	t.Run("strictly in order", func(t *testing.T) { chaosOfKeys(t, 1) })
}

// chaosOfKeys gives the workers these programs in turn; none: this version.
func chaosOfKeys(t *testing.T, limit int, programs ...string) {
	t.Helper()
	size, keys := keysSize(t, limit)
	t.Logf("%d keys, %+v", keys, size)
	c := &keyed{
		chaos: newChaos(t, size), limit: limit, keys: keys, live: map[string]int{}, failed: map[string]bool{},
	}
	analyzer := httptest.NewServer(http.HandlerFunc(c.run))
	t.Cleanup(analyzer.Close)
	c.environment = []string{
		"ANALYZER=" + analyzer.URL, "CONCURRENCY_KEY=tenant", fmt.Sprint("CONCURRENCY_LIMIT=", limit), "MAX_RUNS=80",
	}
	if limit == 1 {
		c.environment = append(c.environment, "CONCURRENCY_RETRY=hold")
	}
	throughout, done := context.WithCancel(context.WithoutCancel(t.Context()))
	var others sync.WaitGroup
	t.Cleanup(func() {
		done()
		others.Wait()
	})
	for i, s := range c.slots {
		if len(programs) > 0 {
			s.program = programs[i%len(programs)]
		}
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
		at := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
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
	c.drain(t)
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
		if c.limit == 1 {
			c.judgeStrict(t, k, histories)
		}
	}

	least := map[string]int{"kill -9": 1, "steals": 1, "wrote park": 1, "slots taken": c.analyses}
	if c.limit == 1 {
		least["behind one that had failed"] = 1
	}
	for name, least := range least {
		if c.counts[name] < least {
			t.Errorf("%s: %d; a run without it proves nothing", name, c.counts[name])
		}
	}
	if failed, n := c.counts["behind one that had failed"], c.counts["of them overtaken"]; 3*n > failed {
		t.Errorf("%d of %d that had failed were overtaken: their slots were not kept", n, failed)
	}
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
			if n > c.limit-len(taken.slots) {
				t.Errorf("%s took the slot %d at %v, with %d of its key in front of it",
					id(i), len(taken.slots), taken.at, n)
			}
		}
	}
}

// judgeStrict checks that no analysis begins after one of its key that was created before it has begun and is not
// finished, unless a kill explains it: of the run of that one, or of its worker before it kept the slot. A kept slot
// is free if the next attempt is late by one TTL.
func (c *keyed) judgeStrict(t *testing.T, key int, histories map[string][]*write) {
	t.Helper()
	overtaken := map[string]bool{}
	for i := key; i < c.analyses; i += c.keys {
		for _, taken := range c.slotsTaken(i, histories) {
			for j := key; j < i; j += c.keys {
				switch state := c.stateAt(j, taken.at, histories); state {
				case "":
				case "waits":
					t.Errorf("%s began at %v, before the retry of %s", id(i), taken.at, id(j))
				default:
					overtaken[state+id(j)] = true
					c.counts["overtook one that "+state]++
				}
			}
		}
	}
	for i := key; i < c.analyses; i += c.keys {
		for _, w := range histories[id(i)] {
			if w.Kind == proof.Release && w.outcome == analysislock.OutcomeRetry && i+c.keys < c.analyses {
				c.counts["behind one that had failed"]++
				if overtaken[keptNothing+id(i)] {
					c.counts["of them overtaken"]++
				}
			}
		}
	}
}

// kept begins the owner of a slot that is kept for the next attempt of an analysis.
const kept = "next attempt of "

// keptNothing is the state of an analysis that has failed for now, and whose slot was not kept.
const keptNothing = "was killed before it kept its slot"

// stateAt says whether an analysis that had begun waited for its next attempt, and why it might be overtaken.
func (c *keyed) stateAt(j int, at time.Time, histories map[string][]*write) (state string) {
	var last *write // of the lock
	for _, w := range histories[id(j)] {
		if w.at.After(at) {
			break
		}
		switch w.Kind {
		case proof.Finish, proof.GiveUp:
			return ""
		case proof.Acquire, proof.Heartbeat, proof.Release:
			last = w
		case proof.Park, proof.Requeue, proof.Delay:
			if last != nil { // after a crash
				return "was killed"
			}
		}
	}
	switch {
	case last == nil:
		return "" // judgeOrder judges the parked ones
	case last.Kind != proof.Release:
		return "was killed"
	}

	state = keptNothing
	for _, w := range histories[analysislock.KeyID(c.tenant(j))] {
		for owner, slot := range w.slots {
			its := strings.HasPrefix(owner, kept) && analysisOf(slot) == id(j)
			if !its || w.at.Before(last.at) || w.at.After(at) {
				continue
			}
			state = "waits"
			text := slot.GetMapValue().GetFields()["lockExpiresAt"].GetStringValue()
			if expires, err := time.Parse(time.RFC3339, text); err != nil || !at.Before(expires) {
				state = "was late"
			}
		}
	}
	return state
}

// slotsTaken returns the writes with which deliveries of an analysis took slots. A slot kept for its next attempt does
// not count.
func (c *keyed) slotsTaken(i int, histories map[string][]*write) (all []*write) {
	owners := map[string]bool{}
	for _, w := range histories[analysislock.KeyID(c.tenant(i))] {
		for owner, slot := range w.slots {
			if analysisOf(slot) == id(i) && !owners[owner] && !strings.HasPrefix(owner, kept) {
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
