package simulate

import (
	"context"
	"errors"
	"fmt"

	"time"

	"taskguard/worker/taskqueue"
)

// queue is the one queue of a world: at least once, in no order.
type queue struct {
	w     *world
	names map[string]time.Time // until when each is taken; zero: its task is there
	alias map[string]string    // of names, which may be made of an owner and so of chance
	tasks []*task
}

type task struct {
	name, alias, id string
	deadline        time.Duration
	done            bool
	sent            int
}

// called is the name of a task of id by the order of events.
func (q *queue) called(name, id string) string {
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	if q.alias[name] == "" {
		q.alias[name] = fmt.Sprintf("%s#%d", id, len(q.alias))
	}
	return q.alias[name]
}

var errUnavailable = errors.New("queue unavailable")

// add makes a task, to be dispatched at a time by the queue's own clock.
func (q *queue) add(name, id string, at time.Time, deadline time.Duration) (already bool) {
	alias := q.called(name, id)
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	now := time.Now().Add(q.w.p.queueSkew)
	if until, taken := q.names[name]; taken && (until.IsZero() || now.Before(until)) {
		return true
	}
	q.names[name] = time.Time{}
	t := &task{name: name, alias: alias, id: id, deadline: deadline}
	q.tasks = append(q.tasks, t)
	q.w.tell("queue: %s in %v", alias, max(0, at.Sub(now)))
	q.w.going.Go(func() { q.deliver(t, max(0, at.Sub(now))) })
	return false
}

// pending counts an analysis's tasks, or all, beside one. The mutex is held.
func (q *queue) pending(id string, beside *task) (n int) {
	for _, t := range q.tasks {
		if !t.done && t != beside && (id == "" || t.id == id) {
			n++
		}
	}
	return n
}

// deliver dispatches a task until it is acknowledged.
func (q *queue) deliver(t *task, wait time.Duration) {
	r := q.w.dice.of("task", t.alias)
	if r.chance(q.w.p.dispatch) && !q.w.calm() {
		q.w.count(lateDispatch)
		wait += r.between(0, 2*q.w.p.policy.TTL)
	}
	if r.chance(q.w.p.dispatch) && !q.w.calm() {
		q.w.count(duplicate)
		again := wait + r.between(0, q.w.p.policy.TTL)
		q.w.going.Go(func() {
			if q.w.pass(again) {
				q.dispatch(t)
			}
		})
	}
	backoff := q.w.p.firstPause
	for q.w.pass(wait + r.between(time.Millisecond, time.Second)) {
		if q.dispatch(t) {
			return
		}
		wait, backoff = backoff, min(2*backoff, q.w.p.longPause)
	}
}

// dispatch is one delivery; done: no further is needed.
func (q *queue) dispatch(t *task) (done bool) {
	q.w.mu.Lock()
	t.sent++
	done, n := t.done, t.sent
	if !done {
		q.w.figures["deliveries"]++
	}
	q.w.mu.Unlock()
	if done {
		return true
	}
	began := q.w.now()
	r := q.w.dice.of("dispatch", t.alias, n)
	i := q.w.slots[r.IntN(len(q.w.slots))].instance()
	if i == nil {
		return false
	}
	lost := r.chance(q.w.p.dispatch) && !q.w.calm()
	noticed := r.chance(0.5) // that the worker has died; else the deadline passes
	back := r.between(0, 50*time.Millisecond)
	answer := make(chan answered, 1)
	q.w.going.Go(func() {
		if a, ok := i.post("/internal/tasks/analysis", t.name, fmt.Sprintf(`{"analysis_id":%q}`, t.id)); ok && !lost {
			time.Sleep(back)
			answer <- a
		}
	})
	dead := i.dead
	if !noticed {
		dead = nil
	}
	over := time.NewTimer(t.deadline + r.between(0, time.Millisecond))
	defer over.Stop()
	select {
	case a := <-answer:
		return q.answered(t, a, began)
	case <-dead:
	case <-over.C:
		q.w.count(outOfDispatch)
	}
	if lost {
		q.w.count(answerLost)
	}
	return q.purged(t, i)
}

// purged: in some seeds the crash takes the task along.
func (q *queue) purged(t *task, i *instance) bool {
	if !i.isDead() {
		return false
	}
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	if q.w.p.purge && !t.done {
		t.done = true
		q.w.figures[string(purged)]++
	}
	return t.done
}

// answered takes a worker's answer to a delivery that began then.
func (q *queue) answered(t *task, a answered, began time.Duration) (done bool) {
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	q.w.tell("queue: %s: %d %s %s", t.alias, a.code, a.Reason, a.Status)
	if a.code < 200 || a.code > 299 {
		return t.done
	}
	switch a.Reason {
	case "locked":
		q.w.figures["follow-ups"]++
	case "shutting_down":
		q.w.figures["replacements booked"]++
	}
	d := q.w.store.records[t.id]
	switch {
	case d.doc.Lock.Finished, q.pending(t.id, t) > 0:
	case q.w.excused(t.id, began):
		q.w.figures["acknowledgements excused by an operator"]++
	default:
		q.w.fail("%s: answered %d %s, and neither is it finished nor is another delivery booked", t.id, a.code, a.Reason)
	}
	if a.Status == "READY" && a.LockToken != 0 && !d.done(a.LockToken) {
		q.w.fail("%s: said to be READY by token %d, which has not finished it", t.id, a.LockToken)
	}
	if !t.done {
		t.done = true
		q.names[t.name] = time.Now().Add(q.w.p.queueSkew + 24*time.Hour)
	}
	return true
}

func (r *record) done(token int64) bool {
	for _, t := range r.finishes {
		if t == token {
			return true
		}
	}
	return false
}

// booker is somebody's way to the queue.
type booker struct {
	q    *queue
	name string
	from *instance // nil: an operator's
}

// Book tries until ctx ends, as the real client does.
func (b booker) Book(ctx context.Context, t taskqueue.Task) (already bool, err error) {
	w, alias := b.q.w, b.q.called(t.Name, t.AnalysisID)
	for n := 0; ; n++ {
		r := w.dice.of("booking", b.name, alias, n, w.now())
		if b.from != nil && !b.from.alive("books", alias, n) {
			<-ctx.Done()
			return false, ctx.Err()
		}
		time.Sleep(r.between(time.Millisecond, 50*time.Millisecond))
		switch bad := !w.calm() && r.chance(2*w.p.booking); {
		case bad && r.chance(0.5):
			w.count(bookingDark)
		case bad:
			w.count(bookingLost)
			b.q.add(t.Name, t.AnalysisID, t.At, t.Deadline)
		default:
			already = b.q.add(t.Name, t.AnalysisID, t.At, t.Deadline)
			if already {
				w.count(nameTaken)
			}
			time.Sleep(r.between(time.Millisecond, 50*time.Millisecond))
			if b.from == nil || b.from.alive("booked", alias, n) {
				return already, nil
			}
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("%w: %w", errUnavailable, ctx.Err())
		case <-time.After(r.between(50*time.Millisecond, 2*time.Second)):
		}
	}
}
