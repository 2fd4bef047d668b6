package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
)

// queue is an embedded Cloud Tasks on a port, with one queue, and the front
// through which it delivers.
type queue struct {
	name, host string
	front      *front
	client     *apiv2.Client
	server     *cloudtasks.Server
	close      func()
}

const location = "projects/p/locations/l"

// newQueue makes a queue that retries within a second, for ever. extra, which
// may be nil, makes duplicates.
func newQueue(t testing.TB, extra func(*cloudtaskspb.Task) []time.Duration) *queue {
	t.Helper()
	q := &queue{name: location + "/queues/q", front: &front{inner: &http.Transport{DisableKeepAlives: true}, counts: map[string]int{}}}
	server := cloudtasks.NewServer(cloudtasks.Options{Transport: q.front, Extra: extra})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	q.server = server
	q.host = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	q.close = sync.OnceFunc(func() {
		server.Close()
		<-served
	})
	t.Cleanup(q.close)
	conn, err := server.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if q.client, err = apiv2.NewClient(t.Context(), option.WithGRPCConn(conn)); err != nil {
		t.Fatal(err)
	}
	_, err = q.client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location, Queue: &cloudtaskspb.Queue{
		Name: q.name, RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: -1, MaxBackoff: durationpb.New(time.Second)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// deliver makes a task that is due in that time.
func (q *queue) deliver(ctx context.Context, id string, in time.Duration) error {
	body, err := json.Marshal(map[string]string{"analysis_id": id})
	if err != nil {
		return err
	}
	_, err = q.client.CreateTask(ctx, &cloudtaskspb.CreateTaskRequest{Parent: q.name, Task: &cloudtaskspb.Task{
		ScheduleTime: timestamppb.New(time.Now().Add(in)),
		MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{
			Url: "http://worker.test/internal/tasks/analysis", Body: body,
		}},
	}})
	return err
}

// front is the queue's Transport: it spreads deliveries over the workers, the
// dead ones too, which refuse the connection, as at Cloud Run's front end.
type front struct {
	inner http.RoundTripper // opens a connection for each delivery

	mu      sync.Mutex
	numbers []int
	workers []string // by place; addresses
	next    int
	delay   func() time.Duration // nil: none
	counts  map[string]int       // of answers by reason, and of delays
}

// join adds a worker.
func (f *front) join(number int, address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.numbers, f.workers = append(f.numbers, number), append(f.workers, address)
}

// replace puts a worker in another's place.
func (f *front) replace(old, number int, address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.numbers {
		if f.numbers[i] == old {
			f.numbers[i], f.workers[i] = number, address
		}
	}
}

func (f *front) count(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[what]
}

var errNoWorker = errors.New("front: no worker has joined")

func (f *front) pick() (address string, delay time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.workers) == 0 {
		return "", 0, errNoWorker
	}
	f.next++
	if f.delay != nil {
		delay = f.delay()
	}
	if delay > 0 {
		f.counts["delayed"]++
	}
	return f.workers[f.next%len(f.workers)], delay, nil
}

// RoundTrip makes front an http.RoundTripper.
func (f *front) RoundTrip(r *http.Request) (*http.Response, error) {
	address, delay, err := f.pick()
	if err != nil {
		return nil, err
	}
	wait(r.Context(), time.After(delay))
	sent := r.Clone(r.Context())
	sent.URL.Host, sent.Host = address, address
	response, err := f.inner.RoundTrip(sent)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	var answer struct{ Status, Reason string }
	_ = json.Unmarshal(body, &answer) // what is no answer is counted under its status
	f.mu.Lock()
	f.counts[fmt.Sprint(response.StatusCode, " ", answer.Reason, answer.Status)]++
	f.mu.Unlock()
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}

// some is a duration between two.
func some(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1))
}
