package cloudtasks

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// queue is one queue with its scheduler. The server's mu guards its fields, and is held
// by the callers of its methods other than run.
type queue struct {
	s    *Server
	pb   *cloudtaskspb.Queue // with all defaults; only its state changes
	wake chan struct{}       // filled when the schedule must be checked again

	tasks    map[string]*task
	refused  map[string]time.Time // the end of the time in which the name of an ended task is refused
	schedule []*dispatch          // the earliest first; those due at the same time in order of addition
	inFlight int
	seq      uint64
	throttle *Throttle // nil for none
}

// dispatch is one entry of a queue's schedule: the next attempt of a task, or a
// duplicate of an earlier attempt.
type dispatch struct {
	task      *task
	duplicate *attempt // nil: the next attempt
	due       time.Time
}

// withDefaults returns the queue as the service creates it.
func withDefaults(in *cloudtaskspb.Queue) *cloudtaskspb.Queue {
	q := proto.CloneOf(in)
	q.State = cloudtaskspb.Queue_RUNNING
	q.RateLimits = cmp.Or(q.RateLimits, &cloudtaskspb.RateLimits{})
	q.RetryConfig = cmp.Or(q.RetryConfig, &cloudtaskspb.RetryConfig{})

	limits, retry := q.RateLimits, q.RetryConfig
	limits.MaxConcurrentDispatches = cmp.Or(limits.MaxConcurrentDispatches, 1000)
	retry.MaxAttempts = cmp.Or(retry.MaxAttempts, 100)
	retry.MaxDoublings = cmp.Or(retry.MaxDoublings, 16)
	if retry.MaxBackoff.AsDuration() == 0 {
		retry.MaxBackoff = durationpb.New(max(time.Hour, retry.MinBackoff.AsDuration()))
	}
	if retry.MinBackoff.AsDuration() == 0 {
		retry.MinBackoff = durationpb.New(min(100*time.Millisecond, retry.MaxBackoff.AsDuration()))
	}
	return q
}

// newQueue adds a queue to s and starts its scheduler. It needs s.mu.
func (s *Server) newQueue(pb *cloudtaskspb.Queue) {
	q := &queue{
		s: s, pb: pb, wake: make(chan struct{}, 1), tasks: map[string]*task{}, refused: map[string]time.Time{},
	}
	if s.options.Throttling == AsDocumented {
		q.throttle = &Throttle{}
	}
	s.queues[pb.Name] = q
	s.running.Go(q.run)
}

// add puts a new task on the schedule.
func (q *queue) add(t *task) {
	q.seq++
	t.queue, t.seq = q, q.seq
	q.tasks[t.id] = t
	q.insert(&dispatch{task: t, due: t.due})
}

// insert adds to the schedule.
func (q *queue) insert(d *dispatch) {
	at, _ := slices.BinarySearchFunc(q.schedule, d.due, func(e *dispatch, due time.Time) int {
		return cmp.Or(e.due.Compare(due), -1) // after those of the same time
	})
	q.schedule = slices.Insert(q.schedule, at, d)
	q.signal()
}

// remove removes a task that has succeeded or has no attempts left.
func (q *queue) remove(t *task) {
	delete(q.tasks, t.id)
	if t.named {
		q.refused[t.id] = time.Now().Add(nameHeld)
	}
}

// discard removes a task and all that is scheduled of it. A delivery in flight goes on.
func (q *queue) discard(t *task) {
	q.remove(t)
	q.schedule = slices.DeleteFunc(q.schedule, func(d *dispatch) bool { return d.task == t })
	q.s.settled.Broadcast()
}

// signal wakes the scheduler; several signals may wake it once.
func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// run dispatches what falls due until the server is closed.
func (q *queue) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-q.s.ctx.Done():
			return
		case <-q.wake:
		case <-timer.C:
		}

		q.s.mu.Lock()
		next := q.step(time.Now())
		q.s.mu.Unlock()
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}

// step starts all deliveries that are due and permitted at now. It returns when it must be
// called again; zero: at the next signal.
func (q *queue) step(now time.Time) time.Time {
	limit := int(q.pb.RateLimits.MaxConcurrentDispatches)
	for q.s.ctx.Err() == nil && q.pb.State == cloudtaskspb.Queue_RUNNING && q.inFlight < limit {
		if len(q.schedule) == 0 {
			return time.Time{}
		}
		d := q.schedule[0]
		if d.due.After(now) {
			return d.due
		}

		if q.throttle != nil {
			if at := q.throttle.Take(now); at.After(now) {
				return at
			}
		}

		q.schedule = slices.Delete(q.schedule, 0, 1)
		q.inFlight++
		a := d.duplicate
		if a == nil {
			a = d.task.begin(now)
			q.scheduleDuplicates(a, now)
		}
		q.s.running.Go(func() { q.s.deliver(a) })
	}
	return time.Time{}
}

// scheduleDuplicates schedules the duplicates of a first attempt that begins now.
func (q *queue) scheduleDuplicates(a *attempt, now time.Time) {
	if q.s.options.Extra == nil || a.number > 0 {
		return
	}
	duplicate := *a
	duplicate.duplicate = true
	for _, delay := range q.s.options.Extra(proto.CloneOf(a.task.view(cloudtaskspb.Task_FULL))) {
		q.insert(&dispatch{task: a.task, duplicate: &duplicate, due: now.Add(delay)})
	}
}

// settle ends a delivery, and removes the task or plans its next attempt.
func (q *queue) settle(a *attempt, ended time.Time, o outcome) {
	defer q.s.settled.Broadcast()
	q.inFlight--
	q.signal()
	if q.throttle != nil {
		q.throttle.Answered(ended, o.status)
	}
	t := a.task
	if a.duplicate || q.s.ctx.Err() != nil || q.tasks[t.id] != t { // it may have been deleted
		return
	}

	t.previous, t.answered = o.code(), ended
	if o.status != 0 {
		t.responses++
	}
	if o.status != 0 && o.status < 500 {
		t.executed++
	}
	limit := int(q.pb.RetryConfig.MaxAttempts) // negative: none
	exhausted := limit > 0 && t.dispatched >= limit
	if success(o.status) || exhausted {
		q.remove(t)
		return
	}
	delay := max(backoff(q.pb.RetryConfig, t.dispatched), o.retryAfter.Sub(ended))
	t.due = ended.Add(delay + time.Duration(rand.Float64()*q.s.options.Spread*float64(delay)))
	q.insert(&dispatch{task: t, due: t.due})
}

// backoff returns the delay before the n-th retry, n from 1. It is the minimum at first,
// is doubled maxDoublings times, then grows by its value after the last doubling, and
// never exceeds the maximum.
func backoff(c *cloudtaskspb.RetryConfig, n int) time.Duration {
	delay, longest := c.MinBackoff.AsDuration(), c.MaxBackoff.AsDuration()
	doubled := 0
	for ; doubled < int(c.MaxDoublings) && doubled < n-1 && delay < longest; doubled++ {
		delay *= 2
	}

	steps := n - doubled // 1 while doubling
	if steps > int(longest/delay) {
		return longest
	}
	return time.Duration(steps) * delay
}
