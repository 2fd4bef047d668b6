package proof

import (
	"time"

	"taskguard/internal/taskqueue"
)

// add adds a task and reports whether its name was free.
func (w *simulation) add(t taskqueue.Task, by *caller) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	made := w.book(t, by)
	if made == nil {
		return false
	}
	in := max(0, t.At.Sub(time.Now().Add(w.queueSkew)))
	w.going.Go(func() { w.deliver(made, in) })
	return true
}

// deliver dispatches a task until it is acknowledged.
func (w *simulation) deliver(t *task, in time.Duration) {
	r := w.seed.of("task", t.alias)
	if r.chance(w.p.dispatch) && !w.quiet() {
		w.locked(func() { w.count("dispatched late") })
		in += r.between(0, 2*w.p.policy.TTL)
	}

	if r.chance(w.p.dispatch+w.p.twice) && !w.quiet() {
		w.locked(func() { w.count("dispatched twice") })
		again, r := in+r.between(0, w.p.policy.TTL), w.seed.of("again", t.alias)
		w.going.Go(func() {
			if w.permit(again, r) {
				w.dispatch(t)
			}
		})
	}

	backoff := w.p.minBackoff
	for w.permit(in+r.between(time.Millisecond, time.Second), r) {
		if w.dispatch(t) {
			return
		}
		in, backoff = backoff, min(2*backoff, w.p.maxBackoff)
	}
}

// permit waits for in and then until the queue's rate permits a dispatch. It reports false
// if the simulation has ended.
func (w *simulation) permit(in time.Duration, r *draws) bool {
	for w.pass(in) {
		w.mu.Lock()
		in = 0
		if w.throttle != nil {
			in = time.Until(w.throttle.Take(time.Now()))
		}
		if in > 0 {
			w.count("dispatches throttled")
		}
		w.mu.Unlock()
		if in <= 0 {
			return true
		}
		in += r.between(1, time.Millisecond) // those that wait ask one after another
	}
	return false
}

// answered counts an answer for the queue's rate; zero: there was none. The caller holds
// the mutex.
func (w *simulation) answered(code int) {
	if w.throttle != nil {
		w.throttle.Answered(time.Now(), code)
	}
}

// dispatch makes one delivery of a task and reports whether the task is done.
func (w *simulation) dispatch(t *task) (done bool) {
	var i *instance
	var p *caller
	var r *draws
	w.locked(func() {
		if done = t.done; done {
			return
		}
		t.sent++
		t.inFlight++
		t.tried = w.now()
		w.count("deliveries")
		r = w.seed.of("dispatch", t.alias, t.sent)
		if i = w.slots[r.IntN(len(w.slots))].current; i != nil {
			p = w.join(i, t)
		} else {
			w.answered(0)
		}
	})
	if done {
		return true
	}
	defer w.locked(func() { t.inFlight-- })
	if i == nil {
		return false
	}

	began := w.since()
	lost := r.chance(w.p.dispatch) && !w.quiet()
	noticed := r.chance(0.5) // the queue notices that the worker has died; else the deadline passes
	back := r.between(0, 50*time.Millisecond)
	answers := make(chan answer, 1)
	w.going.Go(func() {
		if a, ok := w.send(i, p, func() answer { return i.deliver(p) }); ok && !lost {
			time.Sleep(back)
			answers <- a
		}
	})

	dead := i.dead
	if !noticed {
		dead = nil
	}

	over := time.NewTimer(t.Deadline + r.between(0, time.Millisecond))
	defer over.Stop()
	select {
	case a := <-answers:
		w.locked(func() {
			w.answered(a.code)
			w.judgeAnswer(p, a, w.excused(t.AnalysisID, began))
			done = t.done
		})
		return done
	case <-dead:
	case <-over.C:
		w.locked(func() { w.count("dispatch deadlines passed") })
	}

	w.locked(func() {
		if w.answered(0); lost {
			w.count("answers lost")
		}
		if w.p.purge && i.crashed && !t.done {
			t.done = true
			w.count("tasks lost with a crash")
		}
		done = t.done && i.crashed
	})
	return done
}

// excused reports whether the queue may be empty when a delivery that started then is
// acknowledged: an operator has not booked its delivery yet, or has opened the
// analysis by a write that the store applied after the operator had given up. The
// caller holds the mutex.
func (w *simulation) excused(id string, began time.Duration) bool {
	landed, late := w.landed[id]
	return w.operating[id] > 0 || late && began <= landed
}
