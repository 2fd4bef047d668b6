package taskqueue_test

import (
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apiv2 "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/emulator/cloudtasks"
	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/must"
)

const (
	parent = "projects/p/locations/l"
	queue  = parent + "/queues/q"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cloud is an emulated Cloud Tasks. All its deliveries are answered 200.
type cloud struct {
	*cloudtasks.Server
	client    *apiv2.Client
	conn      *grpc.ClientConn
	calls     atomic.Int32
	faults    chan fault // the next CreateTask calls'
	delivered chan *http.Request
	bodies    atomic.Int32  // tasks that were read with their body, which needs another permission
	delay     time.Duration // of an answer
	answer    int           // zero: 200
}

const noAnswer codes.Code = 100

// fault is the error of a call. With after, the call is made all the same.
type fault struct {
	code  codes.Code
	after bool
}

func open(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{faults: make(chan fault, 100), delivered: make(chan *http.Request, 100)}
	c.Server = cloudtasks.NewServer(cloudtasks.Options{Transport: c})
	t.Cleanup(c.Close)
	c.conn = must.Get(c.Dial(grpc.WithChainUnaryInterceptor(c.intercept)))(t)
	t.Cleanup(func() { _ = c.conn.Close() })
	c.client = must.Get(apiv2.NewClient(t.Context(), option.WithGRPCConn(c.conn)))(t)
	create := &cloudtaskspb.CreateQueueRequest{Parent: parent, Queue: &cloudtaskspb.Queue{Name: queue}}
	must.Get(c.client.CreateQueue(t.Context(), create))(t)
	return c
}

func (c *cloud) intercept(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if !strings.HasSuffix(method, "/CreateTask") {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if get, ok := req.(*cloudtaskspb.GetTaskRequest); ok && get.GetResponseView() == cloudtaskspb.Task_FULL {
			c.bodies.Add(1)
		}
		task, ok := reply.(*cloudtaskspb.Task)
		if ok && task.GetLastAttempt() != nil { // meaningless without a ResponseTime
			task.LastAttempt.ResponseStatus = status.New(codes.Unknown, "").Proto()
		}
		return err
	}
	c.calls.Add(1)
	select {
	case f := <-c.faults:
		if f.after {
			if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
				return err
			}
		}
		if f.code == noAnswer {
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		}
		return status.Error(f.code, "injected")
	default:
		return invoke(ctx, method, req, reply, cc, opts...)
	}
}

// RoundTrip is the worker.
func (c *cloud) RoundTrip(r *http.Request) (*http.Response, error) {
	c.delivered <- r
	time.Sleep(c.delay)
	return &http.Response{StatusCode: stdcmp.Or(c.answer, http.StatusOK), Body: http.NoBody}, nil
}

func (c *cloud) queue(t *testing.T, cfg taskqueue.Config) *taskqueue.Queue {
	t.Helper()
	cfg.Name = queue
	cfg.TargetURL = stdcmp.Or(cfg.TargetURL, "https://worker.example")
	return must.Get(taskqueue.Open(t.Context(), cfg, option.WithGRPCConn(c.conn)))(t)
}

func book(t *testing.T, q *taskqueue.Queue, task taskqueue.Task) (already bool) {
	t.Helper()
	already, err := q.Book(t.Context(), task)
	must.OK(t, err)
	return already
}

func TestName(t *testing.T) {
	seen := map[string]bool{}
	for _, parts := range [][]string{{}, {""}, {"a", "b"}, {"ab"}, {"ab", ""}, {"", "ab"}, {"b", "a"}, {"ä/…"}} {
		name := taskqueue.Name(parts...)
		if !taskqueue.ValidName(name) || seen[name] {
			t.Errorf("%q: the name %q is invalid, or another's", parts, name)
		}
		seen[name] = true
	}
	// A worker of another version books the same tasks.
	if got := taskqueue.Name("next", "x"); got != "60c0f33d8bef260fe1927879399b7f480844384718cf89d34798488a84e3081f" {
		t.Errorf("the name is %s", got)
	}
	for name, valid := range map[string]bool{
		"azAZ09-_": true, strings.Repeat("a", 500): true, strings.Repeat("a", 501): false, "": false,
		"a/": false, "a b": false, "é": false, "a\n": false,
	} {
		if taskqueue.ValidName(name) != valid {
			t.Errorf("%.10q is valid: %t", name, !valid)
		}
	}
}

// An error names the variable, is one line, and has no password.
func TestConfig_Check(t *testing.T) {
	const target = "https://w.example"
	longest := target + "/" + strings.Repeat("x", 2083-len("https://w.example//internal/tasks/analysis"))
	check := func(name, target, caller, want string) {
		t.Helper()
		err := taskqueue.Config{Name: name, TargetURL: target, Caller: caller}.Check()
		got, _, _ := strings.Cut(fmt.Sprint(err), ": ")
		if got != want {
			t.Errorf("%s, %s, %s: %v, want a problem of %s", name, target, caller, err, want)
		}
		if text := fmt.Sprint(err); strings.Contains(text, "secret") || strings.Contains(text, "\n") {
			t.Errorf("%s: the password, or several lines: %s", target, text)
		}
	}
	const none = "<nil>"
	check(queue, target, "a@b.example", none)
	check(queue, "http://w.example:8080/base", "", none)
	check(queue, longest, "", none)
	check(queue, target, "someone", "TASK_CALLER")
	for _, name := range []string{"", queue + "/tasks/t", queue + "/"} {
		check(name, target, "", "TASK_QUEUE")
	}
	for _, target := range []string{
		"", target + "?x=y", target + "#x", "https://u:secret@w.example", "https://u:secret@a b", longest + "x",
		"ftp://w.example", "https:///x", "https://a b",
	} {
		check(queue, target, "", "TASK_TARGET_URL")
	}
	if _, err := taskqueue.Open(t.Context(), taskqueue.Config{}); err == nil {
		t.Error("Open does not check")
	}
}

func TestQueue_Book(t *testing.T) {
	task := taskqueue.Task{Name: taskqueue.Name("x"), AnalysisID: `a "quoted" id`}
	inBubble := func(name string, test func(t *testing.T, c *cloud)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, open(t)) })
		})
	}

	inBubble("booking twice is booking once", func(t *testing.T, c *cloud) {
		q := c.queue(t, taskqueue.Config{TargetURL: "https://worker.example/base/"})
		if book(t, q, task) || !book(t, q, task) {
			t.Error("want a new booking, then one that is there already")
		}
		must.OK(t, c.Idle(t.Context()))
		if !book(t, q, task) {
			t.Error("the name of a task that has ended is reported as new")
		}
		if n := len(c.delivered); n != 1 {
			t.Fatalf("%d deliveries, want 1", n)
		}
		r := <-c.delivered
		got := []string{r.Method, r.URL.String(), string(must.Get(io.ReadAll(r.Body))(t)), r.Header.Get("Content-Type")}
		const url = "https://worker.example/base/internal/tasks/analysis"
		want := []string{"POST", url, `{"analysis_id":"a \"quoted\" id"}`, "application/json"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("delivery (-want +got):\n%s", diff)
		}
	})

	for _, tc := range []struct {
		name    string
		faults  []fault
		already bool
		err     codes.Code
	}{
		{name: "not done", faults: []fault{
			{code: codes.Unavailable}, {code: codes.DeadlineExceeded}, {code: codes.ResourceExhausted},
			{code: codes.Canceled}, {code: codes.Aborted}, {code: codes.Internal}, {code: codes.Unknown},
		}},
		{name: "no answer", faults: []fault{{code: noAnswer}}},
		{name: "done, reply lost", faults: []fault{{code: codes.Unavailable, after: true}}, already: true},
		{name: "no permission", faults: []fault{{code: codes.PermissionDenied}}, err: codes.PermissionDenied},
		{name: "invalid", faults: []fault{{code: codes.InvalidArgument}}, err: codes.InvalidArgument},
		{name: "no queue", faults: []fault{{code: codes.NotFound}}, err: codes.NotFound},
	} {
		inBubble("only transient errors are tried again: "+tc.name, func(t *testing.T, c *cloud) {
			for _, f := range tc.faults {
				c.faults <- f
			}
			tries, deliveries := int32(len(tc.faults)), 0
			if tc.err == codes.OK {
				tries, deliveries = tries+1, 1
			}
			already, err := c.queue(t, taskqueue.Config{}).Book(t.Context(), task)
			if already != tc.already || status.Code(err) != tc.err {
				t.Errorf("already %t, %v; want %t, %v", already, err, tc.already, tc.err)
			}
			must.OK(t, c.Idle(t.Context()))
			if n := len(c.delivered); n != deliveries || c.calls.Load() != tries {
				t.Errorf("%d calls, %d deliveries; want %d, %d", c.calls.Load(), n, tries, deliveries)
			}
		})
	}

	inBubble("it gives up after 15 s", func(t *testing.T, c *cloud) {
		for range cap(c.faults) {
			c.faults <- fault{code: codes.Unavailable}
		}
		q, began := c.queue(t, taskqueue.Config{}), time.Now()
		if _, err := q.Book(t.Context(), task); err == nil || time.Since(began) != 15*time.Second {
			t.Errorf("%v after %v, want an error after 15 s", err, time.Since(began))
		}
		if calls := c.calls.Load(); calls < 11 || calls > 19 { // pauses of 0.05–0.1 to 1–2 s
			t.Errorf("%d calls", calls)
		}
	})

	inBubble("it gives up at the end of its context", func(t *testing.T, c *cloud) {
		c.faults <- fault{code: noAnswer}
		q, began := c.queue(t, taskqueue.Config{}), time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := q.Book(ctx, task); err == nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v, want an error after 1 s", err, time.Since(began))
		}
	})

	inBubble("a task has its times and its caller", func(t *testing.T, c *cloud) {
		at := time.Now().Add(time.Hour).Truncate(time.Second)
		for _, tc := range []struct {
			caller, own, audience string // own: the service's, if it is not the target
			deadline, dispatch    time.Duration
		}{
			{"a@b.example", "", "https://worker.example", time.Hour, 30 * time.Minute}, // the longest
			{"c@b.example", "own", "own", time.Minute, time.Minute},
			{"", "", "", 0, 10 * time.Minute}, // Cloud Tasks' default
		} {
			name := taskqueue.Name(tc.caller)
			q := c.queue(t, taskqueue.Config{Caller: tc.caller, Audience: tc.own, TargetURL: "https://worker.example/"})
			book(t, q, taskqueue.Task{Name: name, AnalysisID: "x", At: at, Deadline: tc.deadline})
			whole := &cloudtaskspb.GetTaskRequest{Name: queue + "/tasks/" + name, ResponseView: cloudtaskspb.Task_FULL}
			got := must.Get(c.client.GetTask(t.Context(), whole))(t)
			due, dispatch := got.GetScheduleTime().AsTime(), got.GetDispatchDeadline().AsDuration()
			if !due.Equal(at) || dispatch != tc.dispatch {
				t.Errorf("%+v: due at %v, answered within %v", tc, due, dispatch)
			}
			token := got.GetHttpRequest().GetOidcToken()
			if token.GetServiceAccountEmail() != tc.caller || token.GetAudience() != tc.audience {
				t.Errorf("%+v: the token %v", tc, token)
			}
		}
	})
}

// What waits in the queue is distinguished from what no worker answers.
func TestQueue_Find(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t)
		c.delay, c.answer = 2*time.Minute, http.StatusConflict
		q, now := c.queue(t, taskqueue.Config{}), time.Now()
		book(t, q, taskqueue.Task{Name: "later", At: now.Add(time.Hour)})
		book(t, q, taskqueue.Task{Name: "far", At: now.Add(12*time.Hour + 2*time.Minute)})
		book(t, q, taskqueue.Task{Name: "slow"})
		synctest.Wait()
		for _, tc := range []struct {
			name  string
			after time.Duration
			want  taskqueue.Presence
		}{
			{"later", 0, taskqueue.Waiting},
			{"far", 0, taskqueue.Absent},
			{"far", 2 * time.Minute, taskqueue.Waiting},
			{"slow", 30 * time.Second, taskqueue.Underway},
			{"slow", 30*time.Second + 1, taskqueue.Absent},
			{"never", 0, taskqueue.Absent},
			{"no/name", 0, taskqueue.Absent},
		} {
			if got, err := q.Find(t.Context(), tc.name, now.Add(tc.after)); got != tc.want || err != nil {
				t.Errorf("%q after %v: %v, %v; want %v", tc.name, tc.after, got, err, tc.want)
			}
		}

		time.Sleep(2*time.Minute + 50*time.Millisecond) // it is answered, and waits 100 ms for its next delivery
		if got, err := q.Find(t.Context(), "slow", time.Now()); got != taskqueue.Waiting || err != nil {
			t.Errorf("between two deliveries: %v, %v", got, err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if got, err := q.Find(ended, "later", now); got != taskqueue.Absent || status.Code(err) != codes.Canceled {
			t.Errorf("without an answer: %v, %v", got, err)
		}
		if n := c.bodies.Load(); n > 0 {
			t.Errorf("%d tasks are read with their body", n)
		}
	})
}

// An emulator speaks plaintext, and needs no credentials. A closed connection stays closed.
func TestOpen(t *testing.T) {
	server := cloudtasks.NewServer(cloudtasks.Options{})
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() { server.Close(); <-served }()
	cfg := taskqueue.Config{Name: queue, TargetURL: "https://worker.example", EmulatorHost: l.Addr().String()}
	q := must.Get(taskqueue.Open(t.Context(), cfg))(t)
	_, err := q.Book(t.Context(), taskqueue.Task{Name: taskqueue.Name("x"), AnalysisID: "x"})
	var refused *taskqueue.BookingError
	if !errors.As(err, &refused) || status.Code(err) != codes.NotFound {
		t.Errorf("a queue that the emulator does not have: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	if err := q.Close(); err == nil {
		t.Error("it was not closed")
	}
	cfg.EmulatorHost = ""
	_, err = taskqueue.Open(t.Context(), cfg, option.WithAuthCredentialsFile(option.ServiceAccount, "/none"))
	if err == nil || !strings.Contains(err.Error(), queue) {
		t.Errorf("without credentials: %v", err)
	}
}
