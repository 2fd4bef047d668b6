package cloudtasks

import (
	"context"
	"math"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	fuzzParent = "projects/p/locations/l"
	fuzzQueue  = fuzzParent + "/queues/q"
)

// polite answers every dispatch with 200 and notes those of another User-Agent.
type polite struct{ rude atomic.Int64 }

func (p *polite) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("User-Agent") != dispatcherHeader {
		p.rude.Add(1)
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatalf("marshal: %v", err)
	}
	return data
}

func fuzzTask(url string) *cloudtaskspb.Task {
	return &cloudtaskspb.Task{MessageType: &cloudtaskspb.Task_HttpRequest{
		HttpRequest: &cloudtaskspb.HttpRequest{Url: url, Body: []byte("x"), Headers: map[string]string{"X-A": "b"}},
	}}
}

// wantStatus fails unless err, which may be nil, is a status of the API's.
func wantStatus(t *testing.T, err error) {
	t.Helper()
	if c := status.Code(err); c == codes.Unknown || c == codes.Internal {
		t.Errorf("got %v, want a status of the API's", err)
	}
}

// FuzzCreateTask creates whatever the bytes mean: a task that is accepted is
// delivered, once, and then gone, within the 30 days for which it can be put off.
func FuzzCreateTask(f *testing.F) {
	later := fuzzTask("https://h/x?y=é")
	later.Name = fuzzQueue + "/tasks/later"
	later.ScheduleTime = timestamppb.New(time.Date(2000, 1, 9, 0, 0, 0, 0, time.UTC))
	later.DispatchDeadline = durationpb.New(15 * time.Second)
	later.RetryConfig = &cloudtaskspb.RetryConfig{MaxAttempts: -1, MinBackoff: durationpb.New(1)}
	signed := fuzzTask("http://[::1]:0/")
	signed.GetHttpRequest().HttpMethod = cloudtaskspb.HttpMethod_PATCH
	signed.GetHttpRequest().AuthorizationHeader = &cloudtaskspb.HttpRequest_OidcToken{OidcToken: &cloudtaskspb.OidcToken{ServiceAccountEmail: "a@b"}}
	engine := &cloudtaskspb.Task{MessageType: &cloudtaskspb.Task_AppEngineHttpRequest{}}
	for _, task := range []*cloudtaskspb.Task{nil, {}, engine, fuzzTask(""), fuzzTask("http://h"), fuzzTask("http://h:99999/%zz"), fuzzTask("http://h/p q?%zz"), later, signed} {
		f.Add(marshal(f, &cloudtaskspb.CreateTaskRequest{Parent: fuzzQueue, Task: task, ResponseView: cloudtaskspb.Task_FULL}))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		req := &cloudtaskspb.CreateTaskRequest{}
		if proto.Unmarshal(data, req) != nil {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			delivered := make(chan Delivery, 10)
			transport := &polite{}
			s := NewServer(Options{
				Transport: transport, Observe: func(d Delivery) { delivered <- d },
				Token: func(_, audience string) (string, error) { return audience, nil },
			})
			defer s.Close()
			a := &api{s: s}
			queue := &cloudtaskspb.CreateQueueRequest{Parent: fuzzParent, Queue: &cloudtaskspb.Queue{Name: fuzzQueue}}
			if _, err := a.CreateQueue(context.Background(), queue); err != nil {
				t.Fatal(err)
			}
			task, err := a.CreateTask(context.Background(), req)
			if wantStatus(t, err); err != nil {
				return
			}
			marshal(t, task)
			if err := s.Idle(context.Background()); err != nil {
				t.Fatal(err)
			}
			if len(delivered) != 1 {
				t.Fatalf("%d deliveries, want 1", len(delivered))
			}
			if d := <-delivered; d.Status != http.StatusOK || transport.rude.Load() > 0 {
				t.Errorf("accepted, but not sent as ours: %v", d.Err)
			}
		})
	})
}

// FuzzUpdateQueue configures a queue as the bytes mean, as an update and as a
// creation: what is accepted shows limits in range and still delivers a task
// before it is too old.
func FuzzUpdateQueue(f *testing.F) {
	odd := &cloudtaskspb.Queue{
		Name:        fuzzQueue,
		RateLimits:  &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: math.SmallestNonzeroFloat64, MaxConcurrentDispatches: 1},
		RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: -1, MinBackoff: durationpb.New(1), MaxDoublings: math.MaxInt32},
	}
	for _, queue := range []*cloudtaskspb.Queue{
		nil, {}, {Name: fuzzQueue}, odd, {Name: fuzzParent + "/queues/new"}, {Name: fuzzQueue, RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: math.NaN()}},
	} {
		for _, paths := range [][]string{nil, {"name", "state"}, {"rate_limits.max_dispatches_per_second", "retry_config"}, {"retry_config.max_doublings"}, {"stats"}, {""}} {
			f.Add(marshal(f, &cloudtaskspb.UpdateQueueRequest{Queue: queue, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths}}))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		update := &cloudtaskspb.UpdateQueueRequest{}
		if proto.Unmarshal(data, update) != nil {
			return
		}
		create := &cloudtaskspb.CreateQueueRequest{Parent: fuzzParent, Queue: update.Queue}
		synctest.Test(t, func(t *testing.T) {
			s := NewServer(Options{Transport: &polite{}})
			defer s.Close()
			a := &api{s: s}
			queue, err := a.CreateQueue(context.Background(), create)
			wantStatus(t, err)
			if updated, err := a.UpdateQueue(context.Background(), update); err == nil {
				queue = updated
			} else {
				wantStatus(t, err)
			}
			if queue == nil {
				return
			}
			wantInRange(t, queue)
			for range 3 {
				if _, err := a.CreateTask(context.Background(), &cloudtaskspb.CreateTaskRequest{Parent: queue.Name, Task: fuzzTask("http://h/")}); err != nil {
					t.Fatal(err)
				}
			}
			start := time.Now()
			if err := s.Idle(context.Background()); err != nil || time.Since(start) > retention {
				t.Errorf("idle after %v: %v", time.Since(start), err)
			}
		})
	})
}

func wantInRange(t *testing.T, q *cloudtaskspb.Queue) {
	t.Helper()
	marshal(t, q)
	limits, retry := q.RateLimits, q.RetryConfig
	if r := limits.GetMaxDispatchesPerSecond(); !(r > 0 && r <= maxRate) {
		t.Errorf("rate %v", r)
	}
	if c := limits.GetMaxConcurrentDispatches(); c < 1 || c > maxConcurrent {
		t.Errorf("concurrency %v", c)
	}
	if shortest, longest := retry.GetMinBackoff().AsDuration(), retry.GetMaxBackoff().AsDuration(); shortest <= 0 || shortest > longest {
		t.Errorf("backoff from %v to %v", shortest, longest)
	}
	if q.State != cloudtaskspb.Queue_RUNNING {
		t.Errorf("state %v", q.State)
	}
}
