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

// work returns what an attempt is given, as JSON.
func (g given) work(id string) analysislock.Work {
	w := analysislock.Work{Input: json.RawMessage(fmt.Sprintf("%q", id)), Acts: g.acts}
	if g.mark != (mark{}) {
		w.Checkpoint = json.RawMessage(fmt.Sprintf("%q", g.mark))
	}
	return w
}

// work is the part of a run that a later run can continue.
type work struct {
	units    int  // of the work, that are done
	reported mark // the newest
	written  mark // the newest of this run that the store has applied
	awaited  bool // a synchronous checkpoint has returned without an error
	blocked  bool // in a synchronous checkpoint
}

// hand begins the work of p's run, and checks that its checkpoint is the one that the
// record had when its lock was acquired, or has had since. So no run repeats a unit whose
// checkpoint was committed.
func (m *model) hand(p *caller, job orchestrator.Job) work {
	var value any
	if job.Resume != nil {
		if err := json.Unmarshal(job.Resume, &value); err != nil {
			m.fail("%s was handed %q: %v", p, job.Resume, err)
		}
		m.count("checkpoints handed out")
	}
	handed, r := markOf(value), m.records[p.analysis]
	for _, other := range p.on.callers {
		beside := other != p && other.running()
		if alone := p.alone || other.alone; beside && alone {
			m.fail("%s and %s run together, but one of them alone", p, other)
		}
	}
	if !slices.ContainsFunc(r.states[p.acquired:], func(s state) bool { return s.mark == handed }) {
		m.fail("%s was handed %v, want %v", p, handed, r.states[p.acquired].mark)
	}
	return work{units: handed.units}
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
	before := r.mark
	switch {
	case k == Finish && next.Status == analysislock.Ready, k == Requeue && p.fresh:
		if after != (mark{}) {
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
		m.count("checkpoints committed")
	}
	if ends := k == Release || k == Finish; !ends || p.run == nil {
		return ""
	}
	committed := p.run.awaited || after.token == p.token && m.since()-p.run.ended < flushTime
	if counted := k == Release && lastOf(next).Code == "run_timeout"; counted && committed {
		return fmt.Sprintf("counted an attempt that has committed %v", after)
	}
	last := p.run.reported
	kept := last.n > 0 && !last.tooLarge() && outcomeOf(next) != analysislock.OutcomeLockLost
	if kept && after != last {
		return fmt.Sprintf("left %v without %v", after, last)
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
