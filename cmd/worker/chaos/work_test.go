package chaos

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"taskguard/internal/testing/proof"
	"taskguard/lease/analysislock"
)

// checkpointInterval is the workers' CHECKPOINT_INTERVAL. In full it is shorter than the
// heartbeat.
const checkpointInterval = time.Second

// forever is longer than any test.
const forever = 24 * time.Hour

// ending is when and how a worker was ended.
type ending struct {
	killed bool // else stopped
	at     time.Duration
}

// readJournal reads the units that were done, by run.
func readJournal(t *testing.T, file string) map[acquisition][]entry {
	t.Helper()
	f, err := os.Open(file)
	check(t, err)
	defer func() { _ = f.Close() }()
	all := map[acquisition][]entry{}
	for lines := json.NewDecoder(f); ; {
		var e entry
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		key := acquisition{e.Analysis, e.Token}
		all[key] = append(all[key], e)
	}
}

// stored is what the history of an analysis shows of its checkpoints.
type stored struct {
	handed   map[int64]checkpoint // by token: the newest when it was acquired
	outcomes map[int64]string     // by token: of the release
	attempts int                  // that count: all but the refunded ones
}

// storedBy follows the checkpoints that were committed. wrong names those of a run that
// did not hold the lock.
func storedBy(applied []write) (s stored, wrong []checkpoint) {
	s.handed, s.outcomes = map[int64]checkpoint{}, map[int64]string{}
	var newest checkpoint
	var token int64
	for i := range applied {
		w := &applied[i]
		switch w.Kind {
		case proof.Acquire:
			token = w.Token
			s.handed[token] = newest
			s.attempts++
		case proof.Requeue:
			s.attempts = 0
		case proof.Finish:
			s.outcomes[token] = w.outcome // for one that follows after an answer
		case proof.Release:
			s.outcomes[token] = w.outcome
			if refunded(w.outcome) {
				s.attempts--
			}
		}
		if w.checkpoint == nil {
			continue
		}
		if newest = *w.checkpoint; newest.Token != token {
			wrong = append(wrong, newest)
		}
	}
	return s, wrong
}

func refunded(outcome string) bool {
	return outcome == analysislock.OutcomeShuttingDown || outcome == analysislock.OutcomeContinued
}

// judgeWork checks the units of an analysis, and counts those that were repeated. Each
// run gets the newest checkpoint that was committed, and the last run completes the work.
// A run that released its lock has all its units committed. Every attempt counts but those.
func (c *chaos) judgeWork(t *testing.T, id string, runs []run, applied []write, journal map[acquisition][]entry) {
	t.Helper()
	was, wrong := storedBy(applied)
	if len(wrong) > 0 {
		t.Errorf("%s: checkpoints of runs that did not hold the lock: %v", id, wrong)
	}
	if doc := c.docs.Fields(t, id); doc["attempts"] != int64(was.attempts) || doc["checkpoint"] != nil {
		t.Errorf("%s: attempts %v, want %d; checkpoint %v, want none", id, doc["attempts"], was.attempts, doc["checkpoint"])
	}

	all := c.units(id)
	c.counts["units"] += all
	for i := range runs {
		r := &runs[i]
		done, last := journal[acquisition{id, r.token}], r.resumed.Unit
		for j := range done {
			if last++; done[j].Unit != last {
				t.Errorf("%s: token %d did unit %d after %d", id, r.token, done[j].Unit, last-1)
			}
		}
		c.counts["units done"] += len(done)
		if r.resumed != was.handed[r.token] {
			t.Errorf("%s: token %d got the checkpoint %v, but %v was committed", id, r.token, r.resumed, was.handed[r.token])
		}
		if i+1 < len(runs) {
			c.repeated(t, r, runs[i+1].resumed.Unit, done, was.outcomes[r.token])
		} else if last != all {
			t.Errorf("%s: READY after %d of %d units", id, last, all)
		}
	}
}

// repeated judges the units of a run after the unit that the next run resumed from. None
// is allowed after a release. Else those are allowed that the worker could not commit.
func (c *chaos) repeated(t *testing.T, r *run, resumed int, done []entry, outcome string) {
	t.Helper()
	n := max(0, r.resumed.Unit+len(done)-resumed)
	how, until := c.unreleased(r)
	if released := outcome != "" && outcome != analysislock.OutcomeLockLost; released {
		how = "after " + outcome
		if n > 0 {
			t.Errorf("%s: token %d released its lock as %s, and %d units were repeated", r.analysis, r.token, outcome, n)
		}
	} else if n > 0 {
		c.judgeDelay(t, r, done[len(done)-n], how, until)
	}
	c.counts["runs ended "+how]++
	c.counts["units repeated "+how] += n
}

// How a run ended whose lock was not released.
const (
	afterKill    = "after kill -9"
	afterSIGTERM = "after SIGTERM without a release"
	afterPause   = "after a pause of the worker"
	afterUnlock  = "after an unlock"
	afterLoss    = "after the lock was lost"
)

// unreleased returns how and when a run ended whose lock was not released.
func (c *chaos) unreleased(r *run) (how string, until time.Duration) {
	live := proof.Span{From: r.began.Sub(c.began), Until: r.ended.Sub(c.began)}
	end := c.ends[r.worker]
	switch _, broken := c.breaks[acquisition{r.analysis, r.token}]; {
	case broken:
		return afterUnlock, live.Until
	case proof.Overlap([]proof.Span{live}, c.pauses[r.worker]) > 0:
		return afterPause, live.Until
	case end.at <= live.From || end.at >= live.Until:
		return afterLoss, live.Until
	case end.killed:
		return afterKill, end.at
	}
	return afterSIGTERM, end.at
}

// judgeDelay fails the test if the worker should have committed a unit before its run
// ended: if the unit had waited for longer than checkpointInterval, not counting the
// time when the worker tried to commit, or was paused, or this machine stood still.
func (c *chaos) judgeDelay(t *testing.T, r *run, unit entry, how string, until time.Duration) {
	t.Helper()
	both := proof.Span{From: unit.At.Sub(c.began), Until: until}
	tried := c.proxy.tried(r, c.began)
	var idle time.Duration
	for _, s := range both.Without(slices.Concat(tried, c.pauses[r.worker])...) {
		idle += s.Until - s.From
	}

	if how == afterKill {
		c.longest = max(c.longest, both.Until-both.From)
	}
	if how == afterSIGTERM && proof.Overlap([]proof.Span{{From: until, Until: forever}}, tried) == 0 {
		t.Errorf("%s: token %d did not try to release its lock", r.analysis, r.token)
	}
	if stood := proof.Overlap([]proof.Span{both}, c.stalls); idle > checkpointInterval+noticeTime+stood {
		t.Errorf("%s: unit %d of token %d, which ended %s, had waited %v, and %v of that no commit was tried; the machine stood still for %v",
			r.analysis, unit.Unit, r.token, how, both.Until-both.From, idle, stood)
	}
}

// tried returns when a worker tried to commit to a run's analysis: from a call that
// failed until the next that did not.
func (p *proxy) tried(r *run, began time.Time) (spans []proof.Span) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.commits {
		if c.caller != r.worker || c.doc != r.analysis {
			continue
		}
		s := proof.Span{From: c.from.Sub(began), Until: forever}
		for _, next := range p.commits {
			if next.succeeded && next.caller == c.caller && next.doc == c.doc && !next.from.Before(c.from) {
				s.Until = min(s.Until, next.until.Sub(began))
			}
		}
		spans = append(spans, s)
	}
	return spans
}

func TestASupersededCheckpointIsFound(t *testing.T) {
	t.Parallel()
	take := func(token int64) write { return write{Write: proof.Write{Kind: proof.Acquire, Token: token}} }
	report := func(unit int, token int64) write {
		return write{Write: proof.Write{Kind: proof.Heartbeat}, checkpoint: &checkpoint{unit, token}}
	}
	last := report(9, 2)
	last.Kind, last.outcome = proof.Release, analysislock.OutcomeContinued
	got, wrong := storedBy([]write{take(1), report(5, 1), take(2), report(6, 1), report(8, 2), last, take(3)})
	want := stored{
		handed:   map[int64]checkpoint{1: {}, 2: {5, 1}, 3: {9, 2}},
		outcomes: map[int64]string{2: analysislock.OutcomeContinued}, attempts: 2,
	}
	if !reflect.DeepEqual(got, want) || !slices.Equal(wrong, []checkpoint{{6, 1}}) {
		t.Errorf("got %+v, wrong %v; want %+v, wrong [{6 1}]", got, wrong, want)
	}
}
