package chaos

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/internal/testing/proof"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

// figure is an event that is counted: a fault, or anything else.
type figure = leasetest.Fault

// expected are the figures that must not be zero: without them the test proves
// nothing. In the short run a late commit may meet no read, and a booking may meet no fault.
var expected = []figure{
	leasetest.Crash, leasetest.Stop, leasetest.Pause, leasetest.Unavailable,
	leasetest.ReplyLost, leasetest.RequestLost, leasetest.SentTwice,
	leasetest.SlowRequest, leasetest.DeliveredTwice, leasetest.ReplyLost.At("charge"),
	"recoveries answered 200", "steals", "runs released as continued",
	"answered 200 already_finishedREADY", "answered 200 locked", "answered done", "answered not done",
}

// expectedInFull are those of a full run besides.
var expectedInFull = []figure{
	takenOver, leasetest.Late, "runs released as shutting_down", "units repeated",
	"answered 200 retry", "answered 200 waiting", "answered 200 lock_lost",
	leasetest.RequestLost.At("book"), leasetest.ReplyLost.At("book"),
	leasetest.CrashBefore.At("book"), leasetest.CrashAfter.At("book"),
}

// judgeAll judges all analyses, prints the figures, and fails if one that is wanted is zero.
func (c *chaos) judgeAll(t *testing.T, wanted []figure) {
	t.Helper()
	for _, err := range c.errs {
		t.Error(err)
	}
	journal := readJournal(t, c.journal)
	for i := range c.analyses {
		c.judge(t, id(i), journal)
	}

	c.judgeStored(t)
	n := len(c.proxy.uncertain) // Google's emulator has been seen to answer Internal after a pause
	if c.counts["analyses with a commit of unknown outcome"] = n; n > max(1, c.analyses/20) {
		t.Errorf("of %d analyses the history is unknown", n)
	}
	maps.Copy(c.counts, c.proxy.counts)
	maps.Copy(c.counts, c.queue.proxy.counts)
	for name, n := range c.queue.answers() {
		c.counts["answered "+figure(name)] = n
	}
	c.judgeRequeues(t)
	if c.full {
		wanted = slices.Concat(wanted, expectedInFull)
	}
	c.expect(t, wanted)
	for _, name := range slices.Sorted(maps.Keys(c.counts)) {
		t.Logf("%6d %s", c.counts[name], name)
	}
}

// expect fails the test if a figure is zero.
func (c *chaos) expect(t *testing.T, wanted []figure) {
	t.Helper()
	for _, name := range wanted {
		if c.counts[name] == 0 {
			t.Errorf("%s: 0; a run without it proves nothing", name)
		}
	}
}

// judgeRequeues checks that no more was FAILED as crashed than the test's own faults can explain. It takes two
// attempts that died alone, also after each requeue, and a fault of one worker ends one such attempt at most.
func (c *chaos) judgeRequeues(t *testing.T) {
	t.Helper()
	faults := c.counts[leasetest.Unavailable] * c.workers
	for _, f := range []leasetest.Fault{leasetest.Crash, leasetest.Stop, leasetest.Pause} {
		faults += c.counts[f]
	}
	faults += c.counts[leasetest.CrashBefore.At("book")] + c.counts[leasetest.CrashAfter.At("book")]
	requeued := c.counts["requeued after crashes"]
	t.Logf("%d analyses requeued that %d faults of workers had made FAILED as crashed", requeued, faults)
	if requeued > faults/2 {
		t.Errorf("requeued %d, want at most %d: half of the faults", requeued, faults/2)
	}
}

// readJournal reads the units that were done, by analysis and token.
func readJournal(t *testing.T, file string) map[string]map[int64][]int {
	t.Helper()
	f := must.Get(os.Open(file))(t)
	defer func() { _ = f.Close() }()
	all := map[string]map[int64][]int{}
	for lines := json.NewDecoder(f); ; {
		var e entry
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if all[e.Analysis] == nil {
			all[e.Analysis] = map[int64][]int{}
		}
		all[e.Analysis][e.Token] = append(all[e.Analysis][e.Token], e.Unit)
	}
}

// judge checks one analysis: its document, the history of its writes, and its runs.
func (c *chaos) judge(t *testing.T, id string, journal map[string]map[int64][]int) {
	t.Helper()
	doc, runs := c.docs.Fields(t, id), c.of(id)
	result, _ := doc["result"].(map[string]any)
	token, _ := doc["lockToken"].(int64)
	if ready := doc["status"] == "READY" && doc["checkpoint"] == nil; !ready || result["token"] != token {
		t.Errorf("%s: document %v", id, doc)
	}
	if writes, certain := c.proxy.history(id); certain {
		c.judgeHistory(t, doc, runs, writes, journal[id])
	}

	effects, _ := doc["effects"].(map[string]any)
	act, _ := effects["charge"].(map[string]any)
	n := c.charges[id]
	if once := n > 0 && n <= 1+c.denied[id]; !once || act["state"] != analysislock.ActDone {
		t.Errorf("%s: %d charges after %d answers that there was none; act %v", id, n, c.denied[id], act)
	}

	effective := 0
	for i := range runs {
		r := &runs[i]
		if r.token == token && r.answered {
			effective++
		}
		if i > 0 && r.token == runs[i-1].token {
			t.Errorf("%s: token %d ran twice", id, r.token)
		}
		for j := range runs[i+1:] {
			if newer := &runs[i+1+j]; r.ended.After(newer.began) {
				c.judgeOverlap(t, r, newer)
			}
		}
	}
	c.counts["runs"] += len(runs)
	if c.counts["effective runs"] += effective; effective != 1 {
		t.Errorf("%s: %d effective runs, want 1: %+v", id, effective, runs)
	}
}

// judgeHistory checks the writes to a document, and the work of its runs. Each run gets the newest
// checkpoint that was committed before, only the lock's holder commits one, and the last run
// completes the work. A run that released its lock has all its units committed. Every attempt
// counts but those that were stopped or continued.
func (c *chaos) judgeHistory(t *testing.T, doc map[string]any, runs []run, writes []write, journal map[int64][]int) {
	t.Helper()
	var h proof.History
	id := runs[0].analysis
	var newest checkpoint
	attempts := int64(0)
	handed, outcomes := map[int64]checkpoint{}, map[int64]string{} // by token
	for i := range writes {
		w := &writes[i]
		h.Add(w.Write)
		switch w.Kind {
		case proof.Acquire:
			handed[h.Token] = newest
			attempts++
		case proof.Requeue:
			attempts = 0
		case proof.Release:
			outcomes[h.Token] = w.outcome
			if w.outcome == analysislock.OutcomeShuttingDown || w.outcome == analysislock.OutcomeContinued {
				attempts--
			}
		}
		if w.checkpoint == nil {
			continue
		}
		if newest = *w.checkpoint; newest.Token != h.Token {
			t.Errorf("%s: %v was committed under token %d", id, newest, h.Token)
		}
	}
	c.counts["steals"] += h.Steals
	finished := h.Finished && h.Owner == doc["finishedBy"] && h.Token == doc["lockToken"]
	if right := finished && len(h.Wrong) == 0; !right || attempts != doc["attempts"] {
		t.Errorf("%s: %v after %d attempts and the history %+v", id, doc, attempts, h)
	}

	for i := range runs {
		r, last := &runs[i], runs[i].resumed.Unit
		for _, unit := range journal[r.token] {
			if last++; unit != last {
				t.Errorf("%s: token %d did unit %d after %d", id, r.token, unit, last-1)
			}
		}
		if r.resumed != handed[r.token] {
			t.Errorf("%s: token %d got checkpoint %v, want %v", id, r.token, r.resumed, handed[r.token])
		}
		if i+1 == len(runs) {
			if last != c.units(id) {
				t.Errorf("%s: READY after %d of %d units", id, last, c.units(id))
			}
			continue
		}

		outcome, repeated := outcomes[r.token], max(0, last-runs[i+1].resumed.Unit)
		c.counts["units repeated"] += repeated
		if outcome != "" && outcome != analysislock.OutcomeLockLost {
			c.counts["runs released as "+figure(outcome)]++
			if repeated > 0 {
				t.Errorf("%s: token %d released as %s, and %d units were repeated", id, r.token, outcome, repeated)
			}
		}
	}
}

// noticeTime is how long the server may take to notice that a program has ended.
const noticeTime = 50 * time.Millisecond

// judgeOverlap judges two runs of an analysis, of which older was live when newer began. A worker
// ends its program before its lock can be acquired by another. It is excused while it was
// paused, and for as long as this machine stood still.
func (c *chaos) judgeOverlap(t *testing.T, older, newer *run) {
	t.Helper()
	both := proof.Span{From: newer.began.Sub(c.began), Until: older.ended.Sub(c.began)}
	c.counts["overlaps of runs"]++
	late := both.Uncovered(c.pauses[older.worker]...)
	before := proof.Span{From: both.From - c.ttl, Until: both.Until}
	stood := before.Until - before.From - before.Uncovered(c.stalls...)
	if late > noticeTime+stood {
		t.Errorf("%s: tokens %d and %d both ran for %v; the machine stood still for %v",
			older.analysis, older.token, newer.token, late, stood)
	}
}
