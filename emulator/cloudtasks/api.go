package cloudtasks

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxTaskPage is the most tasks in one page of a list.
const maxTaskPage = 1000

// api answers the calls of Cloud Tasks. What it does not implement answers
// UNIMPLEMENTED.
type api struct {
	cloudtaskspb.UnimplementedCloudTasksServer
	s *Server
}

func invalid(field, problem string) error {
	return status.Errorf(codes.InvalidArgument, "%s: %s", field, problem)
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

// CreateQueue creates a queue; what the request leaves open is the service's
// default.
func (a *api) CreateQueue(_ context.Context, req *cloudtaskspb.CreateQueueRequest) (*cloudtaskspb.Queue, error) {
	name := req.Queue.GetName()
	if err := checkQueueName("queue.name", name); err != nil {
		return nil, err
	}
	if name[:len(name)-len("/queues/")-len(shortID(name))] != req.Parent {
		return nil, invalid("queue.name", "is not in parent")
	}
	if req.Queue.HttpTarget != nil || req.Queue.AppEngineRoutingOverride != nil {
		return nil, status.Error(codes.Unimplemented, "a target of the queue is not emulated")
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

// PurgeQueue removes every task and every pending duplicate.
func (a *api) PurgeQueue(_ context.Context, req *cloudtaskspb.PurgeQueueRequest) (pb *cloudtaskspb.Queue, err error) {
	err = a.withQueue("name", req.Name, func(q *queue) error {
		q.purge(time.Now())
		pb = q.pb
		return nil
	})
	return pb, err
}

// CreateTask adds a task, under its creator's name or a new one.
func (a *api) CreateTask(_ context.Context, req *cloudtaskspb.CreateTaskRequest) (pb *cloudtaskspb.Task, err error) {
	now := time.Now()
	t, err := newTask(req.Task, now)
	if err != nil {
		return nil, err
	}
	if req.Task.Name != "" {
		queueName, id, err := splitTaskName(req.Task.Name)
		if err != nil {
			return nil, err
		}
		if queueName != req.Parent {
			return nil, invalid("task.name", "is not in parent")
		}
		t.id, t.named = id, true
	} else {
		t.id = strconv.FormatUint(rand.Uint64(), 10)
	}
	err = a.withQueue("parent", req.Parent, func(q *queue) error {
		if q.tasks[t.id] != nil || q.names.holds(t.id, now) {
			return status.Error(codes.AlreadyExists, "a task of this name exists or existed recently")
		}
		q.add(t)
		pb = t.view(req.ResponseView)
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
		pb = t.view(req.ResponseView)
		return nil
	})
	return pb, err
}

// ListTasks lists in order of creation. A page token is the sequence number of
// the page's last task.
func (a *api) ListTasks(_ context.Context, req *cloudtaskspb.ListTasksRequest) (*cloudtaskspb.ListTasksResponse, error) {
	after, err := strconv.ParseUint(cmp.Or(req.PageToken, "0"), 10, 64)
	if err != nil || req.PageSize < 0 {
		return nil, invalid("page_token, page_size", "are not a page of this server's")
	}
	size := maxTaskPage
	if req.PageSize > 0 {
		size = min(size, int(req.PageSize))
	}
	resp := &cloudtaskspb.ListTasksResponse{}
	err = a.withQueue("parent", req.Parent, func(q *queue) error {
		tasks := slices.SortedFunc(maps.Values(q.tasks), func(a, b *task) int { return cmp.Compare(a.seq, b.seq) })
		tasks = slices.DeleteFunc(tasks, func(t *task) bool { return t.seq <= after })
		if len(tasks) > size {
			tasks = tasks[:size]
			resp.NextPageToken = strconv.FormatUint(tasks[size-1].seq, 10)
		}
		for _, t := range tasks {
			resp.Tasks = append(resp.Tasks, t.view(req.ResponseView))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}
