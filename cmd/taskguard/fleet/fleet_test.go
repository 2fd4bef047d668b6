package fleet

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asWorker makes the test binary a worker of the kind that it names.
const asWorker = "TASKGUARD_TEST_WORKER"

func TestMain(m *testing.M) {
	switch os.Getenv(asWorker) {
	case "":
		goleak.VerifyTestMain(m)
		return
	case "serves":
		fmt.Println(`{"msg":"serving","address":"127.0.0.1:1"}`)
		fmt.Println(`{"msg":"run begins","analysis_id":"x","lock_token":7,"attempt":2}`)
		_, _ = Stderr(slog.New(slog.NewJSONHandler(os.Stdout, nil)), "x").Write([]byte("serving\n"))
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "refuses":
		fmt.Fprintln(os.Stderr, "LOCK_TTL: no good")
		os.Exit(2)
	case "is mute":
		time.Sleep(time.Hour)
	}
	os.Exit(0)
}

func kind(t *testing.T, name string) Command {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Command{Path: self, Env: append(os.Environ(), asWorker+"="+name)}
}

func TestAWorkerTellsItsAddressAndItsRuns(t *testing.T) {
	runs, wrote := make(chan Run, 1), make(chan string, 1)
	f := Fleet{Command: kind(t, "serves"), Observe: func(r Run) { runs <- r }}
	f.Command.Stderr = func(id, text string) { wrote <- id + " " + text }
	defer f.Stop(0)
	w, err := f.Add(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if w.Address != "127.0.0.1:1" || w.Number != 1 || w.PID == 0 {
		t.Errorf("worker %+v", w)
	}
	if r := <-runs; r.Worker.PID != w.PID || r.AnalysisID != "x" || r.Token != 7 || r.Attempt != 2 {
		t.Errorf("run %+v", r)
	}
	if got := <-wrote; got != "x serving" { // and is not taken for the worker's own word
		t.Errorf("an analyzer wrote %q", got)
	}
	if err := w.Kill(); err != nil {
		t.Error(err)
	}
	<-w.Done()
}

func TestAWorkerThatDoesNotStartIsAnErrorWithItsLog(t *testing.T) {
	f := Fleet{Command: kind(t, "refuses"), Observe: func(Run) {}}
	defer f.Stop(0)
	if _, err := f.AddAll(t.Context(), 2); err == nil || strings.Count(err.Error(), "LOCK_TTL: no good") != 2 {
		t.Errorf("got %v, want both workers' LOCK_TTL: no good", err)
	}
	f.Command.Path = "/nowhere"
	if _, err := f.Add(t.Context()); err == nil {
		t.Error("a program that does not exist has started")
	}
}

func TestAWorkerThatDoesNotServeIsEnded(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if w, err := Start(ctx, 1, kind(t, "is mute"), func(Run) {}); err == nil {
		t.Errorf("%v serves", w)
	}
}

func TestTheTailKeepsWholeLastLines(t *testing.T) {
	var l tail
	for i := range 1000 {
		_, _ = fmt.Fprintf(&l, "line %d\n", i)
	}
	lines := strings.Split(l.String(), "\n")
	if len(l.String()) > tailBytes || lines[len(lines)-1] != "line 999" || !strings.HasPrefix(lines[0], "line ") {
		t.Errorf("%d bytes, from %q to %q", len(l.String()), lines[0], lines[len(lines)-1])
	}
}

// servant is a worker without a process: each request waits for an answer, or
// for the end of the test.
type servant struct {
	*Worker
	asked  chan string
	answer chan string
}

// next is what the servant is asked next.
func (s servant) next(t *testing.T) string {
	t.Helper()
	select {
	case body := <-s.asked:
		return body
	case <-time.After(20 * time.Second):
		t.Fatalf("nothing comes to worker %d", s.Number)
	}
	return ""
}

func servants(t *testing.T, n int) (all []servant, workers []*Worker) {
	t.Helper()
	over := make(chan struct{})
	for i := range n {
		s := servant{&Worker{Number: i + 1}, make(chan string, 10), make(chan string, 10)}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			s.asked <- string(body)
			status, answer := http.StatusOK, ""
			select {
			case answer = <-s.answer:
			case <-over:
			}
			if strings.Contains(answer, "locked") {
				status = http.StatusConflict
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, answer)
		}))
		t.Cleanup(server.Close)
		s.Address = server.Listener.Addr().String()
		all, workers = append(all, s), append(workers, s.Worker)
	}
	t.Cleanup(func() { close(over) })
	return all, workers
}

// sender sends deliveries through a Router in the background.
type sender struct {
	t          *testing.T
	router     *Router
	deliveries chan Delivery
}

func newSender(t *testing.T, workers []*Worker) *sender {
	t.Helper()
	s := &sender{t: t, deliveries: make(chan Delivery, 100)}
	s.router = NewRouter(workers, func(d Delivery) { s.deliveries <- d })
	return s
}

func (s *sender) send(ctx context.Context, id string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://anywhere.test/path", strings.NewReader(`{"analysis_id":"`+id+`"}`))
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("X-CloudTasks-TaskName", "task of "+id)
	var sending sync.WaitGroup
	s.t.Cleanup(sending.Wait)
	sending.Go(func() {
		if response, err := s.router.RoundTrip(request); err == nil {
			_ = response.Body.Close()
		}
	})
}

func TestDeliveriesGoAroundAndAreSeen(t *testing.T) {
	all, workers := servants(t, 2)
	s := newSender(t, workers)
	for i, answer := range []string{
		`{"acquired":true,"status":"READY"}`, `{"acquired":false,"reason":"locked"}`,
		`{"acquired":false,"reason":"already_finished","status":"READY"}`, `nonsense`,
	} {
		worker := all[i%2]
		worker.answer <- answer
		s.send(t.Context(), "x")
		if got := worker.next(t); got != `{"analysis_id":"x"}` {
			t.Errorf("worker %d was asked %q", worker.Number, got)
		}
		d := <-s.deliveries
		skip := i == 1 || i == 2
		if d.Worker != worker.Worker || d.AnalysisID != "x" || d.Task != "task of x" || d.FollowedUp() || d.Skip() != skip || d.Acquired != (i == 0) || d.Status == 0 {
			t.Errorf("delivery %d: %+v, skip %v, want skip %v", i, d, d.Skip(), skip)
		}
	}
}

func TestADeadWorkerRefusesUntilItIsReplaced(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := &Worker{Number: 1, Address: l.Addr().String()}
	_ = l.Close()
	s := newSender(t, []*Worker{dead})
	s.send(t.Context(), "x")
	if d := <-s.deliveries; d.Err == nil || d.Status != 0 || d.Skip() {
		t.Errorf("delivery to a dead worker: %+v", d)
	}
	all, workers := servants(t, 1)
	s.router.Replace(dead, workers[0])
	all[0].answer <- "{}"
	s.send(t.Context(), "x")
	if d := <-s.deliveries; d.Worker != workers[0] || d.Status != 200 {
		t.Errorf("delivery after the replacement: %+v", d)
	}
}

func TestAnIsolatedAnalysisHasItsWorkerAlone(t *testing.T) {
	all, workers := servants(t, 2)
	s := newSender(t, workers)
	s.send(t.Context(), "a")
	all[0].next(t)
	s.router.Isolate("x")
	s.send(t.Context(), "x")
	all[1].next(t) // the idle one, though the other may have been next
	for range 3 {
		s.send(t.Context(), "b")
		all[0].next(t) // and nothing for worker 2
	}
	if has, alone := s.router.InFlight(workers[1], "x"); !has || !alone {
		t.Errorf("has, alone = %v, %v", has, alone)
	}
	if _, alone := s.router.InFlight(workers[0], "a"); alone {
		t.Error("worker 1 is said to have a alone")
	}
	s.send(t.Context(), "x") // waits for the run to be under way
	select {
	case <-all[0].asked:
		t.Error("a duplicate was delivered before the run was under way")
	case <-all[1].asked:
		t.Error("a duplicate went to the isolated worker")
	case <-time.After(100 * time.Millisecond):
	}
	s.router.Running()
	all[0].next(t)
	s.router.Release()
	all[1].answer <- "{}"
	<-s.deliveries
	s.send(t.Context(), "c")
	s.send(t.Context(), "c")
	all[1].next(t)
	for range 7 {
		all[0].answer <- "{}"
		all[1].answer <- "{}"
	}
}

func TestADeliveryThatFindsNoWorkerFreeEndsWithItsContext(t *testing.T) {
	all, workers := servants(t, 1)
	s := newSender(t, workers)
	s.send(t.Context(), "a")
	all[0].next(t)
	s.router.Isolate("x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://anywhere.test/", strings.NewReader(`{"analysis_id":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	if response, err := s.router.RoundTrip(request); err == nil {
		_ = response.Body.Close()
		t.Error("it was delivered")
	}
	all[0].answer <- "{}"
}

func TestWhatIsForNoAnalysisTakesItsTurn(t *testing.T) {
	all, workers := servants(t, 1)
	s := newSender(t, workers)
	s.send(t.Context(), "")
	all[0].next(t)
	s.send(t.Context(), "a") // the worker is nobody's alone
	all[0].next(t)
	all[0].answer <- "{}"
	all[0].answer <- "{}"
	for range 2 {
		if d := <-s.deliveries; d.Status != 200 {
			t.Errorf("%+v, want it delivered", d)
		}
	}
}

func TestDeliveriesWaitForTheFirstWorker(t *testing.T) {
	all, workers := servants(t, 1)
	s := newSender(t, nil)
	s.send(t.Context(), "a")
	select {
	case d := <-s.deliveries:
		t.Errorf("%+v, though there is no worker", d)
	case <-time.After(50 * time.Millisecond):
	}
	s.router.Add(workers...)
	all[0].next(t)
	all[0].answer <- "{}"
	if d := <-s.deliveries; d.Status != 200 {
		t.Errorf("%+v, want it delivered", d)
	}
}
