package cloudtasks

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A task's documented limits and defaults.
const (
	maxTaskBytes    = 1<<20 - 7 // as stored; recorded
	maxURLBytes     = 2083
	maxHeaderBytes  = 80 << 10
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
	first      time.Time // when the first of them began
	began      time.Time // when the last of them began
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
func newTask(submitted *cloudtaskspb.Task, now time.Time) (*task, error) {
	request := proto.CloneOf(submitted.GetHttpRequest())
	switch {
	case submitted.GetAppEngineHttpRequest() != nil:
		return nil, unimplemented("task.app_engine_http_request")
	case submitted.GetRetryConfig() != nil:
		return nil, unimplemented("task.retry_config")
	case request == nil:
		return nil, invalid("task.http_request", "is required")
	}
	u, err := url.Parse(request.Url)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || len(u.String()) > maxURLBytes {
		return nil, invalid("task.http_request.url",
			"is not an http:// or https:// URL with a host, of at most 2083 bytes")
	}
	request.HttpMethod = cmp.Or(request.HttpMethod, cloudtaskspb.HttpMethod_POST)
	name := cloudtaskspb.HttpMethod_name[int32(request.HttpMethod)] // empty: unknown
	if name == "" || len(request.Body) > 0 && name != "POST" && name != "PUT" && name != "PATCH" {
		return nil, invalid("task.http_request.http_method", "is unknown, or cannot have a body")
	}
	request.Headers = storedHeaders(request.Headers)
	if proto.Size(&cloudtaskspb.HttpRequest{Headers: request.Headers}) >= maxHeaderBytes {
		return nil, invalid("task.http_request.headers", "are not smaller than 80 KB")
	}

	due := now
	if scheduled := submitted.ScheduleTime.AsTime(); scheduled.After(now) {
		due = scheduled
	}
	if due.After(now.Add(maxAhead)) {
		return nil, invalid("task.schedule_time", "is more than 30 days ahead")
	}

	deadline := defaultDeadline
	if submitted.DispatchDeadline != nil {
		deadline = submitted.DispatchDeadline.AsDuration()
	}
	if deadline < minDeadline || deadline > maxDeadline {
		return nil, invalid("task.dispatch_deadline", "is not between 15 s and 30 min")
	}
	return &task{request: request, deadline: deadline, created: now, due: due}, nil
}

// storedHeaders returns the creator's headers, named as the creator named them, without the headers
// that Cloud Tasks sets or keeps for itself.
func storedHeaders(headers map[string]string) map[string]string {
	stored := map[string]string{}
	for name, value := range headers {
		if !reservedHeader.MatchString(name) {
			stored[name] = value
		}
	}
	stored["User-Agent"] = userAgent
	return stored
}

var reservedHeader = regexp.MustCompile(`(?i)^(host|content-length|user-agent|x-(cloudtasks|google|appengine)-.*)$`)

// begin counts a new attempt and returns it.
func (t *task) begin(now time.Time) *attempt {
	a := &attempt{task: t, number: t.dispatched, executed: t.executed, previous: t.previous, eta: t.due}
	if t.dispatched++; t.dispatched == 1 {
		t.first = now
	}
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

	var first, last *cloudtaskspb.Attempt
	if t.dispatched > 0 {
		first = &cloudtaskspb.Attempt{DispatchTime: timestamppb.New(t.first)}
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
		FirstAttempt:     first,
		LastAttempt:      last,
		View:             view,
	}
}

// storedBytes returns the size by which the service limits a task: of all that it stores of it.
func (t *task) storedBytes() int {
	stored := t.view(cloudtaskspb.Task_FULL)
	stored.View = cloudtaskspb.Task_VIEW_UNSPECIFIED
	return proto.Size(stored)
}

// maxRead limits the size of an answer whose connection is used again. After a larger one
// it is closed.
const maxRead = 1 << 20

// outcome is the result of one delivery.
type outcome struct {
	status     int       // 0: no complete answer
	retryAfter time.Time // zero: not requested
	err        error
}

func success(status int) bool { return 200 <= status && status <= 299 }

// code returns the outcome for X-CloudTasks-TaskPreviousResponse.
func (o outcome) code() int {
	switch {
	case o.status != 0:
		return o.status
	case errors.Is(o.err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	}
	return http.StatusServiceUnavailable
}

// deliver sends a, reports it and settles it. It blocks for at most the dispatch
// deadline and Observe.
func (s *Server) deliver(a *attempt) {
	began := time.Now()
	o := s.send(a)
	ended := time.Now()
	if s.options.Observe != nil {
		s.options.Observe(Delivery{
			Task: a.task.id, Attempt: a.number, Duplicate: a.duplicate,
			Status: o.status, Err: o.err, Started: began,
		})
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	a.task.queue.settle(a, ended, o)
}

// send makes the request. It returns at the dispatch deadline or on Close, even if the
// transport does not.
func (s *Server) send(a *attempt) outcome {
	ctx, cancel := context.WithTimeout(s.ctx, a.task.deadline)
	defer cancel()
	answered := make(chan outcome, 1)
	s.running.Go(func() { answered <- s.roundTrip(ctx, a) })

	select {
	case o := <-answered:
		return o
	case <-ctx.Done():
		return outcome{err: ctx.Err()}
	}
}

// roundTrip makes the request and reads the whole answer. It follows no redirect.
func (s *Server) roundTrip(ctx context.Context, a *attempt) outcome {
	req, err := a.httpRequest(ctx)
	if err != nil {
		return outcome{err: err}
	}
	if err := s.authorize(req, a.task.request); err != nil {
		return outcome{err: err}
	}

	resp, err := s.options.Transport.RoundTrip(req)
	if err != nil {
		return outcome{err: err}
	}
	defer resp.Body.Close()
	if _, err = io.CopyN(io.Discard, resp.Body, maxRead); err != nil && !errors.Is(err, io.EOF) {
		return outcome{err: err}
	}
	return outcome{status: resp.StatusCode, retryAfter: retryAfter(resp.Header, time.Now())}
}

// httpRequest returns the request of a delivery, without its token. An attempt and its
// duplicates have the same request.
func (a *attempt) httpRequest(ctx context.Context) (*http.Request, error) {
	r := a.task.request
	req, err := http.NewRequestWithContext(ctx, r.HttpMethod.String(), r.Url, bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	for name, value := range r.Headers {
		req.Header.Set(name, value)
	}

	h := req.Header
	h.Set("X-CloudTasks-QueueName", path.Base(a.task.queue.pb.Name))
	h.Set("X-CloudTasks-TaskName", a.task.id)
	h.Set("X-CloudTasks-TaskETA", fmt.Sprintf("%d.%06d", a.eta.Unix(), a.eta.Nanosecond()/1000))
	h.Set("X-CloudTasks-TaskRetryCount", strconv.Itoa(a.number))
	h.Set("X-CloudTasks-TaskExecutionCount", strconv.Itoa(a.executed))
	if a.previous != 0 {
		h.Set("X-CloudTasks-TaskPreviousResponse", strconv.Itoa(a.previous))
		h.Set("X-CloudTasks-TaskRetryReason", "")
	}
	return req, nil
}

// authorize replaces the creator's Authorization by the token that the task asks for.
// Each delivery gets a new one, as a token may expire while the task waits.
func (s *Server) authorize(req *http.Request, r *cloudtaskspb.HttpRequest) error {
	if r.AuthorizationHeader == nil {
		return nil
	}
	req.Header.Del("Authorization")
	oidc := r.GetOidcToken()
	if oidc == nil || s.options.Token == nil {
		return nil
	}

	token, err := s.options.Token(oidc.ServiceAccountEmail, cmp.Or(oidc.Audience, r.Url))
	if err != nil {
		return fmt.Errorf("cloud tasks emulator: token: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	return nil
}

// retryAfter returns the earliest time of the next attempt by an answer's Retry-After,
// which is in seconds or an HTTP date. It is zero if there is no valid one.
func retryAfter(h http.Header, now time.Time) time.Time {
	if seconds, err := strconv.ParseUint(h.Get("Retry-After"), 10, 31); err == nil {
		return now.Add(time.Duration(seconds) * time.Second)
	}
	date, _ := http.ParseTime(h.Get("Retry-After")) // zero on an error
	return date
}
