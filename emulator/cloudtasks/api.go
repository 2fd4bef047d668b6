package cloudtasks

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// api implements Cloud Tasks. Its other methods answer UNIMPLEMENTED.
type api struct {
	cloudtaskspb.UnimplementedCloudTasksServer
	s *Server
}

func invalid(field, problem string) error {
	return status.Errorf(codes.InvalidArgument, "%s: %s", field, problem)
}

func unimplemented(what string) error {
	return status.Errorf(codes.Unimplemented, "%s: not emulated", what)
}

// withQueue runs f on the named queue, locked.
func (a *api) withQueue(field, name string, f func(*queue) error) error {
	if err := checkQueueName(field, name); err != nil {
		return err
	}
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	q := a.s.queues[name]
	if q == nil {
		return status.Error(codes.NotFound, "queue does not exist")
	}
	return f(q)
}

// CreateQueue creates a queue. Fields that the request does not set get the service's
// defaults.
func (a *api) CreateQueue(_ context.Context, req *cloudtaskspb.CreateQueueRequest) (*cloudtaskspb.Queue, error) {
	name := req.Queue.GetName()
	if err := checkQueueName("queue.name", name); err != nil {
		return nil, err
	}
	if location, _, _ := strings.Cut(name, "/queues/"); location != req.Parent {
		return nil, invalid("queue.name", "is not in parent")
	}

	limits, retry := req.Queue.RateLimits, req.Queue.RetryConfig
	switch {
	case limits.GetMaxDispatchesPerSecond() != 0:
		return nil, unimplemented("queue.rate_limits.max_dispatches_per_second")
	case retry.GetMaxRetryDuration() != nil:
		return nil, unimplemented("queue.retry_config.max_retry_duration")
	case req.Queue.HttpTarget != nil, req.Queue.AppEngineRoutingOverride != nil:
		return nil, unimplemented("a target of the queue")
	}

	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if a.s.queues[name] != nil {
		return nil, status.Error(codes.AlreadyExists, "queue already exists")
	}
	pb := withDefaults(req.Queue)
	a.s.newQueue(pb)
	return pb, nil
}

// CreateQueue creates a queue, as the call of the API does.
func (s *Server) CreateQueue(pb *cloudtaskspb.Queue) error {
	location, _, _ := strings.Cut(pb.GetName(), "/queues/")
	request := &cloudtaskspb.CreateQueueRequest{Parent: location, Queue: pb}
	_, err := (&api{s: s}).CreateQueue(context.Background(), request)
	return err
}

// CreateTask adds a task, under its creator's name or a new one.
func (a *api) CreateTask(_ context.Context, req *cloudtaskspb.CreateTaskRequest) (pb *cloudtaskspb.Task, err error) {
	now := time.Now()
	t, err := newTask(req.Task, now)
	if err != nil {
		return nil, err
	}

	t.id, t.named = strconv.FormatUint(rand.Uint64(), 10), req.Task.Name != ""
	if t.named {
		var queueName string
		if queueName, t.id, err = splitTaskName(req.Task.Name); err != nil {
			return nil, err
		}
		if queueName != req.Parent {
			return nil, invalid("task.name", "is not in parent")
		}
	}

	err = a.withQueue("parent", req.Parent, func(q *queue) error {
		if q.tasks[t.id] != nil || now.Before(q.refused[t.id]) {
			return status.Error(codes.AlreadyExists, "a task of this name exists or existed recently")
		}
		q.add(t)
		pb = t.view()
		return nil
	})
	return pb, err
}

// GetTask returns one task.
func (a *api) GetTask(_ context.Context, req *cloudtaskspb.GetTaskRequest) (pb *cloudtaskspb.Task, err error) {
	queueName, id, err := splitTaskName(req.Name)
	if err != nil {
		return nil, err
	}
	err = a.withQueue("name", queueName, func(q *queue) error {
		t := q.tasks[id]
		if t == nil {
			return status.Error(codes.NotFound, "task does not exist")
		}
		pb = t.view()
		return nil
	})
	return pb, err
}

// ListTasks returns all tasks on one page, in order of creation.
func (a *api) ListTasks(
	_ context.Context, req *cloudtaskspb.ListTasksRequest,
) (*cloudtaskspb.ListTasksResponse, error) {
	resp := &cloudtaskspb.ListTasksResponse{}
	bySeq := func(a, b *task) int { return cmp.Compare(a.seq, b.seq) }
	err := a.withQueue("parent", req.Parent, func(q *queue) error {
		for _, t := range slices.SortedFunc(maps.Values(q.tasks), bySeq) {
			resp.Tasks = append(resp.Tasks, t.view())
		}
		return nil
	})
	return resp, err
}
