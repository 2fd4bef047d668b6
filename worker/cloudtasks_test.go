package worker

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
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
	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
)

const queuePath = "projects/p/locations/l/queues/q"

// cloudQueue is an embedded Cloud Tasks that calls the workers one after another, in this process.
type cloudQueue struct {
	*cloudtasks.Server
	*taskqueue.Queue

	mu          sync.Mutex
	unavailable bool // CreateTask does not answer
	refuses     bool // GetTask
	lose        int  // one of so many created tasks is lost; zero: none
	purged      map[string]bool
	created     []string
	asked       int // calls of GetTask
	workers     []http.Handler
	deliveries  []cloudtasks.Delivery
}

// startQueue makes a queue that retries as the shipped one does.
func startQueue(t *testing.T) *cloudQueue {
	t.Helper()
	return startThrottled(t, cloudtasks.Unthrottled)
}

// startThrottled is like startQueue, with that throttling.
func startThrottled(t testing.TB, how cloudtasks.Throttling) *cloudQueue {
	t.Helper()
	return startLimited(t, how, 0)
}

// startLimited is like startThrottled, with so many deliveries at once; zero: the default.
func startLimited(t testing.TB, how cloudtasks.Throttling, atOnce int32) *cloudQueue {
	t.Helper()
	q := &cloudQueue{}
	q.Server = cloudtasks.NewServer(cloudtasks.Options{Transport: q, Throttling: how, Observe: func(d cloudtasks.Delivery) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.deliveries = append(q.deliveries, d)
	}})
	t.Cleanup(q.Server.Close)
	conn, err := q.Dial(grpc.WithChainUnaryInterceptor(q.intercept))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client, err := apiv2.NewClient(t.Context(), option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: "projects/p/locations/l", Queue: &cloudtaskspb.Queue{
		Name: queuePath, RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: atOnce},
		RetryConfig: &cloudtaskspb.RetryConfig{
			MaxAttempts: -1, MinBackoff: durationpb.New(30 * time.Second), MaxBackoff: durationpb.New(600 * time.Second), MaxDoublings: 5,
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	q.Queue, err = taskqueue.Open(t.Context(), taskqueue.Config{Name: queuePath, TargetURL: "https://worker.example"}, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func (q *cloudQueue) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if r, ok := req.(*cloudtaskspb.CreateTaskRequest); ok {
		q.mu.Lock()
		unavailable := q.unavailable
		q.created = append(q.created, r.GetTask().GetName())
		lost := q.lose > 0 && len(q.created)%q.lose == 0
		q.mu.Unlock()
		switch {
		case unavailable:
			return status.Error(codes.Unavailable, "unavailable")
		case lost:
			return nil
		}
	}
	if r, ok := req.(*cloudtaskspb.GetTaskRequest); ok {
		q.mu.Lock()
		q.asked++
		refuses, purged := q.refuses, q.purged[r.GetName()]
		q.mu.Unlock()
		switch {
		case refuses:
			return status.Error(codes.PermissionDenied, "no permission")
		case purged:
			return status.Error(codes.NotFound, "purged")
		}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// serve makes q call w, and w book in q.
func (q *cloudQueue) serve(w *process) {
	w.guard.Queue = q.Queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.workers = append(q.workers, w)
}

// RoundTrip sends the request to the next worker.
func (q *cloudQueue) RoundTrip(r *http.Request) (*http.Response, error) {
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
	w.ServeHTTP(rec, r)
	return rec.Result(), nil
}

// purge removes all tasks. As with Cloud Tasks, deliveries that are underway end.
func (q *cloudQueue) purge() {
	names := q.tasks()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.purged = names
}

// submit books the first delivery of id.
func (q *cloudQueue) submit(t *testing.T, id string) {
	t.Helper()
	if _, err := q.Book(t.Context(), taskqueue.Task{Name: taskqueue.Name("submit", id), AnalysisID: id}); err != nil {
		t.Fatal(err)
	}
}

// tasks returns the distinct names of the bookings.
func (q *cloudQueue) tasks() map[string]bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	names := map[string]bool{}
	for _, name := range q.created {
		names[name] = true
	}
	return names
}

func (q *cloudQueue) statuses() (all []int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.deliveries {
		all = append(all, q.deliveries[i].Status)
	}
	return all
}

func (q *cloudQueue) setUnavailable(unavailable bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.unavailable = unavailable
}

var _ delivery.Queue = (*cloudQueue)(nil)
