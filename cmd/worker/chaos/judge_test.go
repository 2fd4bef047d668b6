package chaos

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"taskguard/internal/testing/proof"
)

func valid(h proof.History) bool { return len(h.Wrong) == 0 }

// judged judges the writes to a document. If the history without the uncertain ones
// is wrong, it looks for some of them with which it is right. An uncertain write may
// have been applied at any time after it was sent, or never.
func judged(applied, uncertain []write) (h proof.History) {
	for i := range applied {
		if applied[i].Kind != marked {
			h.Add(applied[i].Write)
		}
	}
	if valid(h) {
		return h
	}

	for i := range uncertain {
		rest := slices.Delete(slices.Clone(uncertain), i, i+1)
		for at := len(applied); at >= 0; at-- {
			if with := judged(slices.Insert(slices.Clone(applied), at, uncertain[i]), rest); valid(with) {
				return with
			}
			if at > 0 && applied[at-1].at.Before(uncertain[i].at) {
				break
			}
		}
	}
	return h
}

// finished reports whether the document is READY by the finish of its history.
func finished(doc map[string]any, h proof.History) bool {
	result, _ := doc["result"].(map[string]any)
	return valid(h) && h.Finished && doc["status"] == "READY" && doc["finishedBy"] == h.Owner && doc["lockToken"] == h.Token && result["token"] == h.Token
}

func TestAnUncertainWriteExplainsOnlyItsGap(t *testing.T) {
	t.Parallel()
	at := func(k proof.Kind, token int64, second int) write {
		now := time.Unix(int64(second), 0)
		return write{at: now, Write: proof.Write{
			Kind: k, By: fmt.Sprint(token), Owner: "o", Token: token, At: now, Expires: now.Add(10 * time.Second),
		}}
	}
	take := func(token int64, second int) write { return at(proof.Acquire, token, second) }
	free := func(token int64, second int) write { return at(proof.Release, token, second) }
	for name, c := range map[string]struct {
		applied, uncertain []write
		valid              bool
	}{
		"not needed":             {[]write{take(1, 0), free(1, 2)}, []write{take(2, 3)}, true},
		"a release":              {[]write{take(1, 0), take(2, 5)}, []write{free(1, 3)}, true},
		"a release sent later":   {[]write{take(1, 0), take(2, 5)}, []write{free(1, 6)}, false},
		"an acquisition":         {[]write{take(1, 0), free(1, 2), take(3, 20)}, []write{take(2, 3)}, true},
		"two":                    {[]write{take(1, 0), free(1, 2), take(3, 6)}, []write{free(2, 5), take(2, 3)}, true},
		"another gap than its":   {[]write{take(1, 0), take(2, 5), free(2, 6), take(4, 7)}, []write{free(1, 3)}, false},
		"a heartbeat besides":    {[]write{take(1, 0), at(proof.Heartbeat, 2, 2)}, []write{free(1, 3)}, false},
		"a finish that is final": {[]write{take(1, 0), at(proof.Finish, 1, 2), take(2, 3)}, []write{free(1, 1)}, false},
	} {
		if h := judged(c.applied, c.uncertain); valid(h) != c.valid {
			t.Errorf("%s: %q", name, h.Wrong)
		}
	}
}

// expected are the figures that must not be zero: without them the test proves
// nothing. In the short run a late commit may meet no read, and
// a kill at a booking no run.
var expected = []string{
	"kill -9", "SIGTERM", "SIGSTOP, and taken over", "unlocked", "Firestore paused", "reply lost", "commit dropped",
	"commit sent twice", "commit slow", "duplicates", "answered delayed", "recoveries", "steals",
	"answered 200 already_finishedREADY", "answered 200 locked", "answered 200 lock_lost", "runs ended after continued",
	"charges", "charges without a reply", "acts found", "acts missing", "answered done", "answered not done",
}

// judgeAll judges all analyses, prints the figures, and fails if one that is expected
// is zero.
func (c *chaos) judgeAll(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, err := range slices.Concat(c.errs, c.queue.errs) {
		t.Error(err)
	}
	journal := readJournal(t, c.journal)
	for i := range c.analyses {
		c.judge(t, id(i), journal)
	}
	t.Logf("a repeated unit had waited for at most %v when its worker was killed", c.longest.Round(time.Millisecond))

	n := len(c.proxy.uncertain) // Google's emulator has been seen to answer Internal after a pause
	if c.counts["commits of unknown outcome"] = n; n > max(1, c.analyses/20) {
		t.Errorf("of %d commits the outcome is unknown", n)
	}
	maps.Copy(c.counts, c.proxy.counts)
	maps.Copy(c.counts, c.queue.proxy.counts)
	for name, n := range c.queue.counts {
		c.counts["answered "+name] = n
	}

	wanted := expected
	if c.full {
		wanted = append(wanted, "commit applied late", "runs ended "+afterKill, "runs ended after shutting_down", "booking lost", "answered 200 retry", "answered 200 waiting",
			"kill -9 between commit and booking", "kill -9 between booking and answer")
	}
	for _, name := range wanted {
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
func (c *chaos) judge(t *testing.T, id string, journal map[acquisition][]entry) {
	t.Helper()
	doc, runs := c.docs.Fields(t, id), c.analyzer.of(id)
	applied, uncertain := c.proxy.history(id)

	h := judged(applied, uncertain)
	if !finished(doc, h) {
		t.Errorf("%s: document %v, history %+v", id, doc, h)
	}

	effective := 0
	for i := range runs {
		r := &runs[i]
		if r.token == h.Token && r.answered {
			effective++
		}
		if i > 0 && r.token == runs[i-1].token {
			t.Errorf("%s: token %d ran twice", id, r.token)
		}
		for j := range runs[i+1:] {
			if newer := &runs[i+1+j]; r.ended.After(newer.began) {
				c.overlap(t, r, newer)
			}
		}
	}

	if len(uncertain) == 0 {
		c.judgeWork(t, id, runs, applied, journal)
		c.judgeAct(t, id, applied)
		for _, wrong := range c.judgeWaits(applied) {
			t.Errorf("%s: %s", id, wrong)
		}
	}
	c.counts["steals"] += h.Steals
	c.counts["runs"] += len(runs)
	if c.counts["effective runs"] += effective; effective != 1 {
		t.Errorf("%s: %d effective runs, want 1: %+v", id, effective, runs)
	}
}

// judgeWaits checks that no attempt begins more than 2 s before its time, and that recovery
// marks none that is less than a TTL late, by Firestore's clock.
func (c *chaos) judgeWaits(applied []write) (wrong []string) {
	var next time.Time
	for i := range applied {
		w := &applied[i]
		switch {
		case w.Kind == proof.Acquire:
			if early := next.Sub(w.At); early > 2*time.Second+time.Millisecond { // they are truncated
				wrong = append(wrong, fmt.Sprintf("token %d was acquired %v before the next attempt", w.Token, early))
			}
		case w.Kind == marked && !next.IsZero():
			c.counts["next attempts that recovery booked"]++
			if late := w.at.Sub(next); late < c.ttl {
				wrong = append(wrong, fmt.Sprintf("recovery marked it %v after the next attempt was due, within a TTL", late))
			}
		}
		if w.next != nil {
			next = *w.next
		}
	}
	return wrong
}

// noticeTime is how long the server may take to notice that a program has ended, and a
// worker to send a commit that is due.
const noticeTime = 50 * time.Millisecond

// overlap judges two runs of an analysis, of which older was live when newer began. A
// worker ends its program before its lock can be acquired by another. It is excused while it
// was paused or the operator had broken its lock, and for as long as this machine
// stood still.
func (c *chaos) overlap(t *testing.T, older, newer *run) {
	t.Helper()
	both := proof.Span{From: newer.began.Sub(c.began), Until: older.ended.Sub(c.began)}
	what := "overlaps of a run that was not paused"
	excuses := c.pauses[older.worker]
	if proof.Overlap([]proof.Span{both}, excuses) > 0 {
		what = "overlaps of a paused worker's run"
	}
	if broken, ok := c.breaks[acquisition{older.analysis, older.token}]; ok {
		what, excuses = "overlaps of an unlocked run", append(slices.Clone(excuses), broken)
	}
	c.counts[what]++

	var late time.Duration
	for _, s := range both.Without(excuses...) {
		late += s.Until - s.From
	}
	stood := proof.Overlap([]proof.Span{{From: both.From - c.ttl, Until: both.Until}}, c.stalls)
	if late > noticeTime+stood {
		t.Errorf("%s: the run of token %d was live for %v together with that of token %d; the machine stood still for %v",
			older.analysis, older.token, late, newer.token, stood)
	}
}

func TestAnEarlyAttemptIsFound(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	at := func(k proof.Kind, second int, next time.Time) write {
		now := start.Add(time.Duration(second) * time.Second)
		return write{at: now, next: &next, Write: proof.Write{Kind: k, At: now}}
	}
	due := start.Add(10 * time.Second)
	for name, c := range map[string]struct {
		history []write
		wrong   int
	}{
		"in time":                    {[]write{at(proof.Release, 1, due), at(proof.Acquire, 8, time.Time{}), at(proof.Acquire, 9, time.Time{})}, 0},
		"early":                      {[]write{at(proof.Release, 1, due), at(proof.Acquire, 7, time.Time{})}, 1},
		"an operator has unlocked":   {[]write{at(proof.Release, 1, due), at(proof.Unlock, 2, time.Time{}), at(proof.Acquire, 3, time.Time{})}, 0},
		"recovery":                   {[]write{at(proof.Release, 1, due), at(marked, 13, due.Add(time.Hour)), at(proof.Acquire, 14, time.Time{})}, 1},
		"recovery before it is late": {[]write{at(proof.Release, 1, due), at(marked, 12, due)}, 1},
	} {
		if wrong := (&chaos{size: size{ttl: 3 * time.Second}, counts: map[string]int{}}).judgeWaits(c.history); len(wrong) != c.wrong {
			t.Errorf("%s: %q, want %d", name, wrong, c.wrong)
		}
	}
}
