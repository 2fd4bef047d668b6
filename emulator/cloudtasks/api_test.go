package cloudtasks_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/emulator/cloudtasks"
)

func TestCreateTask(t *testing.T) {
	const ok, bad, not = codes.OK, codes.InvalidArgument, codes.Unimplemented
	type (
		edit = func(*cloudtaskspb.Task)
		task = cloudtaskspb.Task
	)
	url := func(u string) edit { return func(t *task) { t.GetHttpRequest().Url = u } }
	header := func(n int) edit {
		return func(t *task) { withHeaders(t, map[string]string{"x": strings.Repeat("a", n)}) }
	}
	due := func(d time.Duration) edit {
		return func(t *task) { t.ScheduleTime = timestamppb.New(time.Now().Add(d)) }
	}
	appEngine := &cloudtaskspb.Task_AppEngineHttpRequest{AppEngineHttpRequest: &cloudtaskspb.AppEngineHttpRequest{}}
	get := func(t *task) { t.GetHttpRequest().HttpMethod = cloudtaskspb.HttpMethod_GET }
	deadline := func(d time.Duration) edit { return func(t *task) { t.DispatchDeadline = durationpb.New(d) } }
	name := func(name string) edit { return func(t *task) { t.Name = name } }
	c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
	for what, tc := range map[string]struct {
		edit edit
		want codes.Code
	}{
		"no URL":             {url(""), bad},
		"another scheme":     {url("ftp://h/x"), bad},
		"URL of 2083":        {url("http://h/" + strings.Repeat("a", 2074)), ok},
		"URL of 2084":        {url("http://h/" + strings.Repeat("a", 2075)), bad},
		"2083, not encoded":  {url("http://h/" + strings.Repeat("a", 2073) + "é"), bad},
		"GET":                {func(t *task) { get(t); t.GetHttpRequest().Body = nil }, ok},
		"GET with a body":    {get, bad},
		"headers of 80 KB":   {header(80 << 10), bad},
		"headers of less":    {header(80<<10 - 100), ok},
		"under 15 s":         {deadline(15*time.Second - time.Millisecond), bad},
		"30 min":             {deadline(30 * time.Minute), ok},
		"over 30 min":        {deadline(30*time.Minute + time.Second), bad},
		"over 30 days ahead": {due(30*24*time.Hour + time.Minute), bad},
		"name of 500":        {name(queue + "/tasks/" + strings.Repeat("a", 500)), ok},
		"name of 501":        {name(queue + "/tasks/" + strings.Repeat("a", 501)), bad},
		"name with a slash":  {name(queue + "/tasks/a/b"), bad},
		"of another queue":   {name(parent + "/queues/other/tasks/a"), bad},
		"no target":          {func(t *task) { t.MessageType = nil }, bad},
		"App Engine":         {func(t *task) { t.MessageType = appEngine }, not},
		"retries of its own": {func(t *task) { t.RetryConfig = &cloudtaskspb.RetryConfig{} }, not},
	} {
		edited := post("")
		tc.edit(edited)
		if _, err := c.tryCreate(edited); status.Code(err) != tc.want {
			t.Errorf("%s: %v, want %v", what, err, tc.want)
		}
	}
	for req, want := range map[*cloudtaskspb.CreateTaskRequest]codes.Code{
		{Parent: queue}:                                   bad,
		{Parent: "q", Task: post("")}:                     bad,
		{Parent: parent + "/queues/none", Task: post("")}: codes.NotFound,
	} {
		_, err := c.client.CreateTask(t.Context(), req)
		wantCode(t, err, want)
	}
	_, err := c.get(queue + "/tasks/a/b")
	wantCode(t, err, bad)
}

// The limit was recorded from the service: it counts what is stored, with the defaults.
func TestCreateTask_Size(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
		create := func(body int) error {
			task := at(fmt.Sprint("t", body), time.Now().Add(time.Hour))
			task.GetHttpRequest().Body = make([]byte, body)
			_, err := c.tryCreate(task)
			return err
		}
		const near = 1_040_000
		wantCode(t, create(near), codes.OK)
		stored, err := c.get(fmt.Sprint(queue, "/tasks/t", near))
		wantCode(t, err, codes.OK)
		stored.View = 0
		largest := near + 1<<20 - 7 - proto.Size(stored)
		wantCode(t, create(largest), codes.OK)
		wantCode(t, create(largest+1), codes.InvalidArgument)
	})
}

// As recorded from the service.
func TestCreateTask_Headers(t *testing.T) {
	c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
	task := c.create(withHeaders(at("a", time.Now().Add(time.Hour)), map[string]string{
		"content-type": "application/json", "X-Mixed-CASE": "kept", "x-googly": "kept", "user-agent": "mine",
		"HOST": "mine", "Content-length": "9", "x-google-a": "mine", "X-AppEngine-B": "mine", "x-cloudtasks-c": "mine",
	}))
	equal(t, "headers", map[string]string{
		"content-type": "application/json", "X-Mixed-CASE": "kept", "x-googly": "kept",
		"User-Agent": "Google-Cloud-Tasks",
	}, task.GetHttpRequest().Headers)
}

func TestTask_View(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		retry := &cloudtaskspb.RetryConfig{MinBackoff: seconds(60), MaxBackoff: seconds(60)}
		c := openQueue(t, cloudtasks.Options{Transport: always(503)}, retrying(retry))
		time.Sleep(1500*time.Millisecond + 700*time.Nanosecond)
		now := time.Now()
		due := now.Add(time.Hour)
		created := c.create(at("a", due))
		want := &cloudtaskspb.Task{
			Name: queue + "/tasks/a",
			MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{
				Url: target, HttpMethod: cloudtaskspb.HttpMethod_POST,
				Headers: map[string]string{"User-Agent": "Google-Cloud-Tasks"},
			}},
			ScheduleTime:     timestamppb.New(due.Truncate(time.Microsecond)),
			CreateTime:       timestamppb.New(now.Truncate(time.Second)),
			DispatchDeadline: seconds(600),
			View:             cloudtaskspb.Task_BASIC,
		}
		equal(t, "the created task", want, created)
		want.GetHttpRequest().Body, want.View = []byte("payload"), cloudtaskspb.Task_FULL
		full, err := c.get(want.Name)
		wantCode(t, err, codes.OK)
		equal(t, "the full view", want, full)

		time.Sleep(time.Hour + 90*time.Second)
		tried, err := c.get(want.Name)
		wantCode(t, err, codes.OK)
		equal(t, "first", &cloudtaskspb.Attempt{DispatchTime: timestamppb.New(due)}, tried.FirstAttempt)
		last := timestamppb.New(due.Add(time.Minute))
		equal(t, "last", &cloudtaskspb.Attempt{DispatchTime: last, ResponseTime: last}, tried.LastAttempt)
	})
}

func TestCreateQueue(t *testing.T) {
	c := open(t, cloudtasks.Options{})
	req := &cloudtaskspb.CreateQueueRequest{Parent: parent, Queue: &cloudtaskspb.Queue{Name: queue}}
	got, err := c.client.CreateQueue(t.Context(), req)
	wantCode(t, err, codes.OK)
	equal(t, "the documented defaults", &cloudtaskspb.Queue{
		Name:       queue,
		State:      cloudtaskspb.Queue_RUNNING,
		RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 1000},
		RetryConfig: &cloudtaskspb.RetryConfig{
			MaxAttempts: 100, MinBackoff: seconds(0.1), MaxBackoff: seconds(3600), MaxDoublings: 16,
		},
	}, got)
	_, err = c.client.CreateQueue(t.Context(), req)
	wantCode(t, err, codes.AlreadyExists)

	type retry = cloudtaskspb.RetryConfig
	const bad = codes.InvalidArgument
	limited := &cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 5}}
	for pb, want := range map[*cloudtaskspb.Queue]codes.Code{
		atOnce(-1): bad, atOnce(5001): bad, atOnce(5000): codes.OK,
		retrying(&retry{MaxAttempts: -2}): bad, retrying(&retry{MaxAttempts: -1}): codes.OK,
		retrying(&retry{MinBackoff: seconds(-1)}): bad, retrying(&retry{MaxBackoff: seconds(-1)}): bad,
		retrying(&retry{MaxDoublings: -1}):                                bad,
		retrying(&retry{MinBackoff: seconds(10), MaxBackoff: seconds(1)}): bad,
		retrying(&retry{MinBackoff: seconds(7200)}):                       codes.OK,
		retrying(&retry{MaxRetryDuration: seconds(1)}):                    codes.Unimplemented,
		limited: codes.Unimplemented, {HttpTarget: &cloudtaskspb.HttpTarget{}}: codes.Unimplemented,
	} {
		pb.Name = fmt.Sprintf("%s%p", queue, pb)
		if err := c.CreateQueue(pb); status.Code(err) != want {
			t.Errorf("%v: %v, want %v", pb, err, want)
		}
	}
}

func TestTask_Name(t *testing.T) {
	t.Run("one of 100 concurrent creations succeeds", func(t *testing.T) {
		c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
		var mu sync.Mutex
		got := map[codes.Code]int{}
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				_, err := c.tryCreate(post("one"))
				mu.Lock()
				defer mu.Unlock()
				got[status.Code(err)]++
			})
		}
		all.Wait()
		c.idle()
		equal(t, "answers", map[codes.Code]int{codes.OK: 1, codes.AlreadyExists: 99}, got)
		equal(t, "deliveries", []string{"one"}, c.tasks())
	})
	t.Run("it is refused for 24 hours after the end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
			wantAgain := func(want codes.Code) {
				t.Helper()
				_, err := c.tryCreate(at("done", time.Now().Add(time.Minute)))
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
	})
}

func TestDeleteTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		extra := func(*cloudtaskspb.Task) []time.Duration { return []time.Duration{time.Hour} }
		c := openQueue(t, cloudtasks.Options{Transport: slow(time.Minute, 503), Extra: extra}, nil)
		start := time.Now()
		waiting, inFlight := c.create(at("waiting", start.Add(time.Hour))), c.create(post("in-flight"))
		time.Sleep(time.Second)
		for _, task := range []*cloudtaskspb.Task{waiting, inFlight} {
			wantCode(t, c.delete(task.Name), codes.OK)
			c.wantGone(task.Name)
			wantCode(t, c.delete(task.Name), codes.NotFound)
			_, err := c.tryCreate(task)
			wantCode(t, err, codes.AlreadyExists)
		}
		c.idle()
		equal(t, "deliveries", []float64{0}, c.offsets(start))
		equal(t, "idle at its end", time.Minute, time.Since(start))
	})
}

func TestListTasks(t *testing.T) {
	c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
	var want []string
	for range 25 {
		want = append(want, c.create(at("", time.Now().Add(time.Hour))).Name)
	}
	for _, size := range []int32{0, 10, 25} {
		var got []string
		req := &cloudtaskspb.ListTasksRequest{Parent: queue, PageSize: size}
		for task, err := range c.client.ListTasks(t.Context(), req).All() {
			wantCode(t, err, codes.OK)
			got = append(got, task.Name)
		}
		equal(t, "in order of creation", want, got)
	}
	pages := c.client.ListTasks(t.Context(), &cloudtaskspb.ListTasksRequest{Parent: queue})
	page, token, err := pages.InternalFetch(25, "")
	wantCode(t, err, codes.OK)
	equal(t, "one page", []any{25, ""}, []any{len(page), token})
	_, _, err = pages.InternalFetch(25, "x")
	wantCode(t, err, codes.InvalidArgument)
}

func TestListQueues(t *testing.T) {
	c := open(t, cloudtasks.Options{})
	for _, name := range []string{parent + "/queues/b", parent + "/queues/a", parent + "2/queues/c"} {
		wantCode(t, c.CreateQueue(&cloudtaskspb.Queue{Name: name}), codes.OK)
	}
	var got []string
	for q, err := range c.client.ListQueues(t.Context(), &cloudtaskspb.ListQueuesRequest{Parent: parent}).All() {
		wantCode(t, err, codes.OK)
		got = append(got, q.Name)
	}
	equal(t, "those of the location", []string{parent + "/queues/a", parent + "/queues/b"}, got)
	filtered := &cloudtaskspb.ListQueuesRequest{Parent: parent, Filter: "state: PAUSED"}
	_, err := c.client.ListQueues(t.Context(), filtered).Next()
	wantCode(t, err, codes.Unimplemented)
}

func TestPauseQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
		start := time.Now()
		wantState := func(pb *cloudtaskspb.Queue, err error, want cloudtaskspb.Queue_State) {
			t.Helper()
			wantCode(t, err, codes.OK)
			equal(t, "state", want, pb.State)
		}
		pb, err := c.client.PauseQueue(ctx, &cloudtaskspb.PauseQueueRequest{Name: queue})
		wantState(pb, err, cloudtaskspb.Queue_PAUSED)
		c.create(post("purged"))
		idle := make(chan error)
		go func() { idle <- c.Idle(ctx) }()
		synctest.Wait()
		pb, err = c.client.PurgeQueue(ctx, &cloudtaskspb.PurgeQueueRequest{Name: queue})
		wantState(pb, err, cloudtaskspb.Queue_PAUSED)
		wantCode(t, <-idle, codes.OK)
		c.create(post("later"))
		time.Sleep(time.Hour)
		pb, err = c.client.ResumeQueue(ctx, &cloudtaskspb.ResumeQueueRequest{Name: queue})
		wantState(pb, err, cloudtaskspb.Queue_RUNNING)
		c.idle()
		equal(t, "delivered", []string{"later"}, c.tasks())
		equal(t, "after the pause", []float64{3600}, c.offsets(start))
		pb, err = c.client.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: queue})
		wantState(pb, err, cloudtaskspb.Queue_RUNNING)
	})
}
