package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	apiv2 "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/emulator/cloudtasks"
	"taskguard/internal/testing/must"
)

// queue is an embedded Cloud Tasks on a port. Its transport spreads deliveries over
// the workers, including dead ones, which refuse the connection.
type queue struct {
	name   string
	client *apiv2.Client
	server *cloudtasks.Server
	proxy  *proxy // between the workers and the server
	close  func()
	slots  []*slot           // of the workers
	inner  http.RoundTripper // opens a connection for each delivery

	mu     sync.Mutex
	next   int
	counts map[string]int // of answers, by status and reason
}

const location = "projects/p/locations/l"

// newQueue makes a queue that retries within a second without end. extra, which may be
// nil, makes duplicates.
func newQueue(t testing.TB, extra func(*cloudtaskspb.Task) []time.Duration) *queue {
	t.Helper()
	q := &queue{name: location + "/queues/q", inner: &http.Transport{DisableKeepAlives: true}, counts: map[string]int{}}
	q.server = cloudtasks.NewServer(cloudtasks.Options{Transport: q, Extra: extra})

	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	served := make(chan error, 1)
	go func() { served <- q.server.Serve(l) }()
	q.close = sync.OnceFunc(func() {
		q.server.Close()
		<-served
	})
	t.Cleanup(q.close)
	q.proxy = newProxy(t, l.Addr().String())

	conn := must.Get(q.server.Dial())(t)
	t.Cleanup(func() { _ = conn.Close() })
	q.client = must.Get(apiv2.NewClient(t.Context(), option.WithGRPCConn(conn)))(t)
	retries := &cloudtaskspb.RetryConfig{MaxAttempts: -1, MaxBackoff: durationpb.New(time.Second)}
	must.Get(q.client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{
		Parent: location, Queue: &cloudtaskspb.Queue{Name: q.name, RetryConfig: retries},
	}))(t)
	return q
}

// deliver creates a task that is due after that time.
func (q *queue) deliver(ctx context.Context, id string, in time.Duration) error {
	_, err := q.client.CreateTask(ctx, &cloudtaskspb.CreateTaskRequest{Parent: q.name, Task: &cloudtaskspb.Task{
		ScheduleTime: timestamppb.New(time.Now().Add(in)),
		MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{
			Url: "http://worker.test/internal/tasks/analysis", Body: fmt.Appendf(nil, `{"analysis_id":%q}`, id),
		}},
	}})
	return err
}

// RoundTrip implements http.RoundTripper.
func (q *queue) RoundTrip(r *http.Request) (*http.Response, error) {
	q.mu.Lock()
	q.next++
	p := q.slots[q.next%len(q.slots)].worker()
	q.mu.Unlock()
	sent := r.Clone(r.Context())
	sent.URL.Host, sent.Host = p.serving.Address, p.serving.Address
	response, err := q.inner.RoundTrip(sent)
	if err != nil {
		return nil, err
	}

	body, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	var answer struct{ Status, Reason string }
	_ = json.Unmarshal(body, &answer) // an answer that is not a worker's is counted by its status alone
	q.mu.Lock()
	defer q.mu.Unlock()
	q.counts[fmt.Sprint(response.StatusCode, " ", answer.Reason, answer.Status)]++
	return response, nil
}

// answers returns how many answers of each kind there were so far.
func (q *queue) answers() map[string]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return maps.Clone(q.counts)
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
