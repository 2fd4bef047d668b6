package proof

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// mark is a checkpoint of the simulated work. The zero mark is none.
type mark struct {
	units int   // of the work, that are done
	token int64 // of the run that has reported it
	n     int   // which of that run's checkpoints it is, from 1
}

const markFormat = "%d units, checkpoint %d of token %d"

func (k mark) String() string { return fmt.Sprintf(markFormat, k.units, k.n, k.token) }

// tooLarge reports whether the store refuses the mark.
func (k mark) tooLarge() bool { return k.n%9 == 8 }

// markOf returns the mark of a checkpoint, or of its value.
func markOf(value any) (k mark) {
	if c, ok := value.(*analysislock.Checkpoint); ok && c != nil {
		value = c.Value
	}
	if s, ok := value.(string); ok {
		if _, err := fmt.Sscanf(s, markFormat, &k.units, &k.n, &k.token); err != nil {
			panic(err)
		}
	}
	return k
}

// work is the part of a run that a later run can continue.
type work struct {
	handed   mark // to the run
	units    int  // of the work, that are done
	reported mark // the newest
	written  mark // the newest of this run that the store has applied
	awaited  bool // a synchronous checkpoint has returned without an error
	blocked  bool // in a synchronous checkpoint
}

// hand begins the work of p's run, and checks that its checkpoint is the one that the
// record had when its lock was acquired, or has had since.
func (m *model) hand(p *caller, job orchestrator.Job) (w work) {
	var value any
	if job.Resume != nil {
		if err := json.Unmarshal(job.Resume, &value); err != nil {
			m.fail("%s was handed %q: %v", p, job.Resume, err)
		}
		m.count("checkpoints handed out")
	}
	w.handed = markOf(value)
	w.units = w.handed.units
	r := m.records[p.analysis]
	switch {
	case !slices.ContainsFunc(r.states[p.acquired:], func(s state) bool { return s.mark == w.handed }):
		m.fail("%s was handed %v, want %v", p, w.handed, r.states[p.acquired].mark)
	case r.holder == p && w.units < r.safe:
		m.fail("%s was handed %v, although %d units were committed", p, w.handed, r.safe)
	}
	return w
}

// workOf encodes what an attempt is given.
func workOf(id string, k mark) analysislock.Work {
	w := analysislock.Work{Input: json.RawMessage(fmt.Sprintf("%q", id))}
	if k != (mark{}) {
		w.Checkpoint = json.RawMessage(fmt.Sprintf("%q", k))
	}
	return w
}

// doUnit records that p's run has done the next unit of its work.
func (m *model) doUnit(p *caller) {
	r := m.records[p.analysis]
	p.run.units++
	m.count("units done")
	if p.run.units <= r.done {
		m.count("units repeated")
	}
	r.done = max(r.done, p.run.units)
}

// nextMark returns the run's next checkpoint, which it reports now.
func (m *model) nextMark(p *caller) mark {
	w := &p.run.work
	w.reported = mark{w.units, p.token, w.reported.n + 1}
	m.count("checkpoints reported")
	return w.reported
}

// reportMark reports a checkpoint without waiting for its commit.
func (m *model) reportMark(p *caller, job orchestrator.Job) {
	var k mark
	m.locked(func() { k = m.nextMark(p) })
	job.Reporter.Report(orchestrator.Report{Checkpoint: &orchestrator.Checkpoint{Value: k.String()}})
}

// awaitMark reports a checkpoint, and waits for its commit.
func (m *model) awaitMark(ctx context.Context, p *caller, job orchestrator.Job) {
	var k mark
	m.locked(func() { k, p.run.blocked = m.nextMark(p), true })
	err := job.Checkpoint(ctx, k.String())
	m.locked(func() {
		p.run.blocked = false
		m.note("%s: %v: %v", p, k, err)
		if err == nil {
			p.run.awaited = true
			m.count("checkpoints awaited")
			if p.run.written.n < k.n {
				m.fail("%s: %v has returned before it was committed", p, k)
			}
		}
	})
}

// flushTime is the time from the end of a run in which a worker tries to commit its last
// checkpoint before it counts the attempt.
const flushTime = 5 * time.Second

// wrongMark returns what is wrong with the checkpoint that a write leaves.
func (m *model) wrongMark(r *record, next analysis, after mark, k Kind, p *caller) string {
	before, finish := r.mark, next.Status
	switch {
	case k == Finish && finish == analysislock.Ready, k == Requeue && p.fresh:
		if r.done, r.safe = 0, 0; after != (mark{}) {
			return fmt.Sprintf("kept %v", after)
		}
		return ""
	case after != before && k != Heartbeat && k != Release && k != Finish:
		return fmt.Sprintf("replaced %v by %v", before, after)
	case after != before && (p.run == nil || after.token != p.token):
		return fmt.Sprintf("wrote %v of another run", after)
	case after != before && before.token == after.token && after.n < before.n:
		return fmt.Sprintf("replaced %v by the older %v", before, after)
	case after != before:
		p.run.written = after
		r.safe = max(r.safe, after.units)
		m.count("checkpoints committed")
	}
	if k == Release && codeOf(next) == "run_timeout" && p.run != nil && (p.run.awaited || after.token == p.token && m.since()-p.run.ended < flushTime) {
		return fmt.Sprintf("counted an attempt that has committed %v", after)
	}
	if (k == Release || k == Finish) && p.run != nil && after != p.run.reported && p.run.reported.n > 0 &&
		!p.run.reported.tooLarge() && outcomeOf(next) != analysislock.OutcomeLockLost {
		return fmt.Sprintf("left %v without %v", after, p.run.reported)
	}
	return ""
}

// past is an entry that a history must have.
type past struct {
	number  int
	token   int64
	outcome string // empty: it has not ended, or its worker has crashed
}

// wrongHistory returns what is wrong with the history that a write leaves.
func (m *model) wrongHistory(r *record, next analysis, k Kind) string {
	before, after := r.doc.Lock, next.Lock
	if k == Acquire {
		r.past = append(r.past, past{after.Attempts, after.Token, ""})
	} else if n := len(r.past); n > 0 && r.past[n-1].token == before.Token && r.past[n-1].outcome == "" {
		outcome := ""
		switch got := outcomeOf(next); k {
		case Finish:
			outcome = map[string]string{analysislock.Ready: analysislock.OutcomeReady, analysislock.Failed: analysislock.OutcomeFailed}[next.Status]
		case Unlock:
			outcome = analysislock.OutcomeLockLost
		case Cancel:
			outcome = analysislock.OutcomeCancelled
		case Release: // inconsistency judges those that take back the attempt
			if got == analysislock.OutcomeRetry || got == analysislock.OutcomeLockLost || after.Attempts < before.Attempts {
				outcome = got
			}
		}
		if r.past[n-1].outcome = outcome; outcome != "" {
			m.count("ended " + outcome + " " + codeOf(next))
		}
	}
	want := r.past[max(0, len(r.past)-10):]
	if !slices.EqualFunc(want, next.History, func(e past, a analysislock.Attempt) bool {
		return e == past{a.Number, a.Token, a.Outcome} && a.EndedAt.IsZero() == (a.Outcome == "") && !a.StartedAt.IsZero()
	}) {
		return fmt.Sprintf("wrote the history %+v, want %+v", next.History, want)
	}
	return ""
}

// lastOf returns the last entry of the history.
func lastOf(d analysis) (a analysislock.Attempt) {
	if n := len(d.History); n > 0 {
		a = d.History[n-1]
	}
	return a
}

func outcomeOf(d analysis) string { return lastOf(d).Outcome }
func codeOf(d analysis) string    { return lastOf(d).Code }
