package cloudtasks

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

const (
	maxTaskPage = 1000
	// maxPageBytes keeps a page under gRPC's default limit of 4 MiB together with
	// its last task of up to 1 MiB.
	maxPageBytes = 2 << 20
)

// withTask runs f on the named task, locked.
func (a *api) withTask(name string, f func(*task)) error {
	queueName, id, err := splitTaskName(name)
	if err != nil {
		return err
	}
	found := false
	err = a.withQueue("name", queueName, func(q *queue) {
		t := q.tasks[id]
		if t == nil {
			return
		}
		found = true
		f(t)
	})
	if err == nil && !found {
		err = status.Error(codes.NotFound, "task does not exist")
	}
	return err
}

func (a *api) CreateTask(_ context.Context, req *cloudtaskspb.CreateTaskRequest) (pb *cloudtaskspb.Task, err error) {
	if err := checkQueueName("parent", req.Parent); err != nil {
		return nil, err
	}
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
	}
	var refused error
	err = a.withQueue("parent", req.Parent, func(q *queue) {
		if refused = q.claimName(t, now); refused == nil {
			q.add(t)
			pb = t.view(req.ResponseView)
		}
	})
	if err != nil {
		return nil, err
	}
	return pb, refused
}

// claimName gives the task the name that its creator chose, or a new one.
func (q *queue) claimName(t *task, now time.Time) error {
	for !t.named && (t.id == "" || q.tasks[t.id] != nil) {
		t.id = strconv.FormatUint(rand.Uint64(), 10)
	}
	if q.tasks[t.id] != nil {
		return status.Error(codes.AlreadyExists, "a task of this name exists")
	}
	if q.names.holds(t.id, now) {
		return status.Error(codes.AlreadyExists, "a task of this name existed recently")
	}
	t.name = q.name + "/tasks/" + t.id
	return nil
}

func (a *api) GetTask(_ context.Context, req *cloudtaskspb.GetTaskRequest) (pb *cloudtaskspb.Task, err error) {
	err = a.withTask(req.Name, func(t *task) { pb = t.view(req.ResponseView) })
	return pb, err
}

// ListTasks lists in order of creation. A page token is the sequence number of
// the page's last task.
func (a *api) ListTasks(_ context.Context, req *cloudtaskspb.ListTasksRequest) (*cloudtaskspb.ListTasksResponse, error) {
	size, err := pageSize(req.PageSize, maxTaskPage)
	if err != nil {
		return nil, err
	}
	var after uint64
	if req.PageToken != "" {
		if after, err = strconv.ParseUint(req.PageToken, 10, 64); err != nil {
			return nil, invalid("page_token", "is not one of this server's")
		}
	}
	resp := &cloudtaskspb.ListTasksResponse{}
	err = a.withQueue("parent", req.Parent, func(q *queue) {
		bytes := 0
		var last uint64
		for e := q.ages.Front(); e != nil; e = e.Next() {
			t := e.Value.(*task)
			if t.seq <= after {
				continue
			}
			if len(resp.Tasks) == size || bytes > maxPageBytes {
				resp.NextPageToken = strconv.FormatUint(last, 10)
				return
			}
			pb := t.view(req.ResponseView)
			resp.Tasks = append(resp.Tasks, pb)
			bytes += proto.Size(pb)
			last = t.seq
		}
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func (a *api) DeleteTask(_ context.Context, req *cloudtaskspb.DeleteTaskRequest) (*emptypb.Empty, error) {
	err := a.withTask(req.Name, func(t *task) { t.queue.remove(t, time.Now()) })
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// RunTask dispatches now, whatever the queue's state and limits, also while the
// task is running. It returns the task as dispatched.
func (a *api) RunTask(_ context.Context, req *cloudtaskspb.RunTaskRequest) (pb *cloudtaskspb.Task, err error) {
	err = a.withTask(req.Name, func(t *task) {
		now := time.Now()
		if t.next != nil {
			t.queue.schedule.remove(t.next)
		}
		t.due = now
		t.queue.start(t.begin(now, true))
		pb = t.view(req.ResponseView)
	})
	return pb, err
}
