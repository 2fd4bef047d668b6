package cloudtasks

import (
	"container/list"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// task is one task of a queue. What the creator said never changes after the
// creation and is read without a lock; the rest is guarded by Server.mu.
type task struct {
	queue    *queue
	id       string
	named    bool // by the creator
	name     string
	request  *cloudtaskspb.HttpRequest
	own      *cloudtaskspb.RetryConfig // nil: the queue's
	deadline time.Duration             // for one dispatch
	created  time.Time
	seq      uint64 // in order of creation, within the server

	due        time.Time // of the next attempt, or of the one in flight
	next       *dispatch // in the queue's schedule; nil while in flight
	age        *list.Element
	inFlight   int
	dispatched int // attempts begun
	answered   int // attempts that got an answer
	executed   int // attempts that got an answer other than 5xx
	previous   int // HTTP status of the last attempt that ended; 0 before
	firstBegan time.Time
	first      *cloudtaskspb.Attempt // replaced, never changed
	last       *cloudtaskspb.Attempt // replaced, never changed
	gone       bool
}

// attempt is one delivery of a task, with the counts that its headers show. It
// does not change once begun.
type attempt struct {
	task      *task
	number    int       // attempts begun before it
	executed  int       // as of its beginning
	previous  int       // as of its beginning
	eta       time.Time // the task's schedule time
	due       time.Time // when this delivery was to be sent
	forced    bool      // by RunTask
	duplicate bool
}

// begin counts a new attempt and returns it.
func (t *task) begin(now time.Time, forced bool) attempt {
	a := attempt{
		task: t, number: t.dispatched, executed: t.executed, previous: t.previous,
		eta: t.due, due: t.due, forced: forced,
	}
	t.next = nil
	t.inFlight++
	t.dispatched++
	if t.first == nil {
		t.firstBegan = now
		t.first = &cloudtaskspb.Attempt{DispatchTime: micros(now)}
	}
	t.last = &cloudtaskspb.Attempt{ScheduleTime: micros(a.due), DispatchTime: micros(now)}
	return a
}

// end counts an attempt's outcome, whatever becomes of the task.
func (t *task) end(a attempt, began, ended time.Time, o outcome) {
	t.inFlight--
	if o.status != 0 {
		t.answered++
		if o.status < 500 {
			t.executed++
		}
	}
	t.previous = o.code()
	t.last = &cloudtaskspb.Attempt{
		ScheduleTime:   micros(a.due),
		DispatchTime:   micros(began),
		ResponseTime:   micros(ended),
		ResponseStatus: o.rpcStatus(),
	}
}

func (t *task) policy() retryPolicy {
	if t.own != nil {
		return policyOf(t.own)
	}
	return policyOf(t.queue.pb.RetryConfig)
}

// view returns the task as the API shows it. It shares what never changes with
// the task: the result may be marshalled, not modified.
func (t *task) view(v cloudtaskspb.Task_View) *cloudtaskspb.Task {
	request := t.request
	if v != cloudtaskspb.Task_FULL {
		v = cloudtaskspb.Task_BASIC
		request = &cloudtaskspb.HttpRequest{
			Url:                 request.Url,
			HttpMethod:          request.HttpMethod,
			Headers:             request.Headers,
			AuthorizationHeader: request.AuthorizationHeader,
		}
	}
	created := t.created.Truncate(time.Second)
	return &cloudtaskspb.Task{
		Name:             t.name,
		MessageType:      &cloudtaskspb.Task_HttpRequest{HttpRequest: request},
		ScheduleTime:     micros(t.due),
		CreateTime:       timestamppb.New(created),
		DispatchDeadline: durationpb.New(t.deadline),
		DispatchCount:    int32(t.dispatched),
		ResponseCount:    int32(t.answered),
		FirstAttempt:     t.first,
		LastAttempt:      t.last,
		View:             v,
		RetryConfig:      t.own,
	}
}

// copyOut returns a full view that shares nothing with the task.
func (t *task) copyOut() *cloudtaskspb.Task {
	return proto.CloneOf(t.view(cloudtaskspb.Task_FULL))
}
