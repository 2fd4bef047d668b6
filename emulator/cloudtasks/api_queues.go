package cloudtasks

import (
	"context"
	"maps"
	"slices"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

const maxQueuePage = 9800

// api is the gRPC face of a Server.
type api struct {
	cloudtaskspb.UnimplementedCloudTasksServer
	s *Server
}

// lock takes s.mu, unless the server is closed.
func (a *api) lock() error {
	a.s.mu.Lock()
	if a.s.closed {
		a.s.mu.Unlock()
		return status.Error(codes.Unavailable, "the server is closed")
	}
	return nil
}

// withQueue runs f on the named queue, locked.
func (a *api) withQueue(field, name string, f func(*queue)) error {
	if err := checkQueueName(field, name); err != nil {
		return err
	}
	if err := a.lock(); err != nil {
		return err
	}
	defer a.s.mu.Unlock()
	q := a.s.queues[name]
	if q == nil {
		return status.Error(codes.NotFound, "queue does not exist")
	}
	f(q)
	return nil
}

func (a *api) CreateQueue(_ context.Context, req *cloudtaskspb.CreateQueueRequest) (*cloudtaskspb.Queue, error) {
	if err := checkLocation(req.Parent); err != nil {
		return nil, err
	}
	name := req.Queue.GetName()
	if err := checkQueueName("queue.name", name); err != nil {
		return nil, err
	}
	if location(name) != req.Parent {
		return nil, status.Error(codes.InvalidArgument, "queue.name: is not in parent")
	}
	pb, err := updatedQueue(defaultQueue(name), req.Queue, nil)
	if err != nil {
		return nil, err
	}
	if err := normalizeQueue(pb, nil); err != nil {
		return nil, err
	}
	if err := a.lock(); err != nil {
		return nil, err
	}
	defer a.s.mu.Unlock()
	if a.s.queues[name] != nil {
		return nil, status.Error(codes.AlreadyExists, "queue already exists")
	}
	return a.s.newQueue(pb).pb, nil
}

func (a *api) GetQueue(_ context.Context, req *cloudtaskspb.GetQueueRequest) (pb *cloudtaskspb.Queue, err error) {
	err = a.withQueue("name", req.Name, func(q *queue) { pb = q.pb })
	return pb, err
}

func (a *api) ListQueues(_ context.Context, req *cloudtaskspb.ListQueuesRequest) (*cloudtaskspb.ListQueuesResponse, error) {
	if err := checkLocation(req.Parent); err != nil {
		return nil, err
	}
	if req.Filter != "" {
		return nil, status.Error(codes.Unimplemented, "filter: not emulated")
	}
	size, err := pageSize(req.PageSize, maxQueuePage)
	if err != nil {
		return nil, err
	}
	if err := a.lock(); err != nil {
		return nil, err
	}
	defer a.s.mu.Unlock()
	resp := &cloudtaskspb.ListQueuesResponse{}
	for _, name := range slices.Sorted(maps.Keys(a.s.queues)) {
		if location(name) != req.Parent || name <= req.PageToken {
			continue
		}
		if len(resp.Queues) == size {
			resp.NextPageToken = resp.Queues[size-1].Name
			break
		}
		resp.Queues = append(resp.Queues, a.s.queues[name].pb)
	}
	return resp, nil
}

func (a *api) UpdateQueue(_ context.Context, req *cloudtaskspb.UpdateQueueRequest) (*cloudtaskspb.Queue, error) {
	name := req.Queue.GetName()
	if err := checkQueueName("queue.name", name); err != nil {
		return nil, err
	}
	if err := a.lock(); err != nil {
		return nil, err
	}
	defer a.s.mu.Unlock()
	q := a.s.queues[name]
	var old *cloudtaskspb.Queue
	if q != nil {
		old = q.pb
	} else {
		old = defaultQueue(name)
	}
	pb, err := updatedQueue(old, req.Queue, req.UpdateMask)
	if err != nil {
		return nil, err
	}
	if err := normalizeQueue(pb, req.UpdateMask); err != nil {
		return nil, err
	}
	if q == nil { // as documented: an update creates what is missing
		q = a.s.newQueue(pb)
	} else {
		q.configure(pb)
	}
	return q.pb, nil
}

func (a *api) DeleteQueue(_ context.Context, req *cloudtaskspb.DeleteQueueRequest) (*emptypb.Empty, error) {
	err := a.withQueue("name", req.Name, func(q *queue) { q.delete(time.Now()) })
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

func (a *api) PurgeQueue(_ context.Context, req *cloudtaskspb.PurgeQueueRequest) (pb *cloudtaskspb.Queue, err error) {
	err = a.withQueue("name", req.Name, func(q *queue) {
		now := time.Now()
		q.purge(now)
		q.change(func(pb *cloudtaskspb.Queue) { pb.PurgeTime = micros(now) })
		pb = q.pb
	})
	return pb, err
}

func (a *api) PauseQueue(_ context.Context, req *cloudtaskspb.PauseQueueRequest) (*cloudtaskspb.Queue, error) {
	return a.setState(req.Name, cloudtaskspb.Queue_PAUSED)
}

func (a *api) ResumeQueue(_ context.Context, req *cloudtaskspb.ResumeQueueRequest) (*cloudtaskspb.Queue, error) {
	return a.setState(req.Name, cloudtaskspb.Queue_RUNNING)
}

func (a *api) setState(name string, state cloudtaskspb.Queue_State) (pb *cloudtaskspb.Queue, err error) {
	err = a.withQueue("name", name, func(q *queue) {
		q.change(func(pb *cloudtaskspb.Queue) { pb.State = state })
		pb = q.pb
	})
	return pb, err
}

// pageSize returns how many items a page may have at most.
func pageSize(asked int32, most int) (int, error) {
	if asked < 0 {
		return 0, status.Error(codes.InvalidArgument, "page_size: is negative")
	}
	if asked == 0 || int(asked) > most {
		return most, nil
	}
	return int(asked), nil
}
