package cloudtasks

import (
	"container/list"
	"context"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/protobuf/proto"
)

// queue is one queue with its scheduler. All its fields and methods need the
// server's mu, except run.
type queue struct {
	s      *Server
	name   string              // full; never changes
	pb     *cloudtaskspb.Queue // normalized; replaced, never changed
	cancel context.CancelFunc  // ends the scheduler
	wake   chan struct{}       // tells the scheduler that something changed

	tasks    map[string]*task
	ages     list.List // of *task, in order of creation
	names    tombstones
	schedule schedule
	pace     pace
	inFlight int
	seq      uint64
	deleted  bool
	lapsed   []string // tasks that reached the retention, to be logged unlocked
}

// newQueue adds a queue to s and starts its scheduler. It needs s.mu.
func (s *Server) newQueue(pb *cloudtaskspb.Queue) *queue {
	ctx, cancel := context.WithCancel(s.ctx)
	q := &queue{s: s, name: pb.Name, cancel: cancel, wake: make(chan struct{}, 1), tasks: map[string]*task{}}
	q.configure(pb)
	s.queues[pb.Name] = q
	s.running.Go(func() { q.run(ctx) })
	return q
}

// configure makes pb, which is normalized, the queue's configuration.
func (q *queue) configure(pb *cloudtaskspb.Queue) {
	q.pb = pb
	q.pace.limit(pb.RateLimits.MaxDispatchesPerSecond, int(pb.RateLimits.MaxBurstSize))
	q.signal()
}

// change publishes the queue with one modification.
func (q *queue) change(modify func(*cloudtaskspb.Queue)) {
	pb := proto.CloneOf(q.pb)
	modify(pb)
	q.pb = pb
	q.signal()
}

// add puts a new task on the schedule.
func (q *queue) add(t *task) {
	q.seq++
	t.queue, t.seq = q, q.seq
	t.age = q.ages.PushBack(t)
	q.tasks[t.id] = t
	q.s.hold()
	q.plan(t, t.due)
}

// plan schedules the task's next attempt.
func (q *queue) plan(t *task, due time.Time) {
	t.due = due
	t.next = &dispatch{task: t, due: due}
	q.schedule.add(t.next)
	q.signal()
}

// remove ends the task: done, given up, deleted or too old. Attempts in flight go
// on, and their outcome changes nothing any more.
func (q *queue) remove(t *task, now time.Time) {
	if t.next != nil {
		q.schedule.remove(t.next)
		t.next = nil
	}
	t.gone = true
	delete(q.tasks, t.id)
	q.ages.Remove(t.age)
	if t.named {
		q.names.add(t.id, now)
	}
	q.s.release()
	q.signal()
}

// purge removes every task and every pending duplicate.
func (q *queue) purge(now time.Time) {
	for _, t := range q.tasks {
		q.remove(t, now)
	}
	for d := q.schedule.first(); d != nil; d = q.schedule.first() {
		q.schedule.remove(d)
		q.s.release()
	}
}

// delete ends the queue with its scheduler and all its tasks.
func (q *queue) delete(now time.Time) {
	q.purge(now)
	q.deleted = true
	q.cancel()
	delete(q.s.queues, q.name)
}

// repeat schedules further deliveries of a.
func (q *queue) repeat(a attempt, now time.Time, delays []time.Duration) {
	if q.deleted { // nobody would dispatch them
		return
	}
	for _, delay := range delays {
		again := a
		again.duplicate = true
		again.due = now.Add(delay)
		q.schedule.add(&dispatch{task: a.task, repeat: &again, due: again.due})
		q.s.hold()
	}
	q.signal()
}

// signal wakes the scheduler; several signals may wake it once.
func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// run dispatches what falls due until ctx ends.
func (q *queue) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		case <-timer.C:
		}
		q.s.mu.Lock()
		next := q.step(time.Now())
		lapsed := q.lapsed
		q.lapsed = nil
		q.s.mu.Unlock()
		for _, id := range lapsed {
			q.s.log.WarnContext(ctx, "task given up: too old", "queue", q.id(), "task", id)
		}
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}

// step starts all that is due and permitted at now, and returns when to look
// again unless signalled before; zero for never.
func (q *queue) step(now time.Time) time.Time {
	if q.s.closed {
		return time.Time{}
	}
	next := q.expire(now)
	for q.pb.State == cloudtaskspb.Queue_RUNNING && q.inFlight < int(q.pb.RateLimits.MaxConcurrentDispatches) {
		d := q.schedule.first()
		if d == nil {
			break
		}
		at := d.due
		if token := q.pace.earliest(); token.After(at) {
			at = token
		}
		if at.After(now) {
			if next.IsZero() || at.Before(next) {
				next = at
			}
			break
		}
		q.pace.take(now)
		q.schedule.remove(d)
		if d.repeat != nil {
			q.start(*d.repeat)
			q.s.release() // it was pending; start holds it as in flight
			continue
		}
		q.start(d.task.begin(now, false))
	}
	return next
}

// expire removes the tasks that have reached the retention at now, and returns
// when the next one will; zero if there is none.
func (q *queue) expire(now time.Time) time.Time {
	for oldest := q.ages.Front(); oldest != nil; oldest = q.ages.Front() {
		t := oldest.Value.(*task)
		if end := t.created.Add(retention); end.After(now) {
			return end
		}
		q.lapsed = append(q.lapsed, t.id)
		q.remove(t, now)
	}
	return time.Time{}
}

// start sends a in a goroutine of its own.
func (q *queue) start(a attempt) {
	q.inFlight++
	q.s.hold()
	q.s.running.Go(func() { q.s.deliver(a) })
}

// settle frees what the delivery held and decides what becomes of the task. It
// reports whether the task was given up because its retries are spent.
func (q *queue) settle(a attempt, began, ended time.Time, o outcome) (spent bool) {
	q.inFlight--
	q.signal()
	// The task holds the server busy by itself, so that it is not idle between an
	// attempt and its retry.
	defer q.s.release()
	t := a.task
	if a.duplicate || q.s.closed {
		return false
	}
	t.end(a, began, ended, o)
	switch {
	case t.gone:
	case o.success():
		q.remove(t, ended)
	case t.inFlight > 0: // RunTask made them overlap: the last to end decides
	default:
		return !q.retry(a, ended, o)
	}
	return false
}

// retry plans the attempt after a, or removes the task and returns false if it may
// have none.
func (q *queue) retry(a attempt, ended time.Time, o outcome) bool {
	t := a.task
	from := ended
	if a.forced {
		from = a.due // as documented: counted from the call of RunTask
	}
	p := t.policy()
	due := from.Add(p.backoff(t.dispatched))
	if o.retryAfter.After(due) {
		due = o.retryAfter
	}
	if p.exhausted(t.dispatched, t.firstBegan, due) {
		q.remove(t, ended)
		return false
	}
	q.plan(t, due)
	return true
}

// id returns the queue's short id; it needs no lock.
func (q *queue) id() string { return shortID(q.name) }
