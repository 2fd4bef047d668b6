package cloudtasks_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/emulator/cloudtasks"
)

func TestScheduleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openQueue(t, cloudtasks.Options{Transport: always(200)}, atOnce(1))
		start := time.Now()
		c.create(at("late", start.Add(30*24*time.Hour)))
		for _, id := range []string{"e", "a", "d"} { // due together, they go in order of creation
			c.create(at(id, start.Add(5*time.Second)))
		}
		c.create(at("past", start.Add(-time.Hour)))
		c.idle()
		equal(t, "tasks", []string{"past", "e", "a", "d", "late"}, c.tasks())
		equal(t, "starts", []float64{0, 5, 5, 5, 30 * 86400}, c.offsets(start))
	})
}

func TestDispatchDeadline(t *testing.T) {
	t.Run("it ends the request, and the task is retried", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, task := &recording{next: blocked}, post("")
			task.DispatchDeadline = seconds(15)
			all, starts := deliver(t, w, &cloudtaskspb.RetryConfig{MaxAttempts: 2, MinBackoff: seconds(1)}, task)
			equal(t, "starts", []float64{0, 16}, starts)
			if d := all[0]; d.Status != 0 || !errors.Is(d.Err, context.DeadlineExceeded) {
				t.Errorf("got %+v, want no answer by the deadline", d)
			}
			equal(t, "previous responses", [][]string{nil, {"504"}}, w.values("X-CloudTasks-TaskPreviousResponse"))
		})
	})
	t.Run("10 minutes by default, though the transport ignores it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			deliver(t, slow(time.Hour, 200), &cloudtaskspb.RetryConfig{MaxAttempts: 1}, post(""))
			equal(t, "idle", 10*time.Minute, time.Since(start))
		})
	})
}

func TestExtra(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		codes := []int{500, 500, 200, 200, 404}
		w := &recording{}
		w.next = func(*http.Request) (*http.Response, error) { return answer(codes[len(w.values(""))-1]), nil }
		extra := func(*cloudtaskspb.Task) []time.Duration {
			return []time.Duration{time.Second, 2 * time.Second, time.Minute}
		}
		retry := retrying(&cloudtaskspb.RetryConfig{MinBackoff: seconds(10)})
		c := openQueue(t, cloudtasks.Options{Transport: w, Extra: extra}, retry)
		start := time.Now()
		c.create(post("twice"))
		c.idle()
		var got []string
		all := c.deliveries()
		for i := range all {
			d := &all[i]
			got = append(got, fmt.Sprint(d.Started.Sub(start).Seconds(), d.Attempt, d.Duplicate, d.Status))
		}
		// A duplicate's 500 is not tried again, its 200 does not stand in for the attempt's 500, and the
		// retry has no duplicates of its own.
		want := []string{"0 0 false 500", "1 0 true 500", "2 0 true 200", "10 1 false 200", "60 0 true 404"}
		equal(t, "deliveries", want, got)
		for _, i := range []int{1, 2, 4} {
			equal(t, "a duplicate's headers differ", w.all[0], w.all[i])
		}
	})
}

func TestIdle_Observe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var observed seen
		late := func(d cloudtasks.Delivery) {
			time.Sleep(time.Second)
			observed.observe(d)
		}
		c := openQueue(t, cloudtasks.Options{Transport: always(200), Observe: late}, nil)
		c.idle() // nothing is due yet
		for range 50 {
			c.create(post(""))
		}
		c.idle()
		equal(t, "deliveries when idle", 50, len(observed.deliveries()))
	})
}

func TestMaxConcurrentDispatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openQueue(t, cloudtasks.Options{Transport: slow(time.Second, 200)}, atOnce(3))
		start := time.Now()
		for range 7 {
			c.create(post(""))
		}
		c.idle()
		equal(t, "starts", []float64{0, 0, 0, 1, 1, 1, 2}, c.offsets(start))
	})
}

func TestThrottling(t *testing.T) {
	for _, tc := range []struct {
		how    cloudtasks.Throttling
		status int
		want   string // whether more than ten are dispatched in the first second, and how many in the third
	}{
		{cloudtasks.Unthrottled, 200, "true 0"},
		{cloudtasks.AsDocumented, 200, "false 5"},
		{cloudtasks.AsDocumented, 503, "false 1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := openQueue(t, cloudtasks.Options{Transport: always(tc.status), Throttling: tc.how},
				retrying(&cloudtaskspb.RetryConfig{MinBackoff: seconds(3600)}))
			start := time.Now()
			for range 20 {
				c.create(post(""))
			}
			time.Sleep(2999 * time.Millisecond)
			c.Close()
			var got [3]int
			for _, at := range c.offsets(start) {
				got[int(at)]++
			}
			equal(t, fmt.Sprint(tc.how, tc.status), tc.want, fmt.Sprint(got[0] > 10, " ", got[2]))
		})
	}
}

func TestClose(t *testing.T) {
	begun := make(chan struct{}, 3)
	w := worker(func(r *http.Request) (*http.Response, error) { begun <- struct{}{}; return blocked(r) })
	c := openQueue(t, cloudtasks.Options{Transport: w}, nil)
	c.create(at("", time.Now().Add(time.Hour)))
	for range 3 {
		c.create(post(""))
		<-begun
	}
	ended, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Idle(ended); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v from Idle, want the end of its context", err)
	}
	waiting := make(chan error, 1)
	go func() { waiting <- c.Idle(context.Background()) }()
	c.Close()
	c.Close()
	if err := <-waiting; !errors.Is(err, cloudtasks.ErrClosed) {
		t.Errorf("got %v from Idle, want ErrClosed", err)
	}
	all := c.deliveries()
	equal(t, "deliveries that are reported before Close returns", 3, len(all))
	for i := range all {
		if all[i].Status != 0 || !errors.Is(all[i].Err, context.Canceled) {
			t.Errorf("got %+v, want no answer, canceled", all[i])
		}
	}
}

func TestAnswer(t *testing.T) {
	refused := errors.New("refused")
	broken := &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(iotest.ErrReader(refused))}
	type row struct {
		name   string
		w      worker
		want   int // attempts, of two
		status int
		err    error
	}
	rows := []row{
		{"none", func(*http.Request) (*http.Response, error) { return nil, refused }, 2, 0, refused},
		{"broken", func(*http.Request) (*http.Response, error) { return broken, nil }, 2, 0, refused},
	}
	for code, want := range map[int]int{199: 2, 200: 1, 299: 1, 302: 2, 404: 2, 409: 2, 429: 2, 503: 2} {
		rows = append(rows, row{fmt.Sprint(code), always(code), want, code, nil})
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all, _ := deliver(t, r.w, &cloudtaskspb.RetryConfig{MaxAttempts: 2}, post(""))
				equal(t, "attempts", r.want, len(all))
				if last := all[len(all)-1]; last.Status != r.status || !errors.Is(last.Err, r.err) {
					t.Errorf("got %+v", last)
				}
			})
		})
	}
}

func TestRetry(t *testing.T) {
	t.Run("the backoff doubles, then grows linearly, then stays", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			retry := &cloudtaskspb.RetryConfig{MinBackoff: seconds(10), MaxBackoff: seconds(300), MaxDoublings: 3}
			_, starts := deliver(t, failing(9, 500), retry, post(""))
			// The sums of 10, 20, 40, 80, 160, 240, 300, 300, 300.
			equal(t, "starts", []float64{0, 10, 30, 70, 150, 310, 550, 850, 1150, 1450}, starts)
		})
	})
	for attempts, want := range map[int32]int{1: 1, 3: 3, -1: 151} { // the 151st succeeds
		t.Run(fmt.Sprintf("attempts: %d", attempts), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				retry := &cloudtaskspb.RetryConfig{MaxAttempts: attempts}
				all, _ := deliver(t, failing(150, 500), retry, post("named"))
				equal(t, "attempts", want, len(all))
			})
		})
	}
}

func TestRetryAfter(t *testing.T) {
	date := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for name, tc := range map[string]struct {
		value func() string
		want  float64
	}{
		"seconds":                 {func() string { return "90" }, 90},
		"a date":                  {func() string { return date(2 * time.Minute) }, 120},
		"sooner than the backoff": {func() string { return "3" }, 10},
		"a past date":             {func() string { return date(-time.Hour) }, 10},
		"malformed":               {func() string { return "soon" }, 10},
		"negative":                {func() string { return "-5" }, 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				header := tc.value()
				w := worker(func(r *http.Request) (*http.Response, error) {
					if r.Header.Get("X-CloudTasks-TaskRetryCount") == "1" {
						return answer(200), nil
					}
					return answer(503, "Retry-After", header), nil
				})
				_, starts := deliver(t, w, &cloudtaskspb.RetryConfig{MinBackoff: seconds(10)}, post(""))
				equal(t, "starts", []float64{0, tc.want}, starts)
			})
		})
	}
}

// Tasks that failed together are retried apart.
func TestSpread(t *testing.T) {
	for header, from := range map[string]float64{"Retry-After": 30, "X-Other": 10} {
		synctest.Test(t, func(t *testing.T) {
			w := worker(func(r *http.Request) (*http.Response, error) {
				if r.Header.Get("X-CloudTasks-TaskRetryCount") == "0" {
					return answer(409, header, "30"), nil
				}
				return answer(200), nil
			})
			c := openQueue(t, cloudtasks.Options{Transport: w, Spread: 0.5},
				retrying(&cloudtaskspb.RetryConfig{MinBackoff: seconds(10)}))
			start := time.Now()
			for range 100 {
				c.create(post(""))
			}
			c.idle()
			retries := c.offsets(start)[100:]
			slices.Sort(retries)
			first, last := retries[0]/from, retries[99]/from
			if first < 1 || first > 1.1 {
				t.Errorf("%s: the first after %v times the backoff", header, first)
			}
			if last < 1.4 || last > 1.5 {
				t.Errorf("%s: the last after %v times the backoff", header, last)
			}
		})
	}
}
