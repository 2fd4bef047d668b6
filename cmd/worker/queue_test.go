package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	apiv2 "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"

	"taskguard/emulator/cloudtasks"
	"taskguard/emulator/oidc"
	"taskguard/internal/taskqueue"
	"taskguard/lease/analysislock"
)

const (
	queueName = "projects/p/locations/l/queues/q"
	account   = "tasks@p.iam.gserviceaccount.com"
)

// tasks is an embedded Cloud Tasks on a port, whose tasks carry tokens, and the
// page of the keys that verify them.
type tasks struct {
	*cloudtasks.Server
	host, keys, target string
	client             *apiv2.Client

	mu     sync.Mutex
	worker string // where the target is
}

func newTasks(t *testing.T) *tasks {
	t.Helper()
	issuer := oidc.NewIssuer()
	page := httptest.NewServer(issuer)
	t.Cleanup(page.Close)
	q := &tasks{keys: page.URL, target: "http://worker.test"}
	q.Server = cloudtasks.NewServer(cloudtasks.Options{Token: issuer.Token, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			q.mu.Lock()
			defer q.mu.Unlock()
			return new(net.Dialer).DialContext(ctx, network, strings.TrimPrefix(q.worker, "http://"))
		},
	}})
	l := listen(t, "127.0.0.1:0")
	q.host = l.Addr().String()
	var served sync.WaitGroup
	served.Go(func() { _ = q.Serve(l) })
	t.Cleanup(func() { q.Close(); served.Wait() })
	conn, err := q.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if q.client, err = apiv2.NewClient(t.Context(), option.WithGRPCConn(conn)); err != nil {
		t.Fatal(err)
	}
	if _, err := q.client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{
		Parent: "projects/p/locations/l", Queue: &cloudtaskspb.Queue{Name: queueName},
	}); err != nil {
		t.Fatal(err)
	}
	return q
}

// env makes a worker take q's tasks, and book there.
func (q *tasks) env(more ...string) []string {
	return append([]string{
		"TASK_AUTH=oidc", "TASK_AUDIENCE=https://audience.test", "TASK_SERVICE_ACCOUNTS=" + account, "TASK_JWKS_URL=" + q.keys,
		"TASK_QUEUE=" + queueName, "TASK_TARGET_URL=" + q.target, "TASK_CALLER=" + account, "CLOUD_TASKS_EMULATOR_HOST=" + q.host,
	}, more...)
}

func (q *tasks) reach(p *process) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.worker = p.url
}

// book books as another program would.
func (q *tasks) book(t *testing.T, id string) {
	t.Helper()
	queue, err := taskqueue.Open(t.Context(), taskqueue.Config{
		Name: queueName, TargetURL: q.target, Caller: account, Audience: "https://audience.test", EmulatorHost: q.host,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = queue.Close() }()
	if _, err := queue.Book(t.Context(), taskqueue.Task{Name: taskqueue.Name(t.Name(), id), AnalysisID: id}); err != nil {
		t.Fatal(err)
	}
}

// The worker verifies the queue's token. When the worker stops, it books a delivery of the
// run that it cancels, and that delivery, with a token too, finishes the analysis.
func TestAStoppedRunIsFinishedByTheNextWorker(t *testing.T) {
	t.Parallel()
	c, q := newCloud(t), newTasks(t)
	c.create(t, "x")
	first := c.start(t, q.env("ANALYZER=exec:sleep 60")...)
	if code, body, err := first.deliver(t.Context(), "x"); code != http.StatusUnauthorized {
		t.Errorf("without a token: %d %s %v", code, body, err)
	}
	q.reach(first)
	q.book(t, "x")
	c.until(t, "x", "running", running)
	second := c.start(t, q.env()...)
	q.reach(second)
	first.stop(t)
	first.exitsCleanly(t)
	a := c.until(t, "x", "finished", ready)
	if result, _ := a.Result.(map[string]any); a.Lock.Token != 2 || a.Lock.Attempts != 1 || result["words"] != int64(2) {
		t.Errorf("analysis = %+v, want its second acquisition and first attempt", a)
	}
	second.stop(t)
	second.wait(t)
	if !strings.Contains(first.log.String(), `"outcome":"shutting_down","status":200`) {
		t.Errorf("log: %s", first.log.String())
	}
}

// 200 runs are released and booked, each once, before the exit.
func TestSIGTERMReleasesAndBooks200Runs(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: 200 runs")
	}
	t.Parallel()
	c, q := newCloud(t), newTasks(t)
	endless := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is the end of the caller noticed
		<-r.Context().Done()
	}))
	t.Cleanup(endless.Close)
	p := c.start(t, "MAX_RUNS=200", "ANALYZER="+endless.URL, "TASK_QUEUE="+queueName, "TASK_TARGET_URL="+q.target, "CLOUD_TASKS_EMULATOR_HOST="+q.host)
	answers := make([]<-chan string, 200)
	for i := range answers {
		c.create(t, fmt.Sprint(i))
		answers[i] = p.delivered(t, fmt.Sprint(i))
	}
	for i := range answers {
		c.until(t, fmt.Sprint(i), "running", running)
	}
	p.stop(t)
	for i, answer := range answers {
		if got := <-answer; !strings.HasPrefix(got, "200") || !strings.Contains(got, "shutting_down") {
			t.Errorf("%d: %s", i, got)
		}
		if a := c.get(t, fmt.Sprint(i)); running(a) || a.Status != analysislock.Queued || a.Lock.Attempts != 0 || a.Lock.Token != 1 {
			t.Errorf("analysis = %+v", a)
		}
	}
	p.exitsCleanly(t)
	booked := 0
	for _, err := range q.client.ListTasks(t.Context(), &cloudtaskspb.ListTasksRequest{Parent: queueName}).All() {
		if err != nil {
			t.Fatal(err)
		}
		booked++
	}
	if booked != 200 {
		t.Errorf("%d tasks, want 200", booked)
	}
}
