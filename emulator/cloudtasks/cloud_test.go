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
	seen
}

func open(t testing.TB, o cloudtasks.Options) *cloud {
	t.Helper()
	c := &cloud{t: t}
	if o.Observe == nil {
		o.Observe = c.observe
	}
	c.Server = cloudtasks.NewServer(o)
	t.Cleanup(c.Close)
	conn, err := c.Dial()
	wantCode(t, err, codes.OK)
	t.Cleanup(func() { _ = conn.Close() })
	c.client, err = apiv2.NewClient(t.Context(), option.WithGRPCConn(conn))
	wantCode(t, err, codes.OK)
	return c
}

// openQueue is open with the queue q, configured by pb; nil is the defaults.
func openQueue(t testing.TB, o cloudtasks.Options, pb *cloudtaskspb.Queue) *cloud {
	t.Helper()
	c := open(t, o)
	if pb == nil {
		pb = &cloudtaskspb.Queue{}
	}
	pb.Name = queue
	wantCode(t, c.CreateQueue(pb), codes.OK)
	return c
}

// tryCreate creates a task, unless it is refused.
func (c *cloud) tryCreate(task *cloudtaskspb.Task) (*cloudtaskspb.Task, error) {
	return c.client.CreateTask(c.t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: task})
}

func (c *cloud) create(task *cloudtaskspb.Task) *cloudtaskspb.Task {
	c.t.Helper()
	created, err := c.tryCreate(task)
	wantCode(c.t, err, codes.OK)
	return created
}

// get returns a task, in its full view.
func (c *cloud) get(name string) (*cloudtaskspb.Task, error) {
	req := &cloudtaskspb.GetTaskRequest{Name: name, ResponseView: cloudtaskspb.Task_FULL}
	return c.client.GetTask(c.t.Context(), req)
}

func (c *cloud) delete(name string) error {
	return c.client.DeleteTask(c.t.Context(), &cloudtaskspb.DeleteTaskRequest{Name: name})
}

// wantGone fails unless the task is unknown to the API.
func (c *cloud) wantGone(name string) {
	c.t.Helper()
	_, err := c.get(name)
	wantCode(c.t, err, codes.NotFound)
}

func (c *cloud) idle() {
	c.t.Helper()
	wantCode(c.t, c.Idle(c.t.Context()), codes.OK)
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

// withHeaders is a task with headers of its creator.
func withHeaders(task *cloudtaskspb.Task, headers map[string]string) *cloudtaskspb.Task {
	task.GetHttpRequest().Headers = headers
	return task
}

func seconds(n float64) *durationpb.Duration {
	return durationpb.New(time.Duration(n * float64(time.Second)))
}

// retrying is a queue with that configuration of retries.
func retrying(c *cloudtaskspb.RetryConfig) *cloudtaskspb.Queue {
	return &cloudtaskspb.Queue{RetryConfig: c}
}

// atOnce is a queue that dispatches so many tasks at a time.
func atOnce(n int32) *cloudtaskspb.Queue {
	return &cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: n}}
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

// slow answers every dispatch with code after some time.
func slow(d time.Duration, code int) worker {
	return func(*http.Request) (*http.Response, error) { time.Sleep(d); return answer(code), nil }
}

// blocked answers none before its request ends.
func blocked(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
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

// recording keeps the headers of all requests that next answers.
type recording struct {
	next worker
	mu   sync.Mutex
	all  []http.Header
}

func (r *recording) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	r.all = append(r.all, req.Header)
	r.mu.Unlock()
	return r.next(req)
}

// values returns the values of one header, of each request.
func (r *recording) values(name string) (all [][]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.all {
		all = append(all, h.Values(name))
	}
	return all
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

// tasks are the ids of the tasks of the deliveries.
func (s *seen) tasks() (ids []string) {
	all := s.deliveries()
	for i := range all {
		ids = append(ids, all[i].Task)
	}
	return ids
}

// offsets are the times of the deliveries' starts after from, in seconds.
func (s *seen) offsets(from time.Time) (starts []float64) {
	all := s.deliveries()
	for i := range all {
		starts = append(starts, all[i].Started.Sub(from).Seconds())
	}
	return starts
}

// deliver creates a task in a queue that retries like this, waits until it is gone, and
// returns its deliveries and the times of their starts.
func deliver(t testing.TB, w http.RoundTripper, retry *cloudtaskspb.RetryConfig, task *cloudtaskspb.Task,
) ([]cloudtasks.Delivery, []float64) {
	t.Helper()
	c := openQueue(t, cloudtasks.Options{Transport: w}, retrying(retry))
	start := time.Now()
	created := c.create(task)
	c.idle()
	c.wantGone(created.Name)
	return c.deliveries(), c.offsets(start)
}
