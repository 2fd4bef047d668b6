package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apiv2 "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"

	"taskguard/emulator/cloudtasks"
	"taskguard/emulator/oidc"
	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
	"taskguard/lease/analysislock"
	"taskguard/repo"
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
	must.OK(t, err)
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
		"TASK_AUTH=oidc", "TASK_AUDIENCE=https://audience.test", "TASK_SERVICE_ACCOUNTS=" + account,
		"TASK_JWKS_URL=" + q.keys, "TASK_QUEUE=" + queueName, "TASK_TARGET_URL=" + q.target, "TASK_CALLER=" + account,
		"CLOUD_TASKS_EMULATOR_HOST=" + q.host,
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
	must.OK(t, err)
	defer func() { _ = queue.Close() }()
	task := taskqueue.Task{Name: taskqueue.Name(t.Name(), id), AnalysisID: id}
	if _, err := queue.Book(t.Context(), task); err != nil {
		t.Fatal(err)
	}
}

// The worker verifies the queue's token. When the worker stops, it books a delivery of the
// run that it cancels, and that delivery, with a token too, finishes the analysis.
func TestStop_NextWorker(t *testing.T) {
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
	result, _ := a.Result.(map[string]any)
	if got := fmt.Sprint(a.Lock.Token, a.Lock.Attempts, result["words"]); got != "2 1 2" {
		t.Errorf("analysis = %+v, want its second acquisition and first attempt", a)
	}
	second.stop(t)
	second.wait(t)
	if !strings.Contains(first.log.String(), `"outcome":"shutting_down","status":200`) {
		t.Errorf("log: %s", first.log.String())
	}
}

// The charge takes until the worker stops, and a moment longer: its ledger is a pipe. It is charged once, and
// no operator is asked.
func TestStop_Act(t *testing.T) {
	t.Parallel()
	c, q, ledger := newCloud(t), newTasks(t), filepath.Join(t.TempDir(), "ledger")
	must.OK(t, syscall.Mkfifo(ledger, 0o600))
	python := examplestest.Find(t, "PYTHON", "python3")[0]
	analyzer := "ANALYZER=exec:" + python + " ../../docs/examples/python/charge.py"
	input := map[string]any{"ledger": ledger, "cents": 4200}
	must.OK(t, c.analyses.Create(t.Context(), "x", input, repo.CreateOptions{}))
	first := c.start(t, q.env(analyzer)...)
	q.reach(first)
	q.book(t, "x")
	c.until(t, "x", "charging", func(a analysislock.Analysis) bool { return len(a.Acts.Open()) == 1 })

	first.stop(t)
	first.log.Await(t, `"message":"stopping"`)
	reader, err := os.OpenFile(ledger, os.O_RDWR|syscall.O_NONBLOCK, 0) // now the charge can go on
	must.OK(t, err)
	defer func() { _ = reader.Close() }()
	first.exitsCleanly(t)

	second := c.start(t, q.env(analyzer)...)
	q.reach(second)
	a := c.until(t, "x", "finished", func(a analysislock.Analysis) bool { return a.Finished() })
	charges, _ := make([]byte, 1000), reader.SetReadDeadline(time.Now().Add(time.Second))
	n, err := reader.Read(charges)
	if err != nil || strings.Count(string(charges[:n]), " 4200\n") != 1 {
		t.Errorf("%v, charges %q; want one", err, charges[:n])
	}
	result, _ := a.Result.(map[string]any)
	if got := fmt.Sprint(a.Status, " ", a.Lock.Attempts, " ", result["charged"]); got != "READY 1 4200" {
		t.Errorf("analysis = %+v\n%s", a, first.log.String())
	}
	second.stop(t)
	second.exitsCleanly(t)
}

// Its connections break before the worker gets its own signal.
func TestStop_SidecarFirst(t *testing.T) {
	t.Parallel()
	c, q, began := newCloud(t), newTasks(t), make(chan bool, 1)
	sidecar := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		began <- true
		<-r.Context().Done()
	}))
	defer sidecar.Close()
	c.create(t, "x")
	worker := c.start(t, q.env("ANALYZER="+sidecar.URL)...)
	q.reach(worker)
	q.book(t, "x")
	<-began
	sidecar.CloseClientConnections()
	time.Sleep(50 * time.Millisecond)
	worker.stop(t)
	worker.exitsCleanly(t)
	if a := c.get(t, "x"); a.Lock.Attempts != 0 || a.LastError != nil {
		t.Errorf("analysis = %+v, want no attempt that counts\n%s", a, worker.log.String())
	}
}

// The analyzer ignores SIGTERM, so the stop takes 5 s: a second signal does not wait for it.
func TestStop_SecondSignal(t *testing.T) {
	for _, second := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(second.String(), func(t *testing.T) {
			t.Parallel()
			c, script := newCloud(t), filepath.Join(t.TempDir(), "deaf.sh")
			const deaf = `trap '' TERM; echo '{"progress":0.5,"ack":1}' >&3; read -r reply <&4; while :; do sleep 0.1; done`
			must.OK(t, os.WriteFile(script, []byte(deaf), 0o600))
			c.create(t, "x")
			p := c.start(t, "ANALYZER=exec:/bin/sh "+script)
			p.delivered(t, "x")
			c.until(t, "x", "deaf", func(a analysislock.Analysis) bool { return a.Progress != nil })
			p.signal(t, syscall.SIGTERM)
			p.log.Await(t, `"message":"stopping"`)
			go func() { // again, as one is dropped that comes in the very moment of the first
				for p.cmd.Process.Signal(second) == nil {
					time.Sleep(20 * time.Millisecond)
				}
			}()
			p.wait(t)
			if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != second {
				t.Errorf("%v, want that the signal has ended it\n%s", p.cmd.ProcessState, p.log.String())
			}
		})
	}
}

// 200 runs are released and booked, each once, before the exit.
func TestStop_ManyRuns(t *testing.T) {
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
	p := c.start(t, "MAX_RUNS=200", "ANALYZER="+endless.URL, "TASK_QUEUE="+queueName,
		"TASK_TARGET_URL="+q.target, "CLOUD_TASKS_EMULATOR_HOST="+q.host)
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
		a := c.get(t, fmt.Sprint(i))
		if got := fmt.Sprint(a.Lock.Owner, a.Status, " ", a.Lock.Attempts, " ", a.Lock.Token); got != "QUEUED 0 1" {
			t.Errorf("analysis = %+v, want it released, queued, with no attempt that counts", a)
		}
	}
	p.exitsCleanly(t)
	booked := 0
	for _, err := range q.client.ListTasks(t.Context(), &cloudtaskspb.ListTasksRequest{Parent: queueName}).All() {
		must.OK(t, err)
		booked++
	}
	if booked != 200 {
		t.Errorf("%d tasks, want 200", booked)
	}
}
