package cloudtasks_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
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

func method(m cloudtaskspb.HttpMethod) func(*cloudtaskspb.Task) {
	return request(func(r *cloudtaskspb.HttpRequest) { r.HttpMethod = m })
}

func header(name, value string) func(*cloudtaskspb.Task) {
	return request(func(r *cloudtaskspb.HttpRequest) { r.Headers = map[string]string{name: value} })
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
		{"GET with a body", method(cloudtaskspb.HttpMethod_GET), bad},
		{"DELETE with a body", method(cloudtaskspb.HttpMethod_DELETE), bad},
		{"PUT with a body", method(cloudtaskspb.HttpMethod_PUT), ok},
		{"unknown method", method(99), bad},
		{"URL of 2083", url("http://h/" + strings.Repeat("a", 2074)), ok},
		{"URL of 2084", url("http://h/" + strings.Repeat("a", 2075)), bad},
		{"URL of 2083 before it is encoded", url("http://h/" + strings.Repeat("a", 2073) + "é"), bad},
		{"headers of 80 KB", header("x", strings.Repeat("a", 80<<10)), bad},
		{"headers of less", header("x", strings.Repeat("a", 80<<10-100)), ok},
		{"deadline under 15 s", deadline(15*time.Second - time.Millisecond), bad},
		{"deadline of 30 min", deadline(30 * time.Minute), ok},
		{"deadline over 30 min", deadline(30*time.Minute + time.Second), bad},
		{"over 30 days ahead", due(30*24*time.Hour + time.Minute), bad},
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

// The limit was recorded from the service: it counts what is stored, with the defaults.
func TestAStoredTaskHas1MiBWithout7BytesAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
		create := func(body int) (*cloudtaskspb.Task, error) {
			task := at(fmt.Sprint("t", body), time.Now().Add(time.Hour))
			task.GetHttpRequest().Body = make([]byte, body)
			req := &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: task, ResponseView: cloudtaskspb.Task_FULL}
			return c.client.CreateTask(t.Context(), req)
		}
		const near = 1_040_000
		stored, err := create(near)
		wantCode(t, err, codes.OK)
		stored.View = 0
		largest := near + 1<<20 - 7 - proto.Size(stored)
		_, err = create(largest)
		wantCode(t, err, codes.OK)
		_, err = create(largest + 1)
		wantCode(t, err, codes.InvalidArgument)
	})
}

// As recorded from the service.
func TestHeadersAreStoredAsTheCreatorNamedThem(t *testing.T) {
	c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
	task := at("a", time.Now().Add(time.Hour))
	task.GetHttpRequest().Headers = map[string]string{
		"content-type": "application/json", "X-Mixed-CASE": "kept", "user-agent": "mine", "x-cloudtasks-taskname": "mine",
		"HOST": "mine", "Content-length": "9", "x-google-a": "mine", "X-AppEngine-B": "mine", "x-googly": "kept",
	}
	want := map[string]string{
		"content-type": "application/json", "X-Mixed-CASE": "kept", "x-googly": "kept", "User-Agent": "Google-Cloud-Tasks",
	}
	equal(t, "headers", want, c.create(task).GetHttpRequest().Headers)
}

func TestATaskShowsWhenItsFirstAndLastAttemptsBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openQueue(t, cloudtasks.Options{Transport: always(503)}, &cloudtaskspb.Queue{
			RetryConfig: &cloudtaskspb.RetryConfig{MinBackoff: seconds(60), MaxBackoff: seconds(60)},
		})
		start := time.Now()
		created := c.create(post("a"))
		equal(t, "the first attempt before it began", (*cloudtaskspb.Attempt)(nil), created.FirstAttempt)
		time.Sleep(90 * time.Second)
		got, err := c.client.GetTask(t.Context(), &cloudtaskspb.GetTaskRequest{Name: created.Name})
		wantCode(t, err, codes.OK)
		equal(t, "first", &cloudtaskspb.Attempt{DispatchTime: timestamppb.New(start)}, got.FirstAttempt)
		equal(t, "last", timestamppb.New(start.Add(time.Minute)), got.LastAttempt.DispatchTime)
	})
}

func TestCreateQueueRefusesWhatTheServiceRefuses(t *testing.T) {
	rate := func(perSecond float64, atOnce int32) *cloudtaskspb.Queue {
		limits := &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: perSecond, MaxConcurrentDispatches: atOnce}
		return &cloudtaskspb.Queue{RateLimits: limits}
	}
	retry := func(c *cloudtaskspb.RetryConfig) *cloudtaskspb.Queue { return &cloudtaskspb.Queue{RetryConfig: c} }
	c := open(t, cloudtasks.Options{})
	for name, q := range map[string]*cloudtaskspb.Queue{
		"-1 dispatches a second":  rate(-1, 0),
		"501 dispatches a second": rate(501, 0),
		"no number of dispatches": rate(math.NaN(), 0),
		"-1 dispatches at once":   rate(0, -1),
		"5001 at once":            rate(0, 5001),
		"-2 attempts":             retry(&cloudtaskspb.RetryConfig{MaxAttempts: -2}),
		"-1 doublings":            retry(&cloudtaskspb.RetryConfig{MaxDoublings: -1}),
		"a negative minimum":      retry(&cloudtaskspb.RetryConfig{MinBackoff: seconds(-1)}),
		"a negative maximum":      retry(&cloudtaskspb.RetryConfig{MaxBackoff: seconds(-1)}),
		"a negative duration":     retry(&cloudtaskspb.RetryConfig{MaxRetryDuration: seconds(-1)}),
		"a minimum over the maximum": retry(&cloudtaskspb.RetryConfig{
			MinBackoff: seconds(10), MaxBackoff: seconds(1),
		}),
	} {
		q.Name = queue
		_, err := c.client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: parent, Queue: q})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}

	for i, q := range []*cloudtaskspb.Queue{
		rate(0, 5000), retry(&cloudtaskspb.RetryConfig{MaxAttempts: -1}),
		retry(&cloudtaskspb.RetryConfig{MinBackoff: seconds(1), MaxBackoff: seconds(1)}),
		retry(&cloudtaskspb.RetryConfig{MinBackoff: seconds(7200)}),
	} {
		q.Name = fmt.Sprint(queue, i)
		wantCode(t, c.CreateQueue(q), codes.OK)
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

func (c *cloud) delete(name string) error {
	return c.client.DeleteTask(c.t.Context(), &cloudtaskspb.DeleteTaskRequest{Name: name})
}

func TestADeletedTaskIsNotDispatchedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		slow := worker(func(*http.Request) (*http.Response, error) { time.Sleep(time.Minute); return answer(503), nil })
		extra := func(*cloudtaskspb.Task) []time.Duration { return []time.Duration{time.Hour} }
		c := openQueue(t, cloudtasks.Options{Transport: slow, Observe: seen.observe, Extra: extra}, nil)
		start := time.Now()
		waiting, inFlight := c.create(at("waiting", start.Add(time.Hour))), c.create(post("in-flight"))
		time.Sleep(time.Second)
		for _, name := range []string{waiting.Name, inFlight.Name} {
			wantCode(t, c.delete(name), codes.OK)
			c.wantGone(name)
			wantCode(t, c.delete(name), codes.NotFound)
			_, err := c.client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: &cloudtaskspb.Task{Name: name, MessageType: post("").MessageType}})
			wantCode(t, err, codes.AlreadyExists)
		}
		c.idle()
		if got, ended := fmt.Sprint(seen.offsets(start)), time.Since(start); got != "[0]" || ended != time.Minute {
			t.Errorf("deliveries at %s, idle after %v; want one, and idle at its end", got, ended)
		}
	})
}

func TestAQueueCanBePausedAndPurged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		ctx, name := t.Context(), queue
		c := openQueue(t, cloudtasks.Options{Transport: always(200), Observe: seen.observe}, nil)
		start := time.Now()
		wantState := func(pb *cloudtaskspb.Queue, err error, want cloudtaskspb.Queue_State) {
			t.Helper()
			if err != nil || pb.State != want {
				t.Errorf("%v, %v, want %v", pb, err, want)
			}
		}
		pb, err := c.client.PauseQueue(ctx, &cloudtaskspb.PauseQueueRequest{Name: name})
		wantState(pb, err, cloudtaskspb.Queue_PAUSED)
		c.create(post("purged"))
		idle := make(chan error)
		go func() { idle <- c.Idle(ctx) }()
		synctest.Wait()
		pb, err = c.client.PurgeQueue(ctx, &cloudtaskspb.PurgeQueueRequest{Name: name})
		wantState(pb, err, cloudtaskspb.Queue_PAUSED)
		if err := <-idle; err != nil {
			t.Error(err)
		}
		c.create(post("later"))
		time.Sleep(time.Hour)
		pb, err = c.client.ResumeQueue(ctx, &cloudtaskspb.ResumeQueueRequest{Name: name})
		wantState(pb, err, cloudtaskspb.Queue_RUNNING)
		c.idle()
		if all := seen.deliveries(); len(all) != 1 || all[0].Task != "later" || all[0].Started.Sub(start) != time.Hour {
			t.Errorf("%+v, want one delivery after the pause", all)
		}
		pb, err = c.client.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: name})
		wantState(pb, err, cloudtaskspb.Queue_RUNNING)
	})
}

func TestListQueuesReturnsThoseOfALocation(t *testing.T) {
	c := open(t, cloudtasks.Options{})
	for _, name := range []string{parent + "/queues/b", parent + "/queues/a", parent + "2/queues/c"} {
		if err := c.CreateQueue(&cloudtaskspb.Queue{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for q, err := range c.client.ListQueues(t.Context(), &cloudtaskspb.ListQueuesRequest{Parent: parent}).All() {
		wantCode(t, err, codes.OK)
		got = append(got, q.Name)
	}
	equal(t, "queues", []string{parent + "/queues/a", parent + "/queues/b"}, got)
	_, err := c.client.ListQueues(t.Context(), &cloudtaskspb.ListQueuesRequest{Parent: parent, Filter: "state: PAUSED"}).Next()
	wantCode(t, err, codes.Unimplemented)
	_, err = c.client.ListQueues(t.Context(), &cloudtaskspb.ListQueuesRequest{Parent: "l"}).Next()
	wantCode(t, err, codes.InvalidArgument)
}

func TestOtherCallsAreUnimplementedAndNamed(t *testing.T) {
	conn, err := open(t, cloudtasks.Options{}).Dial()
	wantCode(t, err, codes.OK)
	defer func() { _ = conn.Close() }()
	var others []string
	for _, m := range cloudtaskspb.CloudTasks_ServiceDesc.Methods {
		err := conn.Invoke(t.Context(), "/google.cloud.tasks.v2.CloudTasks/"+m.MethodName, &emptypb.Empty{}, &emptypb.Empty{})
		if status.Code(err) == codes.Unimplemented && strings.Contains(err.Error(), "method "+m.MethodName+" ") {
			others = append(others, m.MethodName)
		} else if code := status.Code(err); code != codes.InvalidArgument {
			t.Errorf("%s: %v", m.MethodName, err)
		}
	}
	equal(t, "calls", []string{"UpdateQueue", "DeleteQueue", "GetIamPolicy", "SetIamPolicy", "TestIamPermissions", "BatchCreateTasks", "BatchDeleteTasks", "RunTask", "UpdateCmekConfig", "GetCmekConfig"}, others)
}

const invoker = "invoker@p.iam.gserviceaccount.com"

// withToken makes the task carry the invoker's ID token for this audience.
func withToken(task *cloudtaskspb.Task, audience string) *cloudtaskspb.Task {
	task.GetHttpRequest().AuthorizationHeader = &cloudtaskspb.HttpRequest_OidcToken{
		OidcToken: &cloudtaskspb.OidcToken{ServiceAccountEmail: invoker, Audience: audience},
	}
	return task
}

// mint numbers its tokens and fails the first n times.
type mint struct {
	mu   sync.Mutex
	n    int
	made int
}

var errMint = errors.New("no token")

func (m *mint) token(email, audience string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n > 0 {
		m.n--
		return "", errMint
	}
	m.made++
	return fmt.Sprintf("%s|%s|%d", email, audience, m.made), nil
}

// headersOf collects the Authorization of every request before next answers it.
type headersOf struct {
	next worker
	mu   sync.Mutex
	all  [][]string
}

func (h *headersOf) RoundTrip(r *http.Request) (*http.Response, error) {
	h.mu.Lock()
	h.all = append(h.all, r.Header.Values("Authorization"))
	h.mu.Unlock()
	return h.next(r)
}

func TestEveryDeliveryCarriesAFreshTokenOfItsOwnOrIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		h := &headersOf{next: failing(2, 503)}
		m := &mint{n: 1}
		c := openQueue(t, cloudtasks.Options{Transport: h, Token: m.token, Observe: seen.observe,
			Extra: func(*cloudtaskspb.Task) []time.Duration { return []time.Duration{time.Hour} }}, nil)
		task := withToken(post("a"), "https://aud.test")
		task.GetHttpRequest().Headers = map[string]string{"authorization": "Bearer creator's"}
		c.create(task)
		c.idle()
		var want [][]string
		if first := seen.deliveries()[0]; first.Status != 0 || !errors.Is(first.Err, errMint) {
			t.Errorf("got %+v, want an attempt that sent nothing", first)
		}
		for n := range 4 { // three further attempts and the duplicate
			want = append(want, []string{fmt.Sprintf("Bearer %s|https://aud.test|%d", invoker, n+1)})
		}
		equal(t, "Authorization", want, h.all)
	})
}

func TestOnlyATaskWithAnOIDCTokenIsDispatchedWithOne(t *testing.T) {
	oauth := post("")
	oauth.GetHttpRequest().AuthorizationHeader = &cloudtaskspb.HttpRequest_OauthToken{
		OauthToken: &cloudtaskspb.OAuthToken{ServiceAccountEmail: invoker},
	}
	creators := func(task *cloudtaskspb.Task) *cloudtaskspb.Task {
		task.GetHttpRequest().Headers = map[string]string{"Authorization": "creator's"}
		return task
	}
	m := &mint{}
	for name, c := range map[string]struct {
		task  *cloudtaskspb.Task
		token func(email, audience string) (string, error)
		want  []string
	}{
		"no token":         {creators(post("")), m.token, []string{"creator's"}},
		"oauth_token":      {creators(oauth), m.token, nil},
		"no Options.Token": {creators(withToken(post(""), "x")), nil, nil},
		"no audience":      {withToken(post(""), ""), m.token, []string{"Bearer " + invoker + "|" + target + "|1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &headersOf{next: always(200)}
				cloud := openQueue(t, cloudtasks.Options{Transport: h, Token: c.token}, nil)
				cloud.create(c.task)
				cloud.idle()
				equal(t, "Authorization", [][]string{c.want}, h.all)
			})
		})
	}
	if m.made != 1 {
		t.Errorf("got %d tokens, want 1", m.made)
	}
}
