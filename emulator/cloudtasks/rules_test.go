package cloudtasks

import (
	"fmt"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestBackoffSeries(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		policy retryPolicy
		want   []time.Duration
	}{
		{retryPolicy{minBackoff: 10 * s, maxBackoff: 300 * s, maxDoublings: 3},
			[]time.Duration{10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 240 * s, 300 * s, 300 * s}},
		{retryPolicy{minBackoff: 10 * s, maxBackoff: 35 * s}, []time.Duration{10 * s, 20 * s, 30 * s, 35 * s, 35 * s}},
		{retryPolicy{minBackoff: 10 * s, maxBackoff: 30 * s, maxDoublings: 5}, []time.Duration{10 * s, 20 * s, 30 * s, 30 * s}},
		{retryPolicy{minBackoff: 10 * s, maxBackoff: 10 * s, maxDoublings: 5}, []time.Duration{10 * s, 10 * s}},
	} {
		for i, want := range c.want {
			if got := c.policy.backoff(i + 1); got != want {
				t.Errorf("%+v: retry %d: got %v, want %v", c.policy, i+1, got, want)
			}
		}
	}
}

func TestBackoffNeverOverflows(t *testing.T) {
	p := policyOf(&cloudtaskspb.RetryConfig{MinBackoff: duration(1e15), MaxBackoff: duration(1e16), MaxDoublings: 1 << 30})
	for _, n := range []int{1, 2, 70, 1 << 30} {
		if got := p.backoff(n); got != retention {
			t.Errorf("retry %d: got %v, want the retention", n, got)
		}
	}
	p = retryPolicy{minBackoff: 1, maxBackoff: retention, maxDoublings: 1 << 30}
	if got := p.backoff(1 << 31); got != retention {
		t.Errorf("got %v, want the retention", got)
	}
}

func TestRetryAfterIsCappedAtTheRetention(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Time{
		"":                     {},
		"-1":                   {},
		"1.5":                  {},
		"18446744073709551616": {},
		"0":                    now,
		"60":                   now.Add(time.Minute),
		"18446744073709551615": now.Add(retention),
		now.AddDate(1, 0, 0).Format(http.TimeFormat): now.Add(retention),
	} {
		if got := retryAfter(http.Header{"Retry-After": {value}}, now); !got.Equal(want) {
			t.Errorf("%q: got %v, want %v", value, got, want)
		}
	}
}

func TestATinyRateIsOneDispatchPerRetention(t *testing.T) {
	var p pace
	p.limit(1e-300, 1)
	now := time.Unix(0, 0)
	if p.earliest().After(now) {
		t.Fatal("want the first dispatch at once")
	}
	p.take(now)
	if got, want := p.earliest(), now.Add(retention); !got.Equal(want) {
		t.Fatalf("got the second at %v, want %v", got, want)
	}
}

func TestANewRateHoldsAtOnce(t *testing.T) {
	var p pace
	p.limit(0.001, 1)
	now := time.Unix(0, 0)
	p.take(now)
	p.limit(0.001, 1) // another setting of the queue has changed
	if !p.earliest().After(now) {
		t.Error("the same rate forgot what was taken")
	}
	p.limit(500, 1)
	if p.earliest().After(now) {
		t.Errorf("got the next at %v, want it at once", p.earliest())
	}
}

func TestTombstonesAreBounded(t *testing.T) {
	var names tombstones
	now := time.Unix(0, 0)
	for i := range maxTombstones + 1 {
		names.add(fmt.Sprint(i), now)
	}
	if len(names.held) != maxTombstones || len(names.order) != maxTombstones {
		t.Fatalf("got %d and %d, want %d", len(names.held), len(names.order), maxTombstones)
	}
	if names.holds("0", now) || !names.holds("1", now) {
		t.Fatal("want the oldest alone let go")
	}
	if names.holds("1", now.Add(nameHeld)) || len(names.held) != 0 {
		t.Fatalf("got %d held after %v, want none", len(names.held), nameHeld)
	}
}

func TestAHundredThousandScheduledTasksNeedNoGoroutineEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tasks = 100_000
		var delivered atomic.Int64
		s := NewServer(Options{Transport: counting{&delivered}})
		defer s.Close()
		a := &api{s: s}
		name := "projects/p/locations/l/queues/q"
		_, err := a.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{
			Parent: "projects/p/locations/l", Queue: &cloudtaskspb.Queue{Name: name},
		})
		if err != nil {
			t.Fatal(err)
		}
		due := timestamppb.New(time.Now().Add(time.Hour))
		before := runtime.NumGoroutine()
		for range tasks {
			_, err := a.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: name, Task: &cloudtaskspb.Task{
				ScheduleTime: due,
				MessageType:  &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{Url: "http://h/"}},
			}})
			if err != nil {
				t.Fatal(err)
			}
		}
		if got := runtime.NumGoroutine() - before; got > 10 {
			t.Fatalf("got %d more goroutines for %d tasks", got, tasks)
		}
		if err := s.Idle(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := delivered.Load(); got != tasks {
			t.Fatalf("got %d delivered, want %d", got, tasks)
		}
	})
}

func duration(seconds int64) *durationpb.Duration { return &durationpb.Duration{Seconds: seconds} }

// counting answers 200 and counts.
type counting struct{ n *atomic.Int64 }

func (c counting) RoundTrip(*http.Request) (*http.Response, error) {
	c.n.Add(1)
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}
