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
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// api implements Cloud Tasks. Its other methods answer UNIMPLEMENTED.
type api struct {
	cloudtaskspb.UnimplementedCloudTasksServer
	s *Server
}

func invalid(field, problem string) error {
	return status.Errorf(codes.InvalidArgument, "%s: %s", field, problem)
}

func unimplemented(feature string) error {
	return status.Errorf(codes.Unimplemented, "%s: not emulated", feature)
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

// changeQueue runs change on the named queue, locked, and returns the queue.
func (a *api) changeQueue(name string, change func(*queue)) (pb *cloudtaskspb.Queue, err error) {
	err = a.withQueue("name", name, func(q *queue) error {
		change(q)
		q.signal()
		pb = proto.CloneOf(q.pb)
		return nil
	})
	return pb, err
}

// withTask runs f on the named task, locked.
func (a *api) withTask(name string, f func(*task)) error {
	queueName, id, err := splitTaskName(name)
	if err != nil {
		return err
	}
	return a.withQueue("name", queueName, func(q *queue) error {
		t := q.tasks[id]
		if t == nil {
			return status.Error(codes.NotFound, "task does not exist")
		}
		f(t)
		return nil
	})
}

// CreateQueue creates a queue. Fields that the request does not set get the service's
// defaults.
func (a *api) CreateQueue(_ context.Context, req *cloudtaskspb.CreateQueueRequest) (*cloudtaskspb.Queue, error) {
	if location, _, _ := strings.Cut(req.Queue.GetName(), "/queues/"); location != req.Parent {
		return nil, invalid("queue.name", "is not in parent")
	}
	return a.s.createQueue(req.Queue)
}

// CreateQueue creates a queue, as the call of the API does.
func (s *Server) CreateQueue(pb *cloudtaskspb.Queue) error {
	_, err := s.createQueue(pb)
	return err
}

func (s *Server) createQueue(pb *cloudtaskspb.Queue) (*cloudtaskspb.Queue, error) {
	if err := checkQueue(pb); err != nil {
		return nil, err
	}
	switch {
	case pb.RateLimits.GetMaxDispatchesPerSecond() != 0:
		return nil, unimplemented("queue.rate_limits.max_dispatches_per_second")
	case pb.RetryConfig.GetMaxRetryDuration() != nil:
		return nil, unimplemented("queue.retry_config.max_retry_duration")
	case pb.HttpTarget != nil, pb.AppEngineRoutingOverride != nil:
		return nil, unimplemented("a target of the queue")
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues[pb.Name] != nil {
		return nil, status.Error(codes.AlreadyExists, "queue already exists")
	}
	pb = withDefaults(pb)
	s.newQueue(pb)
	return proto.CloneOf(pb), nil
}

// GetQueue returns one queue.
func (a *api) GetQueue(_ context.Context, req *cloudtaskspb.GetQueueRequest) (*cloudtaskspb.Queue, error) {
	return a.changeQueue(req.Name, func(*queue) {})
}

// ListQueues returns all queues of a location on one page, in the order of their names.
func (a *api) ListQueues(
	_ context.Context, req *cloudtaskspb.ListQueuesRequest,
) (*cloudtaskspb.ListQueuesResponse, error) {
	if err := checkQueueName("parent", req.Parent+"/queues/any"); err != nil {
		return nil, err
	}
	if req.Filter != "" {
		return nil, unimplemented("filter")
	}
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	resp := &cloudtaskspb.ListQueuesResponse{}
	for _, name := range slices.Sorted(maps.Keys(a.s.queues)) {
		if strings.HasPrefix(name, req.Parent+"/queues/") {
			resp.Queues = append(resp.Queues, proto.CloneOf(a.s.queues[name].pb))
		}
	}
	return resp, nil
}

// PurgeQueue deletes the tasks of a queue.
func (a *api) PurgeQueue(_ context.Context, req *cloudtaskspb.PurgeQueueRequest) (*cloudtaskspb.Queue, error) {
	return a.changeQueue(req.Name, func(q *queue) {
		for _, t := range q.tasks {
			q.discard(t)
		}
	})
}

// PauseQueue stops the dispatches of a queue.
func (a *api) PauseQueue(_ context.Context, req *cloudtaskspb.PauseQueueRequest) (*cloudtaskspb.Queue, error) {
	return a.changeQueue(req.Name, func(q *queue) { q.pb.State = cloudtaskspb.Queue_PAUSED })
}

// ResumeQueue continues the dispatches of a paused queue.
func (a *api) ResumeQueue(_ context.Context, req *cloudtaskspb.ResumeQueueRequest) (*cloudtaskspb.Queue, error) {
	return a.changeQueue(req.Name, func(q *queue) { q.pb.State = cloudtaskspb.Queue_RUNNING })
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
		if t.queue = q; t.storedBytes() > maxTaskBytes {
			return invalid("task", "Task size too large")
		}
		q.add(t)
		pb = t.view(req.ResponseView)
		return nil
	})
	return pb, err
}

// GetTask returns one task.
func (a *api) GetTask(_ context.Context, req *cloudtaskspb.GetTaskRequest) (pb *cloudtaskspb.Task, err error) {
	err = a.withTask(req.Name, func(t *task) { pb = t.view(req.ResponseView) })
	return pb, err
}

// DeleteTask deletes one task. A delivery that is in flight goes on.
func (a *api) DeleteTask(_ context.Context, req *cloudtaskspb.DeleteTaskRequest) (*emptypb.Empty, error) {
	err := a.withTask(req.Name, func(t *task) { t.queue.discard(t) })
	return &emptypb.Empty{}, err
}

// defaultPage is how many tasks ListTasks returns at most, unless the request says less.
const defaultPage = 1000

// ListTasks returns tasks in order of creation. The token of a page is the number of the last
// task before it.
func (a *api) ListTasks(
	_ context.Context, req *cloudtaskspb.ListTasksRequest,
) (*cloudtaskspb.ListTasksResponse, error) {
	lastSeq, err := strconv.ParseUint(cmp.Or(req.PageToken, "0"), 10, 64)
	if err != nil || req.PageSize < 0 {
		return nil, invalid("page_token", "is not one of ListTasks, or page_size is negative")
	}
	size := min(cmp.Or(int(req.PageSize), defaultPage), defaultPage)

	resp := &cloudtaskspb.ListTasksResponse{}
	bySeq := func(a, b *task) int { return cmp.Compare(a.seq, b.seq) }
	err = a.withQueue("parent", req.Parent, func(q *queue) error {
		for _, t := range slices.SortedFunc(maps.Values(q.tasks), bySeq) {
			if t.seq <= lastSeq {
				continue
			}
			if len(resp.Tasks) == size {
				resp.NextPageToken = strconv.FormatUint(lastSeq, 10)
				break
			}
			resp.Tasks = append(resp.Tasks, t.view(req.ResponseView))
			lastSeq = t.seq
		}
		return nil
	})
	return resp, err
}
