package explore

import "time"

// drain brings the execution to its end: no fault any more, runs succeed, each
// task is delivered, to a worker of its own, and again when it is refused.
func (w *world) drain() {
	w.late, w.left = nil, budget{}
	for range 400 {
		if w.bad != "" || (!w.drainCalls() && !w.drainTask()) {
			return
		}
	}
	w.violated("no end is reached: %s", show(w.doc))
}

// drainCalls lets the first that waits go on.
func (w *world) drainCalls() bool {
	for _, p := range w.parties {
		switch {
		case p.host.crashed:
		case p.pending != nil:
			w.note("%s: %s", p, p.pending.kind)
			w.grant(p.pending)
			return true
		case p.body.runs():
			w.note("%s: the run ends", p)
			w.tell(p, 0, p.body.ctx.Err())
			return true
		}
	}
	return false
}

// drainTask delivers the next task, or lets time pass until one is due. It
// reports false once nothing is left.
func (w *world) drainTask() bool {
	if !w.queue.left() {
		if !w.doc.Lock.Finished {
			w.violated("lost: %s, and no task is left", show(w.doc))
		}
		return false
	}
	next := time.Time{}
	for _, t := range w.queue.tasks {
		due := t.at
		if again := t.tried.Add(time.Minute); !t.tried.IsZero() && again.After(due) {
			due = again
		}
		switch {
		case t.gone:
		case !w.now().Before(due):
			w.note("task %.6s to a new worker", t.name)
			t.tried = w.now()
			w.dispatch(t, w.newHost())
			return true
		case next.IsZero() || due.Before(next):
			next = due
		}
	}
	w.note("time passes: a task is due")
	w.pass(time.Until(w.local(next)))
	w.settle()
	return true
}
