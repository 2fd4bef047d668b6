package cloudtasks

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A task's documented limits and defaults.
const (
	maxTaskBytes     = 1 << 20
	maxURL           = 2083 // after encoding
	maxHeaderBytes   = 80 << 10
	maxAhead         = 30 * 24 * time.Hour
	minDeadline      = 15 * time.Second
	maxDeadline      = 30 * time.Minute
	defaultDeadline  = 10 * time.Minute
	dispatcherHeader = "Google-Cloud-Tasks" // User-Agent
)

// newTask checks what a creator asked for and returns the task with all defaults
// filled in, without name and queue. It shares nothing with in.
func newTask(in *cloudtaskspb.Task, now time.Time) (*task, error) {
	if in == nil {
		return nil, invalid("task", "is required")
	}
	if proto.Size(in) > maxTaskBytes {
		return nil, invalid("task", "larger than 1 MiB")
	}
	if in.GetAppEngineHttpRequest() != nil {
		return nil, status.Error(codes.Unimplemented, "task.app_engine_http_request: not emulated")
	}
	request, err := checkRequest(in.GetHttpRequest())
	if err != nil {
		return nil, err
	}
	due, err := checkSchedule(in.ScheduleTime, now)
	if err != nil {
		return nil, err
	}
	deadline, err := checkDeadline(in.DispatchDeadline)
	if err != nil {
		return nil, err
	}
	own := proto.CloneOf(in.RetryConfig)
	if own != nil {
		if err := normalizeRetry("task.retry_config", own); err != nil {
			return nil, err
		}
	}
	return &task{request: request, own: own, deadline: deadline, created: now, due: due}, nil
}

// checkRequest returns the request as it will be sent, apart from the headers
// that differ between attempts.
func checkRequest(in *cloudtaskspb.HttpRequest) (*cloudtaskspb.HttpRequest, error) {
	if in == nil {
		return nil, invalid("task.http_request", "is required")
	}
	if err := checkURL(in.Url); err != nil {
		return nil, err
	}
	r := proto.CloneOf(in)
	switch r.HttpMethod {
	case cloudtaskspb.HttpMethod_HTTP_METHOD_UNSPECIFIED:
		r.HttpMethod = cloudtaskspb.HttpMethod_POST
	case cloudtaskspb.HttpMethod_POST, cloudtaskspb.HttpMethod_PUT, cloudtaskspb.HttpMethod_PATCH:
	case cloudtaskspb.HttpMethod_GET, cloudtaskspb.HttpMethod_HEAD,
		cloudtaskspb.HttpMethod_DELETE, cloudtaskspb.HttpMethod_OPTIONS:
		if len(r.Body) > 0 {
			return nil, invalid("task.http_request.body", "is allowed with POST, PUT and PATCH only")
		}
	default:
		return nil, invalid("task.http_request.http_method", "is unknown")
	}
	headers, err := checkHeaders(in.Headers)
	if err != nil {
		return nil, err
	}
	r.Headers = headers
	return r, nil
}

func checkURL(raw string) error {
	const field = "task.http_request.url"
	if !strings.HasPrefix(raw, "http://") && !strings.HasPrefix(raw, "https://") {
		return invalid(field, "must begin with http:// or https://")
	}
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" {
		return invalid(field, "is not a URL with a host")
	}
	if max(len(raw), len(u.String())) > maxURL {
		return invalid(field, "is longer than 2083 characters")
	}
	return nil
}

// checkHeaders returns the creator's headers under their canonical names, without
// those that Cloud Tasks sets itself.
func checkHeaders(in map[string]string) (map[string]string, error) {
	const field = "task.http_request.headers"
	out := map[string]string{}
	size := 0
	for name, value := range in {
		size += len(name) + len(value)
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, invalid(field, "a name or value cannot be sent")
		}
		name = http.CanonicalHeaderKey(name)
		if _, twice := out[name]; twice {
			return nil, invalid(field, "two names differ in case only")
		}
		if !reserved(name) {
			out[name] = value
		}
	}
	if size >= maxHeaderBytes {
		return nil, invalid(field, "are not smaller than 80 KB")
	}
	out["User-Agent"] = dispatcherHeader
	return out, nil
}

// reserved reports whether a creator's header of this canonical name is ignored.
func reserved(name string) bool {
	switch name {
	case "Host", "Content-Length", "Transfer-Encoding", "User-Agent":
		return true
	}
	for _, prefix := range []string{"X-Cloudtasks-", "X-Google-", "X-Appengine-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// checkSchedule returns when the first attempt is due: now, if nothing later was
// asked for.
func checkSchedule(at *timestamppb.Timestamp, now time.Time) (time.Time, error) {
	if at == nil {
		return now, nil
	}
	if err := at.CheckValid(); err != nil {
		return now, invalid("task.schedule_time", "is not a valid time")
	}
	due := at.AsTime()
	if due.After(now.Add(maxAhead)) {
		return now, invalid("task.schedule_time", "is more than 30 days ahead")
	}
	if due.Before(now) {
		return now, nil
	}
	return due, nil
}

func checkDeadline(d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return defaultDeadline, nil
	}
	deadline := d.AsDuration().Truncate(time.Millisecond)
	if d.CheckValid() != nil || deadline < minDeadline || deadline > maxDeadline {
		return 0, invalid("task.dispatch_deadline", "is not between 15 s and 30 min")
	}
	return deadline, nil
}

func invalid(field, problem string) error {
	return status.Errorf(codes.InvalidArgument, "%s: %s", field, problem)
}

func isDeadline(err error) bool { return errors.Is(err, context.DeadlineExceeded) }

// micros is t as the API shows times.
func micros(t time.Time) *timestamppb.Timestamp {
	return timestamppb.New(t.Truncate(time.Microsecond))
}
