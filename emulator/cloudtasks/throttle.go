package cloudtasks

import (
	"math"
	"net/http"
	"time"
)

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
	//   - A queue that is new or was idle starts slowly, and so does one that gets
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

// Throttle is the rate of one queue with AsDocumented. The zero value is that of a new
// queue. Answers take effect at the end of their period, so the order of simultaneous
// answers has no effect. Throttle is not safe for concurrent use.
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
	if at := full.Add(-bucket); at.After(now) {
		t.used = now
		return at
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
