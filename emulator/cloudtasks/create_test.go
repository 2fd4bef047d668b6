package cloudtasks_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
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

func headers(h map[string]string) func(*cloudtaskspb.Task) {
	return request(func(r *cloudtaskspb.HttpRequest) { r.Headers = h })
}

func method(m cloudtaskspb.HttpMethod, body string) func(*cloudtaskspb.Task) {
	return request(func(r *cloudtaskspb.HttpRequest) { r.HttpMethod, r.Body = m, []byte(body) })
}

func deadline(d time.Duration) func(*cloudtaskspb.Task) {
	return func(t *cloudtaskspb.Task) { t.DispatchDeadline = durationpb.New(d) }
}

func due(d time.Duration) func(*cloudtaskspb.Task) {
	return func(t *cloudtaskspb.Task) { t.ScheduleTime = timestamppb.New(time.Now().Add(d)) }
}

func retry(c *cloudtaskspb.RetryConfig) func(*cloudtaskspb.Task) {
	return func(t *cloudtaskspb.Task) { t.RetryConfig = c }
}

func named(name string) func(*cloudtaskspb.Task) {
	return func(t *cloudtaskspb.Task) { t.Name = name }
}

func TestCreateTaskChecksWhatItIsGiven(t *testing.T) {
	const ok, bad = codes.OK, codes.InvalidArgument
	for _, c := range []struct {
		name string
		edit func(*cloudtaskspb.Task)
		want codes.Code
	}{
		{"https", url("https://worker.test/x?y=z"), ok},
		{"URL of 2083", url("http://h/" + strings.Repeat("a", 2083-9)), ok},
		{"URL of 2084", url("http://h/" + strings.Repeat("a", 2084-9)), bad},
		{"URL too long once encoded", url("http://h/" + strings.Repeat("é", 500)), bad},
		{"no URL", url(""), bad},
		{"another scheme", url("ftp://h/x"), bad},
		{"no host", url("http:///x"), bad},
		{"malformed URL", url("http://h:port/"), bad},
		{"body with PUT", method(cloudtaskspb.HttpMethod_PUT, "b"), ok},
		{"body with PATCH", method(cloudtaskspb.HttpMethod_PATCH, "b"), ok},
		{"body with GET", method(cloudtaskspb.HttpMethod_GET, "b"), bad},
		{"body with DELETE", method(cloudtaskspb.HttpMethod_DELETE, "b"), bad},
		{"GET without body", method(cloudtaskspb.HttpMethod_GET, ""), ok},
		{"unknown method", method(99, ""), bad},
		{"deadline of 15 s", deadline(15 * time.Second), ok},
		{"deadline under 15 s", deadline(15*time.Second - time.Millisecond), bad},
		{"deadline of 30 min", deadline(30 * time.Minute), ok},
		{"deadline over 30 min", deadline(30*time.Minute + time.Second), bad},
		{"deadline of 0", deadline(0), bad},
		{"deadline invalid", func(t *cloudtaskspb.Task) { t.DispatchDeadline = &durationpb.Duration{Seconds: 20, Nanos: -1} }, bad},
		{"29 days ahead", due(29 * 24 * time.Hour), ok},
		{"over 30 days ahead", due(30*24*time.Hour + time.Minute), bad},
		{"time invalid", func(t *cloudtaskspb.Task) { t.ScheduleTime = &timestamppb.Timestamp{Nanos: -1} }, bad},
		{"task over 1 MiB", method(cloudtaskspb.HttpMethod_POST, strings.Repeat("x", 1<<20)), bad},
		{"task of nearly 1 MiB", method(cloudtaskspb.HttpMethod_POST, strings.Repeat("x", 1<<20-200)), ok},
		{"headers over 80 KB", headers(map[string]string{"X-Big": strings.Repeat("x", 80<<10)}), bad},
		{"header name malformed", headers(map[string]string{"X Y": "z"}), bad},
		{"header value with a line break", headers(map[string]string{"X": "a\r\nY: b"}), bad},
		{"header twice", headers(map[string]string{"X-A": "1", "x-a": "2"}), bad},
		{"retry attempts below -1", retry(&cloudtaskspb.RetryConfig{MaxAttempts: -2}), bad},
		{"name of 500", named(queue + "/tasks/" + strings.Repeat("a", 500)), ok},
		{"name with all kinds", named(queue + "/tasks/aZ09-_"), ok},
		{"name of 501", named(queue + "/tasks/" + strings.Repeat("a", 501)), bad},
		{"name with a dot", named(queue + "/tasks/a.b"), bad},
		{"name with a slash", named(queue + "/tasks/a/b"), bad},
		{"name empty", named(queue + "/tasks/"), bad},
		{"name without queue", named("a"), bad},
		{"name of another queue", named(parent + "/queues/other/tasks/a"), bad},
		{"no target", func(t *cloudtaskspb.Task) { t.MessageType = nil }, bad},
		{"App Engine", func(t *cloudtaskspb.Task) {
			t.MessageType = &cloudtaskspb.Task_AppEngineHttpRequest{AppEngineHttpRequest: &cloudtaskspb.AppEngineHttpRequest{}}
		}, codes.Unimplemented},
	} {
		t.Run(c.name, func(t *testing.T) {
			cloud := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
			cloud.pause()
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
}

func TestACreatedTaskShowsItsDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
		c.pause()
		time.Sleep(1500*time.Millisecond + 700*time.Nanosecond)
		now := time.Now()
		got := c.create(post("a"))
		want := &cloudtaskspb.Task{
			Name: queue + "/tasks/a",
			MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{
				Url: target, HttpMethod: cloudtaskspb.HttpMethod_POST,
				Headers: map[string]string{"User-Agent": "Google-Cloud-Tasks"},
			}},
			ScheduleTime:     timestamppb.New(now.Truncate(time.Microsecond)),
			CreateTime:       timestamppb.New(now.Truncate(time.Second)),
			DispatchDeadline: seconds(600),
			View:             cloudtaskspb.Task_BASIC,
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Fatalf("task (-want +got):\n%s", diff)
		}
		full, err := c.client.GetTask(t.Context(), &cloudtaskspb.GetTaskRequest{
			Name: got.Name, ResponseView: cloudtaskspb.Task_FULL,
		})
		if err != nil {
			t.Fatal(err)
		}
		want.GetHttpRequest().Body = []byte("payload")
		want.View = cloudtaskspb.Task_FULL
		if diff := cmp.Diff(want, full, protocmp.Transform()); diff != "" {
			t.Fatalf("full view (-want +got):\n%s", diff)
		}
	})
}

func TestUnnamedTasksGetNamesOfTheirOwn(t *testing.T) {
	c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
	c.pause()
	names := map[string]bool{}
	for range 100 {
		name := c.create(post("")).Name
		if !strings.HasPrefix(name, queue+"/tasks/") {
			t.Fatalf("got name %q, want one in the queue", name)
		}
		names[name] = true
	}
	if len(names) != 100 {
		t.Fatalf("got %d names, want 100", len(names))
	}
}

func TestOneOfAThousandConcurrentCreationsOfANameSucceeds(t *testing.T) {
	var seen seen
	c := openQueue(t, cloudtasks.Options{Transport: always(200), Observe: seen.observe}, nil)
	var created, exists, other atomic.Int32
	var all sync.WaitGroup
	for range 1000 {
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
	if want := "1 999 0 1"; got != want {
		t.Fatalf("got %s created, refused, otherwise, delivered; want %s", got, want)
	}
}

func TestANameIsHeldFor24HoursAfterItsTaskEnded(t *testing.T) {
	ends := map[string]func(*cloud){
		"done":    func(c *cloud) { c.resume(); c.idle() },
		"deleted": func(c *cloud) { c.delete(queue + "/tasks/n") },
		"purged": func(c *cloud) {
			if _, err := c.client.PurgeQueue(c.t.Context(), &cloudtaskspb.PurgeQueueRequest{Name: queue}); err != nil {
				c.t.Fatal(err)
			}
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
				again := func() error {
					_, err := c.client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: post("n")})
					return err
				}
				c.pause()
				wantCode(t, again(), codes.OK)
				wantCode(t, again(), codes.AlreadyExists)
				end(c)
				c.wantGone(queue + "/tasks/n")
				time.Sleep(24*time.Hour - time.Second)
				wantCode(t, again(), codes.AlreadyExists)
				time.Sleep(time.Second)
				wantCode(t, again(), codes.OK)
			})
		})
	}
}

func (c *cloud) delete(name string) {
	c.t.Helper()
	if err := c.client.DeleteTask(c.t.Context(), &cloudtaskspb.DeleteTaskRequest{Name: name}); err != nil {
		c.t.Fatal(err)
	}
}

func TestListTasksPagesThroughAllTasks(t *testing.T) {
	c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
	c.pause()
	var want []string
	for range 25 {
		want = append(want, c.create(post("")).Name)
	}
	if diff := cmp.Diff(want, c.list(7, cloudtaskspb.Task_BASIC)); diff != "" {
		t.Fatalf("names (-want +got):\n%s", diff)
	}
	for _, req := range []*cloudtaskspb.ListTasksRequest{
		{Parent: queue, PageSize: -1}, {Parent: queue, PageToken: "x"}, {Parent: "x"},
	} {
		_, err := c.client.ListTasks(t.Context(), req).Next()
		wantCode(t, err, codes.InvalidArgument)
	}
}

func TestListTasksInFullStaysUnderTheMessageLimit(t *testing.T) {
	c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
	c.pause()
	for range 12 {
		task := post("")
		method(cloudtaskspb.HttpMethod_POST, strings.Repeat("x", 1<<20-200))(task)
		c.create(task)
	}
	if got := len(c.list(0, cloudtaskspb.Task_FULL)); got != 12 {
		t.Fatalf("got %d tasks, want 12", got)
	}
}

// list returns the names of all tasks.
func (c *cloud) list(size int32, view cloudtaskspb.Task_View) []string {
	c.t.Helper()
	it := c.client.ListTasks(c.t.Context(), &cloudtaskspb.ListTasksRequest{Parent: queue, PageSize: size, ResponseView: view})
	var names []string
	for {
		task, err := it.Next()
		if errors.Is(err, iterator.Done) {
			return names
		}
		if err != nil {
			c.t.Fatal(err)
		}
		names = append(names, task.Name)
	}
}
