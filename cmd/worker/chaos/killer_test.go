package chaos

import (
	"context"
	"fmt"
	"testing"
	"time"

	"taskguard/internal/testing/proof"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// killers are analyses whose programs kill the worker. Those beside them are innocents, judged as all
// others.
const (
	killers   = 2
	innocents = 8
	killTime  = 300 * time.Millisecond // from the start of the program to its worker's death
)

func killer(i int) string { return fmt.Sprint("killer-", i) }

// runKillers creates killers among innocents, when all else is over and nothing else fails, and waits for
// their end.
func (c *chaos) runKillers(t *testing.T) {
	t.Helper()
	c.killers = killers
	for i := range killers {
		c.create(t, killer(i))
		check(t, c.queue.deliver(t.Context(), killer(i), 0))
	}
	first := c.analyses
	c.analyses += innocents
	for i := first; i < c.analyses; i++ {
		c.create(t, id(i))
		check(t, c.queue.deliver(t.Context(), id(i), 0))
	}

	for i := range killers {
		c.await(t, killer(i), analysislock.Failed)
	}
	for i := first; i < c.analyses; i++ {
		c.await(t, id(i), analysislock.Ready)
	}
}

// judgeKiller checks that a killer is FAILED as such after four attempts at most.
func (c *chaos) judgeKiller(t *testing.T, id string) {
	t.Helper()
	doc := c.docs.Fields(t, id)
	failure, _ := doc["error"].(map[string]any)
	attempts, _ := doc["attempts"].(int64)
	if doc["status"] != analysislock.Failed || failure["code"] != analysislock.Crashed || attempts > 4 {
		t.Errorf("%s: %v", id, doc)
	}
	c.counts["kills by an analysis"] += int(attempts)

	writes, certain := c.proxy.history(id)
	var h proof.History
	for i := range writes {
		h.Add(writes[i].Write)
	}
	if certain && (len(h.Wrong) > 0 || !h.Finished || h.Token != doc["lockToken"]) {
		t.Errorf("%s: %v after the history %+v", id, doc, h)
	}
}

// judgeRequeues checks that no more was FAILED as crashed than the test's own faults can explain. It takes two
// attempts that died alone, also after each requeue, and a fault of one worker ends one such attempt at most.
func (c *chaos) judgeRequeues(t *testing.T) {
	t.Helper()
	faults := c.counts["Firestore paused"] * c.workers
	for _, name := range []string{
		"kill -9", "SIGTERM", "SIGSTOP", "kill -9 before a booking", "kill -9 after a booking",
	} {
		faults += c.counts[name]
	}
	requeued := c.counts["requeued after crashes"]
	t.Logf("%d analyses requeued that %d faults of workers had made FAILED as crashed", requeued, faults)
	if requeued > faults/2 {
		t.Errorf("requeued %d, want at most %d: half of the faults", requeued, faults/2)
	}
}

// requeueCrashed requeues what is FAILED because the test has killed its worker too often, as an operator
// does.
func (c *chaos) requeueCrashed(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx, c.ttl) {
		crashed := repo.Filter{Status: analysislock.Failed, Code: analysislock.Crashed}
		all, _, _, err := c.operator.Page(ctx, crashed, "", 100)
		if err != nil { // Firestore is paused, or the end
			continue
		}
		for i := range all {
			d := &all[i]
			if d.Error.Code != analysislock.Crashed { // only its last error is
				continue
			}
			seen := &analysislock.Seen{Status: d.Status, Grant: d.Lock.Grant()}
			if _, err := c.operator.Requeue(ctx, d.ID, "", seen, false, ""); err == nil {
				c.add("requeued after crashes")
				c.check(c.queue.deliver(context.WithoutCancel(ctx), d.ID, 0))
			}
		}
	}
}
