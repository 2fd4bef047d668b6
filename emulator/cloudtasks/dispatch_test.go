package cloudtasks_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/emulator/cloudtasks"
)

func TestAScheduledTaskWaitsForItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		c := openQueue(t, cloudtasks.Options{Transport: always(200), Observe: seen.observe}, nil)
		start := time.Now()
		c.create(at("late", start.Add(30*24*time.Hour)))
		c.create(at("soon", start.Add(5*time.Second)))
		c.create(at("past", start.Add(-time.Hour)))
		c.idle()
		equal(t, "starts", []float64{0, 5, 30 * 86400}, seen.offsets(start))
		if d := seen.deliveries()[0]; d.Task != "past" {
			t.Fatalf("got %q first, want the task whose time was past", d.Task)
		}
	})
}

func TestTheDispatchDeadlineEndsTheRequestAndTheTaskIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var previous []string
		w := worker(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			previous = append(previous, r.Header.Get("X-CloudTasks-TaskPreviousResponse"))
			mu.Unlock()
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		task := post("")
		task.DispatchDeadline = seconds(15)
		all, starts := deliver(t, w, &cloudtaskspb.RetryConfig{MaxAttempts: 2, MinBackoff: seconds(1)}, task)
		equal(t, "starts", []float64{0, 16}, starts)
		if d := all[0]; d.Status != 0 || !errors.Is(d.Err, context.DeadlineExceeded) {
			t.Fatalf("got %+v, want no answer by the deadline", d)
		}
		mu.Lock()
		defer mu.Unlock()
		equal(t, "previous responses", []string{"", "504"}, previous)
	})
}

func TestTheDispatchDeadlineEndsAnAttemptWhoseTransportIgnoresIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := worker(func(*http.Request) (*http.Response, error) {
			time.Sleep(time.Hour)
			return answer(200), nil
		})
		start := time.Now()
		deliver(t, slow, &cloudtaskspb.RetryConfig{MaxAttempts: 1}, post(""))
		if got, want := time.Since(start), 10*time.Minute; got != want {
			t.Fatalf("got idle after %v, want the default deadline of %v", got, want)
		}
	})
}

func TestExtraSendsIdenticalDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		var mu sync.Mutex
		var headers []http.Header
		w := worker(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			headers = append(headers, r.Header)
			return answer([]int{500, 500, 200, 200, 404}[len(headers)-1]), nil
		})
		extra := func(*cloudtaskspb.Task) []time.Duration {
			return []time.Duration{time.Second, 2 * time.Second, time.Minute}
		}
		c := openQueue(t, cloudtasks.Options{Transport: w, Observe: seen.observe, Extra: extra},
			&cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{MinBackoff: seconds(10)}})
		start := time.Now()
		c.create(post("twice"))
		c.idle()
		var got []string
		all := seen.deliveries()
		for i := range all {
			d := &all[i]
			got = append(got, fmt.Sprint(d.Started.Sub(start).Seconds(), d.Attempt, d.Duplicate, d.Status))
		}
		// A duplicate's 500 is not tried again, its 200 does not stand in for the attempt's 500, and the
		// retry has no duplicates of its own.
		want := []string{"0 0 false 500", "1 0 true 500", "2 0 true 200", "10 1 false 200", "60 0 true 404"}
		equal(t, "deliveries", want, got)
		for _, i := range []int{1, 2, 4} {
			equal(t, "a duplicate's headers differ", headers[0], headers[i])
		}
	})
}

func TestIdleWaitsForObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		slow := func(d cloudtasks.Delivery) {
			time.Sleep(time.Second)
			seen.observe(d)
		}
		c := openQueue(t, cloudtasks.Options{Transport: always(200), Observe: slow}, nil)
		c.idle() // nothing is due yet
		for range 50 {
			c.create(post(""))
		}
		c.idle()
		if got := len(seen.deliveries()); got != 50 {
			t.Fatalf("got %d deliveries when idle, want 50", got)
		}
	})
}

func TestAsManyAreInFlightAsTheConcurrencyLimitAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		lasting := worker(func(*http.Request) (*http.Response, error) {
			time.Sleep(time.Second)
			return answer(200), nil
		})
		c := openQueue(t, cloudtasks.Options{Transport: lasting, Observe: seen.observe},
			&cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 3}})
		start := time.Now()
		for range 7 {
			c.create(post(""))
		}
		c.idle()
		equal(t, "starts", []float64{0, 0, 0, 1, 1, 1, 2}, seen.offsets(start))
	})
}

func TestAsDocumentedAQueueIsSlowAtFirstAndAfterErrors(t *testing.T) {
	for _, c := range []struct {
		how    cloudtasks.Throttling
		status int
		want   string // whether more than ten are dispatched in the first second, and how many in the third
	}{
		{cloudtasks.Unthrottled, 200, "true 0"},
		{cloudtasks.AsDocumented, 200, "false 5"},
		{cloudtasks.AsDocumented, 503, "false 1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var seen seen
			cloud := openQueue(t, cloudtasks.Options{Transport: always(c.status), Observe: seen.observe, Throttling: c.how},
				&cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{MinBackoff: seconds(3600)}})
			start := time.Now()
			for range 20 {
				cloud.create(post(""))
			}
			time.Sleep(2999 * time.Millisecond)
			cloud.Close()
			var got [3]int
			for _, at := range seen.offsets(start) {
				got[int(at)]++
			}
			if fmt.Sprint(got[0] > 10, " ", got[2]) != c.want {
				t.Errorf("%v, answered %d: %v dispatches, want %s", c.how, c.status, got, c.want)
			}
		})
	}
}

func TestTasksDueTogetherGoInOrderOfCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		c := openQueue(t, cloudtasks.Options{Transport: always(200), Observe: seen.observe},
			&cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 1}})
		want := []string{"e", "a", "d", "b", "c"}
		due := time.Now().Add(time.Minute)
		for _, id := range want {
			c.create(at(id, due))
		}
		c.idle()
		var got []string
		all := seen.deliveries()
		for i := range all {
			got = append(got, all[i].Task)
		}
		equal(t, "order", want, got)
	})
}

func TestCloseEndsTheDeliveriesInFlight(t *testing.T) {
	var seen seen
	begun := make(chan struct{}, 3)
	blocked := worker(func(r *http.Request) (*http.Response, error) {
		begun <- struct{}{}
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	c := openQueue(t, cloudtasks.Options{Transport: blocked, Observe: seen.observe}, nil)
	for range 3 {
		c.create(post(""))
	}
	c.create(at("", time.Now().Add(time.Hour)))
	for range 3 {
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
		t.Fatalf("got %v from Idle, want ErrClosed", err)
	}
	all := seen.deliveries()
	if len(all) != 3 {
		t.Fatalf("got %d deliveries, want the 3 in flight, reported before Close returned", len(all))
	}
	for i := range all {
		if all[i].Status != 0 || !errors.Is(all[i].Err, context.Canceled) {
			t.Fatalf("got %+v, want no answer, canceled", all[i])
		}
	}
}
