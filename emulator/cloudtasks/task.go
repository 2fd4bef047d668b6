package cloudtasks

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A task's documented limits and defaults.
const (
	maxTaskBytes    = 1 << 20
	maxAhead        = 30 * 24 * time.Hour
	minDeadline     = 15 * time.Second
	maxDeadline     = 30 * time.Minute
	defaultDeadline = 10 * time.Minute
	userAgent       = "Google-Cloud-Tasks"
)

// task is one task of a queue. The fields of its creation never change and are
// read without a lock; Server.mu guards the rest.
type task struct {
	queue    *queue
	id       string
	named    bool // the creator has chosen the name
	request  *cloudtaskspb.HttpRequest
	deadline time.Duration // how long one dispatch may take
	created  time.Time
	seq      uint64 // grows in order of creation, within the queue

	due        time.Time // when the next attempt is due, or when the one in flight was
	dispatched int       // attempts begun
	began      time.Time // the last of them
	answered   time.Time // when the last ended; zero: it is in flight
	responses  int       // attempts that got an answer
	executed   int       // attempts that got an answer other than 5xx
	previous   int       // HTTP status of the last attempt that ended; 0 before
}

// attempt is one delivery of a task, with the values of its headers. It does not change.
type attempt struct {
	task      *task
	number    int       // attempts begun before it
	executed  int       // the task's, when the attempt began
	previous  int       // the task's, when the attempt began
	eta       time.Time // the task's schedule time
	duplicate bool
}

// newTask checks the creator's task and returns a copy with all defaults, but without id
// and queue.
func newTask(in *cloudtaskspb.Task, now time.Time) (*task, error) {
	request := proto.CloneOf(in.GetHttpRequest())
	switch {
	case in.GetAppEngineHttpRequest() != nil:
		return nil, unimplemented("task.app_engine_http_request")
	case in.GetRetryConfig() != nil:
		return nil, unimplemented("task.retry_config")
	case request == nil:
		return nil, invalid("task.http_request", "is required")
	case proto.Size(in) > maxTaskBytes:
		return nil, invalid("task", "larger than 1 MiB")
	}
	u, err := url.Parse(request.Url)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, invalid("task.http_request.url", "is not an http:// or https:// URL with a host")
	}
	request.HttpMethod = cmp.Or(request.HttpMethod, cloudtaskspb.HttpMethod_POST)
	request.Headers = sentHeaders(request.Headers)

	due := now
	if at := in.ScheduleTime.AsTime(); at.After(now) {
		due = at
	}
	if due.After(now.Add(maxAhead)) {
		return nil, invalid("task.schedule_time", "is more than 30 days ahead")
	}

	deadline := defaultDeadline
	if in.DispatchDeadline != nil {
		deadline = in.DispatchDeadline.AsDuration()
	}
	if deadline < minDeadline || deadline > maxDeadline {
		return nil, invalid("task.dispatch_deadline", "is not between 15 s and 30 min")
	}
	return &task{request: request, deadline: deadline, created: now, due: due}, nil
}

// sentHeaders returns the creator's headers under their canonical names, without
// those that Cloud Tasks sets itself.
func sentHeaders(in map[string]string) map[string]string {
	out := map[string]string{}
	for name, value := range in {
		if name = http.CanonicalHeaderKey(name); !strings.HasPrefix(name, "X-Cloudtasks-") {
			out[name] = value
		}
	}
	out["User-Agent"] = userAgent
	return out
}

// begin counts a new attempt and returns it.
func (t *task) begin(now time.Time) *attempt {
	a := &attempt{task: t, number: t.dispatched, executed: t.executed, previous: t.previous, eta: t.due}
	t.dispatched++
	t.began, t.answered = now, time.Time{}
	return a
}

// view returns the task for the API, without its body unless the view is full. The result
// shares the request with the task, so it must not be modified.
func (t *task) view(view cloudtaskspb.Task_View) *cloudtaskspb.Task {
	request := t.request
	if view != cloudtaskspb.Task_FULL {
		request, view = proto.CloneOf(request), cloudtaskspb.Task_BASIC
		request.Body = nil
	}

	var last *cloudtaskspb.Attempt
	if t.dispatched > 0 {
		last = &cloudtaskspb.Attempt{DispatchTime: timestamppb.New(t.began)}
	}
	if !t.answered.IsZero() {
		last.ResponseTime = timestamppb.New(t.answered)
	}
	return &cloudtaskspb.Task{
		Name:             t.queue.pb.Name + "/tasks/" + t.id,
		MessageType:      &cloudtaskspb.Task_HttpRequest{HttpRequest: request},
		ScheduleTime:     timestamppb.New(t.due.Truncate(time.Microsecond)),
		CreateTime:       timestamppb.New(t.created.Truncate(time.Second)),
		DispatchDeadline: durationpb.New(t.deadline),
		DispatchCount:    int32(t.dispatched),
		ResponseCount:    int32(t.responses),
		LastAttempt:      last,
		View:             view,
	}
}
