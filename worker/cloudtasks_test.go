package worker

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiv2 "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"taskguard/emulator/cloudtasks"
	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/must"
)

const queuePath = "projects/p/locations/l/queues/q"

// CloudQueue is an embedded Cloud Tasks that calls the workers one after another, in this process.
type CloudQueue struct {
	*cloudtasks.Server
	*taskqueue.Queue
	Conn *grpc.ClientConn
	Slow time.Duration // which CreateTask takes

	mu         sync.Mutex
	fails      codes.Code // of CreateTask
	lose       int        // one of so many created tasks is lost; zero: none
	purged     map[string]bool
	created    []string // the names, also of those that failed
	booked     []*cloudtaskspb.Task
	asked      int // calls of GetTask
	workers    []http.Handler
	deliveries []cloudtasks.Delivery
}

// StartQueue makes a queue that retries as the shipped one does.
func StartQueue(t testing.TB) *CloudQueue {
	t.Helper()
	return startLimited(t, cloudtasks.Unthrottled, 0)
}

// startLimited is like StartQueue, with that throttling, and so many deliveries at once; zero: the
// default.
func startLimited(t testing.TB, how cloudtasks.Throttling, atOnce int32) *CloudQueue {
	t.Helper()
	q := &CloudQueue{}
	observe := func(d cloudtasks.Delivery) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.deliveries = append(q.deliveries, d)
	}
	q.Server = cloudtasks.NewServer(cloudtasks.Options{Transport: q, Throttling: how, Observe: observe})
	t.Cleanup(q.Server.Close)
	q.Conn = must.Get(q.Dial(grpc.WithChainUnaryInterceptor(q.intercept)))(t)
	t.Cleanup(func() { _ = q.Conn.Close() })
	client := must.Get(apiv2.NewClient(t.Context(), option.WithGRPCConn(q.Conn)))(t)
	shipped := &cloudtaskspb.Queue{
		Name: queuePath, RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: atOnce},
		RetryConfig: &cloudtaskspb.RetryConfig{
			MaxAttempts: -1, MaxDoublings: 5,
			MinBackoff: durationpb.New(30 * time.Second), MaxBackoff: durationpb.New(600 * time.Second),
		},
	}
	create := &cloudtaskspb.CreateQueueRequest{Parent: "projects/p/locations/l", Queue: shipped}
	must.Get(client.CreateQueue(t.Context(), create))(t)
	cfg := taskqueue.Config{Name: queuePath, TargetURL: "https://worker.example"}
	q.Queue = must.Get(taskqueue.Open(t.Context(), cfg, option.WithGRPCConn(q.Conn)))(t)
	return q
}

// Use makes a Guard book in q.
func (q *CloudQueue) Use(o *Options) {
	o.QueueOptions = []option.ClientOption{option.WithGRPCConn(q.Conn)}
	o.Queue = Queue{
		Name: queuePath, TargetURL: "https://service.example/base",
		Caller: "a@b.c", Audience: "https://audience.example",
	}
}

// Share makes one of several Guards book in q, each on a connection that its Shutdown closes.
func (q *CloudQueue) Share(o *Options) {
	q.Use(o)
	conn, err := q.Dial(grpc.WithChainUnaryInterceptor(q.intercept))
	if err != nil {
		panic(err) // an embedded one needs no network
	}
	o.QueueOptions = []option.ClientOption{option.WithGRPCConn(conn)}
}

func (q *CloudQueue) intercept(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	q.mu.Lock()
	var fails codes.Code
	lost := false
	switch r := req.(type) {
	case *cloudtaskspb.CreateTaskRequest:
		fails, q.created = q.fails, append(q.created, r.GetTask().GetName())
		lost = q.lose > 0 && len(q.created)%q.lose == 0
	case *cloudtaskspb.GetTaskRequest:
		q.asked++
		if q.purged[r.GetName()] {
			fails = codes.NotFound
		}
	}
	q.mu.Unlock()
	time.Sleep(q.Slow)
	if fails != codes.OK || lost {
		return status.Error(fails, "injected")
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if r, ok := req.(*cloudtaskspb.CreateTaskRequest); ok && err == nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.booked = append(q.booked, r.GetTask())
	}
	return err
}

// serve makes q call w, and w book in q.
func (q *CloudQueue) serve(w *process) {
	w.runner.Queue = q.Queue
	q.Serve(w)
}

// Serve makes q call h.
func (q *CloudQueue) Serve(h http.Handler) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.workers = append(q.workers, h)
}

// RoundTrip sends the request to the next worker.
func (q *CloudQueue) RoundTrip(r *http.Request) (*http.Response, error) {
	q.mu.Lock()
	switch {
	case q.purged[queuePath+"/tasks/"+r.Header.Get("X-CloudTasks-TaskName")]: // the queue forgets the task
		q.mu.Unlock()
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	case len(q.workers) == 0:
		q.mu.Unlock()
		return nil, errors.New("no worker listens")
	}
	w := q.workers[0]
	q.workers = append(q.workers[1:], w)
	q.mu.Unlock()
	rec := httptest.NewRecorder()
	r.URL.Path = strings.TrimPrefix(r.URL.Path, "/base")
	w.ServeHTTP(rec, r)
	return rec.Result(), nil
}

// idle waits until no task is left.
func (q *CloudQueue) idle(t *testing.T) {
	t.Helper()
	must.OK(t, q.Idle(t.Context()))
}

// purge removes all tasks. As with Cloud Tasks, deliveries that are underway end.
func (q *CloudQueue) purge() {
	names := q.tasks()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.purged = names
}

// submit books the first delivery of id.
func (q *CloudQueue) submit(t *testing.T, id string) {
	t.Helper()
	if _, err := q.Book(t.Context(), taskqueue.Task{Name: taskqueue.Name("submit", id), AnalysisID: id}); err != nil {
		t.Fatal(err)
	}
}

// tasks returns the distinct names of the bookings.
func (q *CloudQueue) tasks() map[string]bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	names := map[string]bool{}
	for _, name := range q.created {
		names[name] = true
	}
	return names
}

// Tasks returns the tasks that have been booked, in order.
func (q *CloudQueue) Tasks() []*cloudtaskspb.Task {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.booked)
}

func (q *CloudQueue) statuses() (all []int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.deliveries {
		all = append(all, q.deliveries[i].Status)
	}
	return all
}

// Fail makes CreateTask fail with this code, or succeed again: codes.OK.
func (q *CloudQueue) Fail(code codes.Code) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.fails = code
}
