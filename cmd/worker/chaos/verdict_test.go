package chaos

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"google.golang.org/api/iterator"
)

// recover asks a worker every half TTL to book deliveries of what is orphaned,
// as Cloud Scheduler would each minute.
func (c *chaos) recover(ctx context.Context) {
	r := c.random("recovery")
	for ; ctx.Err() == nil; wait(ctx, time.After(c.ttl/2)) {
		p := &process{address: c.places[r.IntN(len(c.places))].address()}
		try, cancel := context.WithTimeout(ctx, 2*c.ttl) // it may be paused
		got := p.post(try, "/internal/tasks/recover", "")
		cancel()
		if got.is(http.StatusOK, `"found"`) {
			c.add("recoveries")
		}
	}
}

// sample looks at all documents each second: no token may decrease.
func (c *chaos) sample(ctx context.Context) {
	tokens := map[string]int64{}
	for ; ctx.Err() == nil; wait(ctx, time.After(time.Second)) {
		docs := c.docs.Collection("analyses").Documents(ctx)
		for {
			snap, err := docs.Next()
			if err != nil {
				if !errors.Is(err, iterator.Done) && ctx.Err() == nil {
					c.add("samples failed")
				}
				break
			}
			token, _ := snap.Data()["lockToken"].(int64)
			if token < tokens[snap.Ref.ID] {
				c.add("tokens decreased")
			}
			tokens[snap.Ref.ID] = token
			c.add("documents sampled")
		}
		docs.Stop()
	}
}

// settleTime is what the last analyses get when nothing is harmed any more:
// several TTLs, and a slow machine's time.
const settleTime = 3 * time.Minute

// settle returns when every analysis is READY and the queue is empty, or fails.
func (c *chaos) settle(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	for {
		lost := 0
		for i := range c.analyses {
			if !ready(c.get(t, id(i)).Data()) {
				lost++
			}
		}
		if lost == 0 {
			break
		}
		if wait(ctx, time.After(100*time.Millisecond)); ctx.Err() != nil {
			t.Errorf("%d analyses are not READY after %v", lost, settleTime)
			break
		}
	}
	if err := c.queue.server.Idle(ctx); err != nil {
		t.Errorf("the queue is not empty: %v", err)
	}
	c.queue.close()
}

// verdict says whether all went well, and whether enough was done to tell.
func (c *chaos) verdict(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, err := range c.errs {
		t.Error(err)
	}
	n := len(c.proxy.doubtful) // Google's emulator has been seen to answer Internal after a pause
	if c.counts["commits of unknown outcome"] = n; n > max(1, c.analyses/20) {
		t.Errorf("of %d commits it is not known what became of them", n)
	}
	for i := range c.analyses {
		c.judge(t, id(i))
	}
	if c.counts["tokens decreased"] > 0 || c.counts["documents sampled"] == 0 {
		t.Errorf("tokens decreased in %d of %d samples", c.counts["tokens decreased"], c.counts["documents sampled"])
	}
	c.tell(t)
}

// tell prints the figures, and fails where there was too little of anything.
// The caller holds mu.
func (c *chaos) tell(t *testing.T) {
	t.Helper()
	for k, n := range c.proxy.seen {
		if k.method == "BeginTransaction" {
			c.counts["decisions in a transaction"] += n
		}
	}
	for name, n := range c.proxy.injected {
		c.counts[name] = n
	}
	for name, n := range c.queue.front.counts {
		c.counts["answered "+name] = n
	}
	for _, name := range []string{
		"kill -9", "SIGTERM", "SIGSTOP, and taken over", "unlocked", "Firestore paused", "reply lost", "commit dropped", "commit applied late",
		"commit sent twice", "commit slow", "duplicates", "answered delayed", "recoveries", "steals",
		"answered 200 already_finishedREADY", "answered 200 locked", "answered 409 lock_lost",
	} {
		if c.counts[name] == 0 {
			t.Errorf("%s: 0; a run without it proves nothing", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.counts)) {
		t.Logf("%6d %s", c.counts[name], name)
	}
}

// judge checks one analysis: its document, the history of its writes, and its
// runs.
func (c *chaos) judge(t *testing.T, id string) {
	t.Helper()
	doc, runs := c.get(t, id).Data(), c.analyzer.of(id)
	result, _ := doc["result"].(map[string]any)
	told := func(j judgement) bool {
		return ready(doc) && j.by.owner != "" && doc["finishedBy"] == j.by.owner && doc["lockToken"] == j.by.token && result["token"] == j.by.token
	}
	j := explained(c.proxy.written(id), c.proxy.doubted(id), func(j judgement) bool { return len(j.bad) == 0 && told(j) })
	for _, bad := range j.bad {
		t.Errorf("%s: %s", id, bad)
	}
	if !told(j) {
		t.Errorf("%s: document %v, finish %+v", id, doc, j.by)
	}
	c.counts["steals"] += j.steals
	effective := 0
	for i, r := range runs {
		if r.token == j.by.token && r.answered {
			effective++
		}
		if i > 0 && r.token == runs[i-1].token {
			t.Errorf("%s: token %d ran twice", id, r.token)
		}
		for _, newer := range runs[i+1:] {
			c.overlap(t, r, newer)
		}
	}
	c.counts["runs"] += len(runs)
	if c.counts["effective runs"] += effective; effective != 1 {
		t.Errorf("%s: %d effective runs, want 1: %+v", id, effective, runs)
	}
}
