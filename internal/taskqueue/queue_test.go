package taskqueue_test

import (
	stdcmp "cmp"
	"context"
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
	conn, err := c.Dial(grpc.WithChainUnaryInterceptor(c.intercept))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c.conn = conn
	if c.client, err = apiv2.NewClient(t.Context(), option.WithGRPCConn(conn)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: parent, Queue: &cloudtaskspb.Queue{Name: queue}}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cloud) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if !strings.HasSuffix(method, "/CreateTask") {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if task, ok := reply.(*cloudtaskspb.Task); ok && task.GetLastAttempt() != nil { // meaningless without a ResponseTime
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
	return &http.Response{StatusCode: stdcmp.Or(c.answer, http.StatusOK), Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
}

func (c *cloud) queue(t *testing.T, cfg taskqueue.Config) *taskqueue.Queue {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = queue
	}
	if cfg.TargetURL == "" {
		cfg.TargetURL = "https://worker.example"
	}
	q, err := taskqueue.Open(t.Context(), cfg, option.WithGRPCConn(c.conn))
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func book(t *testing.T, q *taskqueue.Queue, task taskqueue.Task) (already bool) {
	t.Helper()
	already, err := q.Book(t.Context(), task)
	if err != nil {
		t.Fatal(err)
	}
	return already
}

func TestBookingTwiceIsBookingOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t)
		q := c.queue(t, taskqueue.Config{TargetURL: "https://worker.example/base/"})
		task := taskqueue.Task{Name: taskqueue.Name("x"), AnalysisID: `a "quoted" id`}
		if book(t, q, task) || !book(t, q, task) {
			t.Error("want a new booking, then one that is there already")
		}
		if err := c.Idle(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !book(t, q, task) {
			t.Error("Book reports the name of a task that has ended as new")
		}
		if n := len(c.delivered); n != 1 {
			t.Fatalf("%d deliveries, want 1", n)
		}
		r := <-c.delivered
		body, err := io.ReadAll(r.Body)
		got := []string{r.Method, r.URL.String(), r.Header.Get("Content-Type"), string(body), r.Header.Get("X-CloudTasks-TaskName")}
		want := []string{"POST", "https://worker.example/base/internal/tasks/analysis", "application/json", `{"analysis_id":"a \"quoted\" id"}`, taskqueue.Name("x")}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("delivery, %v (-want +got):\n%s", err, diff)
		}
	})
}

func TestOnlyTransientErrorsAreTriedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		faults  []fault
		calls   int32
		already bool
		err     codes.Code
	}{
		"not done":         {[]fault{{codes.Unavailable, false}, {codes.DeadlineExceeded, false}, {codes.ResourceExhausted, false}}, 4, false, codes.OK},
		"not done, others": {[]fault{{codes.Canceled, false}, {codes.Aborted, false}, {codes.Internal, false}, {codes.Unknown, false}}, 5, false, codes.OK},
		"no answer":        {[]fault{{noAnswer, false}}, 2, false, codes.OK},
		"done, reply lost": {[]fault{{codes.Unavailable, true}}, 2, true, codes.OK},
		"no permission":    {[]fault{{codes.PermissionDenied, false}}, 1, false, codes.PermissionDenied},
		"invalid":          {[]fault{{codes.InvalidArgument, false}}, 1, false, codes.InvalidArgument},
		"no queue":         {[]fault{{codes.NotFound, false}}, 1, false, codes.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := open(t)
				for _, f := range tc.faults {
					c.faults <- f
				}
				already, err := c.queue(t, taskqueue.Config{}).Book(t.Context(), taskqueue.Task{Name: taskqueue.Name("x"), AnalysisID: "x"})
				if already != tc.already || status.Code(err) != tc.err || c.calls.Load() != tc.calls {
					t.Errorf("%v, %v after %d calls; want %+v", already, err, c.calls.Load(), tc)
				}
				if err := c.Idle(t.Context()); err != nil {
					t.Fatal(err)
				}
				if n := len(c.delivered); (n == 1) != (tc.err == codes.OK) {
					t.Errorf("%d deliveries", n)
				}
			})
		})
	}
}

func TestBookGivesUpInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t)
		for range cap(c.faults) {
			c.faults <- fault{codes.Unavailable, false}
		}
		q := c.queue(t, taskqueue.Config{})
		began := time.Now()
		_, err := q.Book(t.Context(), taskqueue.Task{Name: taskqueue.Name("x"), AnalysisID: "x"})
		if took, calls := time.Since(began), c.calls.Load(); err == nil || took != 15*time.Second || calls < 11 || calls > 19 { // pauses of 0.05–0.1 to 1–2 s
			t.Errorf("err = %v after %v and %d calls, want an error after 15 s", err, took, calls)
		}
	})
}

func TestATaskCarriesItsTimesAndItsCaller(t *testing.T) {
	const account = "caller@p.iam.gserviceaccount.com"
	synctest.Test(t, func(t *testing.T) {
		c := open(t)
		at := time.Now().Add(time.Hour).Truncate(time.Second)
		for i, tc := range []struct {
			cfg               taskqueue.Config
			deadline, want    time.Duration
			account, audience string
		}{
			{taskqueue.Config{Caller: account, TargetURL: "https://worker.example/"}, 20 * time.Minute, 20 * time.Minute, account, "https://worker.example"},
			{taskqueue.Config{Caller: account, Audience: "https://other.example"}, 15 * time.Second, 15 * time.Second, account, "https://other.example"},
			{taskqueue.Config{}, time.Hour, 30 * time.Minute, "", ""},
			{taskqueue.Config{}, 0, 10 * time.Minute, "", ""},
		} {
			name := taskqueue.Name(fmt.Sprint(i))
			book(t, c.queue(t, tc.cfg), taskqueue.Task{Name: name, AnalysisID: "x", IDField: "job_id", Path: "/tasks/job", At: at, Deadline: tc.deadline})
			task, err := c.client.GetTask(t.Context(), &cloudtaskspb.GetTaskRequest{Name: queue + "/tasks/" + name, ResponseView: cloudtaskspb.Task_FULL})
			if err != nil {
				t.Fatal(err)
			}
			call, token := task.GetHttpRequest(), task.GetHttpRequest().GetOidcToken()
			if !task.GetScheduleTime().AsTime().Equal(at) || task.GetDispatchDeadline().AsDuration() != tc.want ||
				call.GetUrl() != "https://worker.example/tasks/job" || string(call.GetBody()) != `{"job_id":"x"}` ||
				token.GetServiceAccountEmail() != tc.account || token.GetAudience() != tc.audience || (token == nil) != (tc.account == "") {
				t.Errorf("%+v: %v", tc, task)
			}
		}
	})
}

func TestFindDistinguishesWhatWaitsFromWhatNoWorkerAnswers(t *testing.T) {
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
	})
}

// An emulator speaks plaintext, and needs no credentials. A closed connection stays closed.
func TestAnEmulatorIsReachedAtItsAddress(t *testing.T) {
	c := &cloud{delivered: make(chan *http.Request, 1)}
	c.Server = cloudtasks.NewServer(cloudtasks.Options{Transport: c})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- c.Serve(l) }()
	defer func() { c.Close(); <-served }()
	q, err := taskqueue.Open(t.Context(), taskqueue.Config{Name: queue, TargetURL: "https://worker.example", EmulatorHost: l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Book(t.Context(), taskqueue.Task{Name: taskqueue.Name("x"), AnalysisID: "x"}); status.Code(err) != codes.NotFound || !strings.HasPrefix(err.Error(), `taskqueue: enqueue "x": `) {
		t.Errorf("a queue that the emulator does not have: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	if err := q.Close(); err == nil {
		t.Error("it was not closed")
	}
	_, err = taskqueue.Open(t.Context(), taskqueue.Config{Name: queue, TargetURL: "https://worker.example"}, option.WithAuthCredentialsFile(option.ServiceAccount, "/none"))
	if err == nil || !strings.HasPrefix(err.Error(), "taskqueue: open "+queue+": ") {
		t.Errorf("without credentials: %v", err)
	}
}
