package cloudtasks

import (
	"testing"
	"time"
)

// busyQueue dispatches as often as its Throttle permits.
type busyQueue struct {
	Throttle
	now time.Time
}

// flood dispatches for d, answers each dispatch at once with status, and returns their number. A
// negative status is no answer yet.
func (q *busyQueue) flood(d time.Duration, status int) (n int) {
	for end := q.now.Add(d); ; n++ {
		for at := q.Take(q.now); at != q.now; at = q.Take(q.now) {
			if q.now = at; !at.Before(end) {
				q.now = end
				return n
			}
		}
		if status >= 0 {
			q.Answered(q.now, status)
		}
	}
}

// burst returns the number of dispatches that are permitted at once.
func (q *busyQueue) burst() (n int) {
	for ; q.Take(q.now).Equal(q.now); n++ {
	}
	return n
}

func newBusyQueue() *busyQueue { return &busyQueue{now: time.Now()} }

func between(t *testing.T, what string, got, least, most int) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%d dispatches %s, want %d to %d", got, what, least, most)
	}
}

func TestThrottle_Recovery(t *testing.T) {
	q := newBusyQueue()
	q.flood(4*time.Minute, 503)
	between(t, "in the last minute of an outage", q.flood(time.Minute, 503), 60, 60)
	// A success adds a twentieth of a dispatch per second: 5 % more each second.
	for _, want := range [][2]int{{9, 15}, {30, 60}, {130, 260}} {
		between(t, "in 10 s after it", q.flood(10*time.Second, 200), want[0], want[1])
		q.flood(20*time.Second, 200)
	}
	q.flood(10*time.Minute, 200)
	between(t, "a second at last", q.flood(10*time.Second, 200)/10, 499, 501)
}

func TestThrottle_Idle(t *testing.T) {
	for pause, want := range map[time.Duration][2]int{time.Minute: {28, 32}, time.Hour: {5, 6}} {
		q := newBusyQueue()
		for range 500 {
			for q.Take(q.now) != q.now {
				q.now = q.now.Add(10 * time.Millisecond)
			}
			q.Answered(q.now, 200)
		}
		q.now = q.now.Add(pause)
		between(t, "at once after "+pause.String(), q.burst(), want[0], want[1])
	}
}

// A queue below its rate has not shown that it can go faster. Overload lowers the
// rate of such a queue too, and that lasts.
func TestThrottle_Flood(t *testing.T) {
	for _, c := range []struct{ tasks, status, want int }{{400, 200, 5}, {10, 503, 1}} {
		q := newBusyQueue()
		for range c.tasks {
			q.Take(q.now)
			q.Answered(q.now, c.status)
			q.now = q.now.Add(2 * time.Second)
		}
		q.now = q.now.Add(time.Minute)
		between(t, "at once", q.burst(), c.want, c.want)
	}
}

func TestThrottle_Answers(t *testing.T) {
	for _, c := range []struct {
		seconds int
		answers map[int]int // of each status, in each second
		want    float64
	}{
		{1, nil, 5},
		{1, map[int]int{200: 20}, 6},
		{1, map[int]int{200: 20, 503: 1}, 2.5},
		{1, map[int]int{200: 20, 429: 3}, 2.5},
		{1, map[int]int{409: 10}, 5},
		{1, map[int]int{409: 11}, 2.5},
		{1, map[int]int{0: 6, 404: 5}, 2.5},
		{1, map[int]int{200: 80, 500: 20}, 2.5},
		{1, map[int]int{200: 200, 500: 15}, 15},
		{1, map[int]int{500: 6}, 5},
		{2, map[int]int{500: 6}, 2.5}, // the answers of the second before count
	} {
		q := newBusyQueue()
		q.burst()
		for range c.seconds {
			for status, n := range c.answers {
				for range n {
					q.Answered(q.now, status)
				}
			}
			q.now = q.now.Add(time.Second)
			q.Take(q.now)
		}
		if q.rate != c.want {
			t.Errorf("%v in %d s: got %v per second, want %v", c.answers, c.seconds, q.rate, c.want)
		}
	}
}
