package cloudtasks

import (
	"cmp"
	"math"
	"math/rand/v2"
	"net/http"
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
	pb   *cloudtaskspb.Queue // has all defaults filled in; only its state changes
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

// checkQueue refuses what the service documents or was recorded to refuse.
func checkQueue(pb *cloudtaskspb.Queue) error {
	limits, retry := pb.GetRateLimits(), pb.GetRetryConfig()
	rate, concurrent := limits.GetMaxDispatchesPerSecond(), limits.GetMaxConcurrentDispatches()
	shortest, longest := retry.GetMinBackoff().AsDuration(), retry.GetMaxBackoff().AsDuration()
	switch {
	case !(rate >= 0 && rate <= 500): // NaN too
		return invalid("queue.rate_limits.max_dispatches_per_second", "is not between 0 and 500")
	case concurrent < 0 || concurrent > 5000:
		return invalid("queue.rate_limits.max_concurrent_dispatches", "is not between 0 and 5000")
	case retry.GetMaxAttempts() < -1:
		return invalid("queue.retry_config.max_attempts", "is less than -1")
	case retry.GetMaxDoublings() < 0:
		return invalid("queue.retry_config.max_doublings", "is negative")
	case shortest < 0 || longest < 0 || retry.GetMaxRetryDuration().AsDuration() < 0:
		return invalid("queue.retry_config", "has a negative duration")
	case longest != 0 && shortest > longest:
		return invalid("queue.retry_config.min_backoff", "is longer than max_backoff")
	}
	return checkQueueName("queue.name", pb.GetName())
}

// withDefaults returns the queue as the service creates it.
func withDefaults(request *cloudtaskspb.Queue) *cloudtaskspb.Queue {
	q := proto.CloneOf(request)
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
	index, _ := slices.BinarySearchFunc(q.schedule, d.due, func(e *dispatch, due time.Time) int {
		return cmp.Or(e.due.Compare(due), -1) // behind the entries of the same time
	})
	q.schedule = slices.Insert(q.schedule, index, d)
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
			if allowed := q.throttle.Take(now); allowed.After(now) {
				return allowed
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

// Throttling selects how a queue adapts its rate of dispatches to the answers.
type Throttling int

const (
	// Unthrottled dispatches at any rate, within the queue's own limits.
	Unthrottled Throttling = iota
	// AsDocumented lowers and raises the rate of a whole queue as Google documents
	// it ("System throttling" in "Issues and limitations" and in the comments of
	// Queue.rate_limits):
	//
	//   - After 429, 503 or at a high rate of errors the queue slows down until the
	//     errors stop.
	//   - A queue that is new or was idle starts slowly, and so does a queue that gets
	//     many tasks suddenly. It becomes faster with the tasks that succeeded.
	//   - A token bucket limits the rate. The highest rate is 500 per second, and
	//     the bucket holds at least the tokens of one second.
	//
	// Google documents no further figures. Here the rate starts at 5 per second, the
	// default of App Engine's queues. It is adapted once a second: the rate is
	// halved, to at least 1 per second, after an answer of 429 or 503, or after any
	// other error if more than 10 % of about the last 100 answers are errors. Without
	// such an answer, each success adds 0.05 per second. A rate that for 5 minutes
	// was not lowered and delayed no dispatch starts at 5 per second again.
	//
	// An answer other than 2xx is an error, and no answer is one too; the answers to
	// duplicates count. Retry-After is documented as considered: here it delays only
	// the task that got it, as without throttling.
	AsDocumented
)

// The figures of AsDocumented. Rates are in dispatches per second.
const (
	startRate  = 5
	lowestRate = 1 // a lower one would need a larger bucket
	topRate    = 500
	perSuccess = 0.05
	highErrors = 0.1
	memory     = 100 // answers
	period     = time.Second
	bucket     = time.Second // the time to fill an empty bucket
	forget     = 5 * time.Minute
)

// Throttle is the rate of one queue with AsDocumented. The zero value is for a new queue. Answers
// take effect at the end of their period, so the order of simultaneous answers has no effect. Throttle is not safe for concurrent use.
type Throttle struct {
	rate   float64
	errors float64   // the part of the last answers that were errors
	full   time.Time // when the bucket is full
	used   time.Time // when the rate last delayed a dispatch or was lowered

	began                     time.Time // the period, with its answers
	succeeded, failed, slowed int
}

// Take permits a dispatch at now and returns now, or returns the later time at
// which to ask again.
func (t *Throttle) Take(now time.Time) time.Time {
	t.adapt(now)

	wait := max(0, t.full.Sub(now)) + time.Duration(float64(time.Second)/t.rate)
	full := now.Add(wait)
	if allowed := full.Add(-bucket); allowed.After(now) {
		t.used = now
		return allowed
	}
	t.full = full
	return now
}

// Answered counts an answer with this HTTP status; zero: no answer.
func (t *Throttle) Answered(now time.Time, status int) {
	t.adapt(now)
	switch {
	case success(status):
		t.succeeded++
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		t.slowed++
		fallthrough
	default:
		t.failed++
	}
}

// adapt changes the rate after the answers of a period that has ended.
func (t *Throttle) adapt(now time.Time) {
	if now.Sub(t.began) < period {
		return
	}

	if n := t.succeeded + t.failed; n > 0 {
		kept := math.Pow(1-1.0/memory, float64(n))
		t.errors = kept*t.errors + (1-kept)*float64(t.failed)/float64(n)
	}

	switch {
	case t.slowed > 0 || t.failed > 0 && t.errors > highErrors:
		t.rate = max(t.rate/2, lowestRate)
		t.used = now
	case now.Sub(t.used) > forget:
		t.rate = startRate
	default:
		t.rate = min(t.rate+perSuccess*float64(t.succeeded), topRate)
	}
	t.began, t.succeeded, t.failed, t.slowed = now, 0, 0, 0
}
