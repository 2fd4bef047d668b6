package cloudtasks_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/emulator/cloudtasks"
)

// request edits the HTTP request of a task.
func request(edit func(*cloudtaskspb.HttpRequest)) func(*cloudtaskspb.Task) {
	return func(t *cloudtaskspb.Task) { edit(t.GetHttpRequest()) }
}

func url(u string) func(*cloudtaskspb.Task) {
	return request(func(r *cloudtaskspb.HttpRequest) { r.Url = u })
}

func deadline(d time.Duration) func(*cloudtaskspb.Task) {
	return func(t *cloudtaskspb.Task) { t.DispatchDeadline = durationpb.New(d) }
}

func due(d time.Duration) func(*cloudtaskspb.Task) {
	return func(t *cloudtaskspb.Task) { t.ScheduleTime = timestamppb.New(time.Now().Add(d)) }
}

func named(name string) func(*cloudtaskspb.Task) {
	return func(t *cloudtaskspb.Task) { t.Name = name }
}

func TestCreateTaskChecksTheTask(t *testing.T) {
	const ok, bad = codes.OK, codes.InvalidArgument
	for _, c := range []struct {
		name string
		edit func(*cloudtaskspb.Task)
		want codes.Code
	}{
		{"no URL", url(""), bad},
		{"another scheme", url("ftp://h/x"), bad},
		{"not a URL", url("http://["), bad},
		{"GET", request(func(r *cloudtaskspb.HttpRequest) { r.HttpMethod, r.Body = cloudtaskspb.HttpMethod_GET, nil }), ok},
		{"deadline under 15 s", deadline(15*time.Second - time.Millisecond), bad},
		{"deadline of 30 min", deadline(30 * time.Minute), ok},
		{"deadline over 30 min", deadline(30*time.Minute + time.Second), bad},
		{"over 30 days ahead", due(30*24*time.Hour + time.Minute), bad},
		{"task over 1 MiB", request(func(r *cloudtaskspb.HttpRequest) { r.Body = make([]byte, 1<<20) }), bad},
		{"task of nearly 1 MiB", request(func(r *cloudtaskspb.HttpRequest) { r.Body = make([]byte, 1<<20-200) }), ok},
		{"name of 500", named(queue + "/tasks/" + strings.Repeat("a", 500)), ok},
		{"name of 501", named(queue + "/tasks/" + strings.Repeat("a", 501)), bad},
		{"name with a slash", named(queue + "/tasks/a/b"), bad},
		{"name of another queue", named(parent + "/queues/other/tasks/a"), bad},
		{"no target", func(t *cloudtaskspb.Task) { t.MessageType = nil }, bad},
		{"App Engine", func(t *cloudtaskspb.Task) {
			t.MessageType = &cloudtaskspb.Task_AppEngineHttpRequest{AppEngineHttpRequest: &cloudtaskspb.AppEngineHttpRequest{}}
		}, codes.Unimplemented},
		{"retries of its own", func(t *cloudtaskspb.Task) { t.RetryConfig = &cloudtaskspb.RetryConfig{} }, codes.Unimplemented},
	} {
		t.Run(c.name, func(t *testing.T) {
			cloud := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
			task := post("")
			c.edit(task)
			_, err := cloud.client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: task})
			wantCode(t, err, c.want)
		})
	}
}

func TestCreateTaskWithoutTaskOrQueueIsRefused(t *testing.T) {
	c := openQueue(t, cloudtasks.Options{}, nil)
	for _, r := range []struct {
		req  *cloudtaskspb.CreateTaskRequest
		want codes.Code
	}{
		{&cloudtaskspb.CreateTaskRequest{Parent: queue}, codes.InvalidArgument},
		{&cloudtaskspb.CreateTaskRequest{Parent: "q", Task: post("")}, codes.InvalidArgument},
		{&cloudtaskspb.CreateTaskRequest{Parent: parent + "/queues/none", Task: post("")}, codes.NotFound},
	} {
		_, err := c.client.CreateTask(t.Context(), r.req)
		wantCode(t, err, r.want)
	}
	_, err := c.client.GetTask(t.Context(), &cloudtaskspb.GetTaskRequest{Name: queue + "/tasks/a/b"})
	wantCode(t, err, codes.InvalidArgument)
}

func TestACreatedTaskShowsItsDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
		time.Sleep(1500*time.Millisecond + 700*time.Nanosecond)
		now := time.Now()
		got := c.create(at("a", now.Add(time.Hour)))
		want := &cloudtaskspb.Task{
			Name: queue + "/tasks/a",
			MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{
				Url: target, HttpMethod: cloudtaskspb.HttpMethod_POST,
				Headers: map[string]string{"User-Agent": "Google-Cloud-Tasks"},
			}},
			ScheduleTime:     timestamppb.New(now.Add(time.Hour).Truncate(time.Microsecond)),
			CreateTime:       timestamppb.New(now.Truncate(time.Second)),
			DispatchDeadline: seconds(600),
			View:             cloudtaskspb.Task_BASIC,
		}
		equal(t, "task", want, got)
		got, err := c.client.GetTask(t.Context(), &cloudtaskspb.GetTaskRequest{Name: got.Name})
		wantCode(t, err, codes.OK)
		equal(t, "the same task, read", want, got)
		want.GetHttpRequest().Body, want.View = []byte("payload"), cloudtaskspb.Task_FULL
		got, err = c.client.GetTask(t.Context(), &cloudtaskspb.GetTaskRequest{Name: got.Name, ResponseView: want.View})
		wantCode(t, err, codes.OK)
		equal(t, "the full view", want, got)
	})
}

func TestOneOf100ConcurrentCreationsOfANameSucceeds(t *testing.T) {
	var seen seen
	c := openQueue(t, cloudtasks.Options{Transport: always(200), Observe: seen.observe}, nil)
	var created, exists, other atomic.Int32
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			_, err := c.client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: post("one")})
			switch status.Code(err) {
			case codes.OK:
				created.Add(1)
			case codes.AlreadyExists:
				exists.Add(1)
			default:
				other.Add(1)
			}
		})
	}
	all.Wait()
	c.idle()
	got := fmt.Sprint(created.Load(), exists.Load(), other.Load(), len(seen.deliveries()))
	if want := "1 99 0 1"; got != want {
		t.Fatalf("got %s created, refused, otherwise, delivered; want %s", got, want)
	}
}

func TestANameIsRefusedFor24HoursAfterItsTaskEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
		wantAgain := func(want codes.Code) {
			t.Helper()
			_, err := c.client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: at("done", time.Now().Add(time.Minute))})
			wantCode(t, err, want)
		}
		c.create(post("done"))
		c.idle()
		c.wantGone(queue + "/tasks/done")
		wantAgain(codes.AlreadyExists)
		time.Sleep(24*time.Hour - time.Second)
		wantAgain(codes.AlreadyExists)
		time.Sleep(time.Second)
		wantAgain(codes.OK)
		wantAgain(codes.AlreadyExists)
	})
}

func TestListTasksReturnsAllTasksInOrderOfCreation(t *testing.T) {
	c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
	var want []string
	for range 25 {
		want = append(want, c.create(at("", time.Now().Add(time.Hour))).Name)
	}
	for _, size := range []int32{0, 10, 25} {
		var got []string
		for task, err := range c.client.ListTasks(t.Context(), &cloudtaskspb.ListTasksRequest{Parent: queue, PageSize: size}).All() {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, task.Name)
		}
		equal(t, "names", want, got)
	}
	pages := c.client.ListTasks(t.Context(), &cloudtaskspb.ListTasksRequest{Parent: queue})
	page, token, err := pages.InternalFetch(25, "")
	if err != nil || len(page) != 25 || token != "" {
		t.Errorf("%d tasks and the token %q, %v, want one page", len(page), token, err)
	}
	_, _, err = pages.InternalFetch(25, "x")
	wantCode(t, err, codes.InvalidArgument)
}

func TestANewQueueHasTheDocumentedDefaults(t *testing.T) {
	c := open(t, cloudtasks.Options{})
	req := &cloudtaskspb.CreateQueueRequest{Parent: parent, Queue: &cloudtaskspb.Queue{Name: queue}}
	got, err := c.client.CreateQueue(t.Context(), req)
	wantCode(t, err, codes.OK)
	want := &cloudtaskspb.Queue{
		Name:       queue,
		State:      cloudtaskspb.Queue_RUNNING,
		RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 1000},
		RetryConfig: &cloudtaskspb.RetryConfig{
			MaxAttempts: 100, MinBackoff: seconds(0.1), MaxBackoff: seconds(3600), MaxDoublings: 16,
		},
	}
	equal(t, "queue", want, got)
	_, err = c.client.CreateQueue(t.Context(), req)
	wantCode(t, err, codes.AlreadyExists)
	for _, q := range []*cloudtaskspb.Queue{
		{RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 5}}, {HttpTarget: &cloudtaskspb.HttpTarget{}},
	} {
		q.Name, req.Queue = queue+"2", q
		_, err = c.client.CreateQueue(t.Context(), req)
		wantCode(t, err, codes.Unimplemented)
	}
}
