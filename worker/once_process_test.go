package worker_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/worker"
)

// With this variable set, the test binary serves one delivery, or one order, and kills itself at a commit:
// "HOST PROJECT POINT ANALYZER", or "HOST PROJECT POINT order LEDGER".
const crashVariable = "ONCE_TEST_CRASH"

// serveCrash serves it. The points are numbers of commits, from 1, with "before" or "after".
func serveCrash(setting string) error {
	words := strings.SplitN(setting, " ", 4)
	host, project, point, spec := words[0], words[1], words[2], words[3]
	at := func(now string, number int) {
		if fmt.Sprint(now, "-", number) == point {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	crash := aroundCommits(func(c commit) error {
		at("before", c.number)
		defer at("after", c.number)
		return c.send()
	})
	conn, err := grpc.NewClient(host, grpc.WithTransportCredentials(insecure.NewCredentials()), crash)
	if err != nil {
		return err
	}
	client := []option.ClientOption{option.WithGRPCConn(conn)}
	o := worker.Options{Project: project, Auth: worker.CheckedByProxy(), FirestoreOptions: client}
	g, err := worker.Open(context.Background(), o)
	if err != nil {
		return err
	}
	if ledger, isOrder := strings.CutPrefix(spec, "order "); isOrder {
		shop(g, ledger).ServeHTTP(httptest.NewRecorder(), orderIn(context.Background(), "a", "x"))
		return nil
	}
	analyzer, err := orchestrator.New(spec, orchestrator.Options{})
	if err != nil {
		return err
	}
	task := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/tasks/job",
		strings.NewReader(`{"job_id":"1"}`))
	g.MustRegister(jobs(analyzer.Analyze)).Handler().ServeHTTP(httptest.NewRecorder(), task)
	return nil
}

// A worker is killed at each commit of an analysis that charges once, in Python, as a program and as an endpoint;
// workertest does so in Go.
// The delivery is repeated until the end, and an operator who reads the ledger answers an uncertain act.
// An attempt commits four times: the lock, the marker, the result of the act, and the end.
func TestOnce_Kill9(t *testing.T) {
	python := examplestest.Find(t, "PYTHON", "python3")[0]
	endpoint := exec.CommandContext(t.Context(), python, "../docs/examples/python/endpoint.py", "0")
	specs := map[string]string{
		"program":  "exec:" + python + " ../docs/examples/python/charge.py",
		"endpoint": "http://localhost:" + startProcess(t, endpoint), // it prints its port
	}
	// what the operator answers if nobody else can
	points := map[string]string{
		"before-1": "", "after-1": "", "before-2": "", "after-2": "not done",
		"before-3": "done", "after-3": "", "before-4": "", "after-4": "", "never": "",
	}
	for kind, spec := range specs {
		for point, answer := range points {
			t.Run(kind+"/"+point, func(t *testing.T) {
				t.Parallel()
				killAt(t, spec, point, answer)
			})
		}
	}
}

// killedAt returns a Firestore on which a worker was killed at this point, an hour ago: its lock has expired.
// The document jobs/1 has this record.
func killedAt(t *testing.T, point, spec string, record map[string]any) *emulatortest.Backend {
	t.Helper()
	b, clock := emulatortest.Embedded(t), atomic.Int64{}
	now := func() time.Time { return time.Now().Add(time.Duration(clock.Load())) }
	b.Server = firestore.NewServer(firestore.Options{Now: now})
	set(t, collection(t, b, "jobs").Doc("1"), record)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), crashVariable+"="+strings.Join([]string{b.Listen(t), b.Project, point, spec}, " "))
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != map[bool]int{true: 0, false: -1}[point == "never"] {
		t.Fatalf("%v\n%s", err, out)
	}
	clock.Add(int64(time.Hour))
	return b
}

// ledgerOf returns the number of charges in a ledger, each a line with its key.
func ledgerOf(ledger string) int {
	text, _ := os.ReadFile(ledger) // missing: none
	return len(regexp.MustCompile(`(?m)^[0-9a-f]{32} 4200$`).FindAll(text, -1))
}

// killAt kills a worker at a point of the analysis. answer is what the operator has to answer.
func killAt(t *testing.T, spec, point, answer string) {
	t.Helper()
	ledger := t.TempDir() + "/ledger"
	payload := map[string]any{"ledger": ledger, "cents": 4200}
	b := killedAt(t, point, spec, map[string]any{"state": "PENDING", "payload": payload})
	analyzer, err := orchestrator.New(spec, orchestrator.Options{})
	must.OK(t, err)
	work := open(t, b, nil).MustRegister(jobs(analyzer.Analyze))
	h, operator := work.Handler(), work.Operator()
	answered := ""
	for range 2 {
		post(t, h, "/tasks/job", `{"job_id":"1"}`)
		d, err := operator.Get(t.Context(), "1")
		must.OK(t, err)
		if d.Error == nil || d.Error.Code != analysislock.ActUncertain {
			continue
		}
		reply := analysislock.Answer{Done: ledgerOf(ledger) > 0}
		if answered += "not done"; reply.Done {
			answered, reply.Result = "done", []byte(`{"charged":4200}`)
		}
		if _, err := operator.Resolve(t.Context(), "1", "", nil, "charge", reply, ""); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]any{"state": "DONE", "output": map[string]any{"charged": int64(4200)}}
	checkRecord(t, collection(t, b, "jobs").Doc("1"), want)
	if n := ledgerOf(ledger); n != 1 || answered != answer {
		t.Errorf("%d charges, the operator answered %q; want one, and %q", n, answered, answer)
	}
}

// shop is a handler behind Idempotent that charges in an act, and finds its charge in the ledger.
func shop(g *worker.Guard, ledger string) http.Handler {
	return idempotent(g, func(w http.ResponseWriter, r *http.Request) {
		job, _ := worker.JobFromContext(r.Context())
		line := job.Key("charge") + " 4200\n"
		act := func(context.Context) (string, error) {
			file, err := os.OpenFile(ledger, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return "", err
			}
			_, err = file.WriteString(line)
			return "ch_7", errors.Join(err, file.Close())
		}
		find := func(context.Context) (string, bool, error) {
			text, _ := os.ReadFile(ledger) // missing: none
			return "ch_7", strings.Contains(string(text), line), nil
		}
		charge, err := worker.Once(r.Context(), job, "charge", act, worker.Find(find))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, charge)
	})
}

// A process is killed at each commit of a request: it creates the record, acquires it, marks the act, and stores its
// result and the response. Then 64 clients repeat the request at once, at three other processes.
func TestIdempotent_Kill9(t *testing.T) {
	for _, point := range []string{
		"before-1", "after-1", "before-2", "after-2", "before-3", "after-3",
		"before-4", "after-4", "before-5", "after-5", "never",
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			ledger := t.TempDir() + "/ledger"
			b := killedAt(t, point, "order "+ledger, pending)
			var processes []http.Handler
			for range 3 {
				processes = append(processes, shop(open(t, b, nil), ledger))
			}
			answers := make(chan string)
			for client := range 64 {
				wait := 100 * time.Millisecond // less than Retry-After
				go func() { answers <- repeated(t, processes[client%3], wait) }()
			}
			got := map[string]int{}
			for range 64 {
				got[<-answers]++
			}
			want := map[string]int{"201 ch_7": 1, "201 replayed ch_7": 63}
			if point == "after-5" || point == "never" {
				want = map[string]int{"201 replayed ch_7": 64}
			}
			if n := ledgerOf(ledger); n != 1 || !maps.Equal(got, want) {
				t.Errorf("%d charges, answers %v; want one, %v", n, got, want)
			}
		})
	}
}

// repeated sends an order until it is answered, with that wait, and returns the answer.
func repeated(t *testing.T, h http.Handler, wait time.Duration) string {
	t.Helper()
	for t.Context().Err() == nil {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, order(t, "a", "x"))
		got := summary(t, w)
		if got != "409 in-progress" && got != "503 not-processed" { // on a slow machine Firestore may be late
			return got
		}
		time.Sleep(wait)
	}
	return "none"
}

// startProcess starts a program until the end of the test, and returns the first line that it prints.
func startProcess(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	must.OK(t, err)
	return strings.TrimSpace(line)
}
