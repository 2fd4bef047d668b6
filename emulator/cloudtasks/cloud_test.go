package cloudtasks_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	apiv2 "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/emulator/cloudtasks"
)

const (
	parent = "projects/p/locations/l"
	queue  = parent + "/queues/q"
	target = "http://worker.test/run"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cloud is a server with Google's client connected to it in-process.
type cloud struct {
	*cloudtasks.Server
	t      testing.TB
	client *apiv2.Client
}

func open(t testing.TB, o cloudtasks.Options) *cloud {
	t.Helper()
	s := cloudtasks.NewServer(o)
	t.Cleanup(s.Close)
	conn, err := s.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client, err := apiv2.NewClient(t.Context(), option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	return &cloud{s, t, client}
}

// openQueue is open with the queue q, configured by pb; nil is the defaults.
func openQueue(t testing.TB, o cloudtasks.Options, pb *cloudtaskspb.Queue) *cloud {
	t.Helper()
	c := open(t, o)
	if pb == nil {
		pb = &cloudtaskspb.Queue{}
	}
	pb.Name = queue
	_, err := c.client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: parent, Queue: pb})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cloud) create(task *cloudtaskspb.Task) *cloudtaskspb.Task {
	c.t.Helper()
	created, err := c.client.CreateTask(c.t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: task})
	if err != nil {
		c.t.Fatal(err)
	}
	return created
}

// wantGone fails unless the task is unknown to the API.
func (c *cloud) wantGone(name string) {
	c.t.Helper()
	_, err := c.client.GetTask(c.t.Context(), &cloudtaskspb.GetTaskRequest{Name: name})
	wantCode(c.t, err, codes.NotFound)
}

func (c *cloud) idle() {
	c.t.Helper()
	if err := c.Idle(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// post is a task that posts to the target; id "" leaves it unnamed.
func post(id string) *cloudtaskspb.Task {
	t := &cloudtaskspb.Task{MessageType: &cloudtaskspb.Task_HttpRequest{
		HttpRequest: &cloudtaskspb.HttpRequest{Url: target, Body: []byte("payload")},
	}}
	if id != "" {
		t.Name = queue + "/tasks/" + id
	}
	return t
}

// at is post with a schedule time.
func at(id string, due time.Time) *cloudtaskspb.Task {
	t := post(id)
	t.ScheduleTime = timestamppb.New(due)
	return t
}

func seconds(n float64) *durationpb.Duration {
	return durationpb.New(time.Duration(n * float64(time.Second)))
}

func equal(t testing.TB, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func wantCode(t testing.TB, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Fatalf("got %v (%v), want %v", got, err, want)
	}
}

// worker answers dispatches without a socket.
type worker func(*http.Request) (*http.Response, error)

func (w worker) RoundTrip(r *http.Request) (*http.Response, error) { return w(r) }

func answer(code int, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: code, Header: h, Body: io.NopCloser(strings.NewReader("answer"))}
}

// always answers every dispatch with code.
func always(code int) worker {
	return func(*http.Request) (*http.Response, error) { return answer(code), nil }
}

// failing answers code n times, then 200.
func failing(n, code int) worker {
	var mu sync.Mutex
	return func(*http.Request) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 {
			return answer(200), nil
		}
		n--
		return answer(code), nil
	}
}

// seen collects deliveries.
type seen struct {
	mu  sync.Mutex
	all []cloudtasks.Delivery
}

func (s *seen) observe(d cloudtasks.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, d)
}

func (s *seen) deliveries() []cloudtasks.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]cloudtasks.Delivery(nil), s.all...)
}

// offsets are the times of the deliveries' starts after from, in seconds.
func (s *seen) offsets(from time.Time) []float64 {
	var out []float64
	all := s.deliveries()
	for i := range all {
		out = append(out, all[i].Started.Sub(from).Seconds())
	}
	return out
}

// deliver creates a task in a queue that retries like this, waits until it is gone, and
// returns its deliveries and the times of their starts.
func deliver(t testing.TB, w http.RoundTripper, retry *cloudtaskspb.RetryConfig, task *cloudtaskspb.Task) ([]cloudtasks.Delivery, []float64) {
	t.Helper()
	var seen seen
	c := openQueue(t, cloudtasks.Options{Transport: w, Observe: seen.observe}, &cloudtaskspb.Queue{RetryConfig: retry})
	start := time.Now()
	created := c.create(task)
	c.idle()
	c.wantGone(created.Name)
	return seen.deliveries(), seen.offsets(start)
}
