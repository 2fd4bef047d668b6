package proof

import (
	"time"

	"taskguard/internal/delivery"
	"taskguard/lease/leasetest"
)

// deliver dispatches a task until it is acknowledged.
func (w *simulation) deliver(t *task) {
	r := w.seed.of("task", t.alias)
	in := max(0, t.At.Sub(time.Now().Add(w.queueSkew)))
	if r.chance(w.p.dispatch) && !w.quiet() {
		w.locked(func() { w.count(leasetest.DeliveredLate) })
		in += r.between(0, 2*w.p.policy.TTL)
	}
	if r.chance(w.p.dispatch+w.p.twice) && !w.quiet() {
		again := in + r.between(0, w.p.policy.TTL)
		w.going.Go(func() {
			if w.pass(again) {
				w.locked(func() { w.count(leasetest.DeliveredTwice) })
				w.dispatch(t)
			}
		})
	}

	backoff := w.retryMin // the queue's own is like the workers'
	for w.pass(in + r.between(time.Millisecond, time.Second)) {
		if w.dispatch(t) {
			return
		}
		in, backoff = backoff, min(2*backoff, w.retryMax)
	}
}

// dispatch makes one delivery of a task and reports whether the task is done.
func (w *simulation) dispatch(t *task) (done bool) {
	var i *instance
	var p *caller
	var r *draws
	w.locked(func() {
		t.sent++
		t.inFlight++
		t.tried = w.now()
		r = w.seed.of("dispatch", t.alias, t.sent)
		if i = w.live(r.IntN(len(w.slots))); i != nil && !t.done {
			w.count("deliveries")
			p = w.join(i, t)
		}
		done = t.done
	})
	defer w.locked(func() { t.inFlight-- })
	if p == nil {
		return done
	}

	began := w.since()
	lost := r.chance(w.p.dispatch) && !w.quiet()
	back := r.between(0, 50*time.Millisecond)
	answers := make(chan delivery.Result, 1)
	w.going.Go(func() {
		var a delivery.Result
		if ok := w.send(i, p, func() { a = i.deliver(p) }); ok && !lost {
			time.Sleep(back)
			answers <- a
		}
	})
	dead := i.dead
	if r.chance(0.5) { // the queue does not notice that the worker has died: the deadline passes
		dead = nil
	}
	over := time.NewTimer(t.Deadline + r.between(0, time.Millisecond))
	defer over.Stop()
	select {
	case a := <-answers:
		w.locked(func() {
			w.judgeAnswer(p, a, w.excused(t.AnalysisID, began))
			done = t.done
		})
		return done
	case <-dead:
	case <-over.C:
		w.locked(func() { w.count("dispatch deadlines passed") })
	}

	w.locked(func() {
		if lost {
			w.count(leasetest.AnswerLost)
		}
		if gone := w.p.purge && i.crashed; gone && !t.done {
			t.done = true
			w.count(leasetest.TaskLost)
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
