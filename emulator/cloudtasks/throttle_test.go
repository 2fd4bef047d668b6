package cloudtasks_test

import (
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/emulator/cloudtasks"
)

// load is a queue and the deliveries that it has made.
type load struct {
	*cloud
	seen
	start time.Time
}

// flood creates n tasks at once, named 0 to n-1. status returns the answer to a
// task, by its number, and takes as long as the run.
func flood(t *testing.T, n int, status func(task int) int) *load {
	t.Helper()
	l := &load{start: time.Now()}
	w := worker(func(r *http.Request) (*http.Response, error) {
		number, err := strconv.Atoi(r.Header.Get("X-CloudTasks-TaskName"))
		if err != nil {
			return nil, err
		}
		return answer(status(number)), nil
	})
	l.cloud = openQueue(t, cloudtasks.Options{Transport: w, Observe: l.observe, Throttling: cloudtasks.AsDocumented}, &cloudtaskspb.Queue{
		RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: -1, MinBackoff: seconds(30), MaxBackoff: seconds(600)},
	})
	l.add(0, n)
	return l
}

// add creates the tasks from first to last-1.
func (l *load) add(first, last int) {
	l.t.Helper()
	for i := first; i < last; i++ {
		l.create(post(strconv.Itoa(i)))
	}
}

// within counts the deliveries begun from the one time to the other, after start.
func (l *load) within(from, to time.Duration) int {
	n := 0
	for _, at := range l.offsets(l.start) {
		if from.Seconds() <= at && at < to.Seconds() {
			n++
		}
	}
	return n
}

func TestAThrottledQueueRecoversWithItsSuccesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const outage = 5 * time.Minute
		start := time.Now()
		l := flood(t, 1500, func(int) int {
			if time.Since(start) < outage {
				return 503
			}
			return 200
		})
		l.idle()
		if got := l.within(outage-time.Minute, outage); got != 60 {
			t.Errorf("%d dispatches in the last minute of the outage, want 60: the lowest rate", got)
		}
		// A success adds a twentieth of a dispatch per second: 5 % more each second.
		for after, want := range map[time.Duration][2]int{
			0: {9, 15}, 30 * time.Second: {30, 60}, time.Minute: {130, 260},
		} {
			got := l.within(outage+after, outage+after+10*time.Second)
			if got < want[0] || got > want[1] {
				t.Errorf("%d dispatches in the 10 s from %v after the outage, want %d to %d", got, after, want[0], want[1])
			}
		}
	})
}

func TestANewQueueRampsWithItsSuccesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const run = 2 * time.Minute
		l := flood(t, 1000, func(int) int { time.Sleep(run); return 200 })
		l.idle()
		// Five at once, five per second until the first success.
		if got, want := l.within(0, run), 5+5*120-1; got != want {
			t.Errorf("%d dispatches before the first success, want %d", got, want)
		}
		if got := l.within(run+30*time.Second, run+31*time.Second); got < 10 || got > 15 {
			t.Errorf("%d dispatches in the second after half a minute of successes, want 10 to 15", got)
		}
	})
}

func TestAnIdleQueueRampsAgain(t *testing.T) {
	for pause, want := range map[time.Duration][2]int{time.Minute: {28, 32}, time.Hour: {5, 6}} {
		t.Run(pause.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := flood(t, 500, func(int) int { return 200 })
				l.idle()
				time.Sleep(pause)
				again := time.Since(l.start)
				l.add(500, 600)
				l.idle()
				if got := l.within(again, again+time.Millisecond); got < want[0] || got > want[1] {
					t.Errorf("%d dispatches at once after %v, want %d to %d", got, pause, want[0], want[1])
				}
			})
		})
	}
}

// A queue below its rate has not shown that it can go faster. Overload lowers the
// rate of such a queue too, and that lasts.
func TestAQueueWithFewTasksRampsWhenItIsFlooded(t *testing.T) {
	for _, c := range []struct{ tasks, status, want int }{{400, 200, 5}, {10, 503, 1}} {
		t.Run(strconv.Itoa(c.status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := flood(t, 0, func(task int) int {
					if task < c.tasks {
						return c.status
					}
					return 200
				})
				for i := range c.tasks {
					l.add(i, i+1)
					time.Sleep(2 * time.Second)
				}
				l.add(c.tasks, c.tasks+1)
				time.Sleep(2 * time.Second)
				begin := time.Since(l.start)
				l.add(c.tasks+1, c.tasks+100)
				time.Sleep(time.Second)
				l.Close()
				if got := l.within(begin, begin+time.Millisecond); got != c.want {
					t.Errorf("%d dispatches at once, want %d", got, c.want)
				}
			})
		})
	}
}
