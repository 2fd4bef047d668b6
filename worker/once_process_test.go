package worker_test

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
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
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/worker"
)

// With this variable set, the test binary serves one delivery, and kills itself at a commit:
// "HOST PROJECT POINT ANALYZER".
const crashVariable = "ONCE_TEST_CRASH"

// serveCrash serves the delivery. The points are numbers of commits, from 1, with "before" or "after".
func serveCrash(setting string) error {
	words := strings.SplitN(setting, " ", 4)
	host, project, point, spec := words[0], words[1], words[2], words[3]
	commits := 0
	at := func(now string) {
		if now == point {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	conn, err := grpc.NewClient(host, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, m string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if !strings.HasSuffix(m, "/Commit") {
				return invoke(ctx, m, req, reply, cc, opts...)
			}
			commits++ // one after another
			n := strconv.Itoa(commits)
			at("before-" + n)
			defer at("after-" + n)
			return invoke(ctx, m, req, reply, cc, opts...)
		}))
	if err != nil {
		return err
	}
	analyzer, err := orchestrator.New(spec, orchestrator.Options{})
	if err != nil {
		return err
	}
	g, err := worker.Open(context.Background(), worker.Options{
		Project: project, Auth: worker.CheckedByProxy(), FirestoreOptions: []option.ClientOption{option.WithGRPCConn(conn)},
	})
	if err != nil {
		return err
	}
	request := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/tasks/job", strings.NewReader(`{"job_id":"1"}`))
	g.MustRegister(jobs(analyzer.Analyze)).Handler().ServeHTTP(httptest.NewRecorder(), request)
	return nil
}

// A worker is killed at each commit of an analysis that charges once, in Python, as a program and as an endpoint;
// workertest does so in Go.
// The delivery is repeated until the end, and an operator who reads the ledger answers an uncertain act.
// An attempt commits four times: the lock, the marker, the result of the act, and the end.
func TestKill9AtEachCommitOfAnAct(t *testing.T) {
	python := examplestest.Find(t, "PYTHON", "python3")[0]
	specs := map[string]string{
		"program":  "exec:" + python + " ../docs/examples/python/charge.py",
		"endpoint": serveExample(t, python, "../docs/examples/python/endpoint.py"),
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

// serveExample starts an endpoint in Python, and returns its address.
func serveExample(t *testing.T, python, file string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, file, "0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	port, _ := bufio.NewReader(out).ReadString('\n')
	return "http://localhost:" + strings.TrimSpace(port)
}

// killAt kills a worker at a point of the analysis. answer is what the operator has to answer.
func killAt(t *testing.T, spec, point, answer string) {
	t.Helper()
	b, ledger := emulatortest.Embedded(t), t.TempDir()+"/ledger"
	var clock atomic.Int64
	b.Server = firestore.NewServer(firestore.Options{Now: func() time.Time { return time.Now().Add(time.Duration(clock.Load())) }})
	doc := collection(t, b, "jobs").Doc("1")
	payload := map[string]any{"ledger": ledger, "cents": 4200}
	if _, err := doc.Set(t.Context(), map[string]any{"state": "PENDING", "payload": payload}); err != nil {
		t.Fatal(err)
	}

	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), crashVariable+"="+strings.Join([]string{b.Listen(t), b.Project, point, spec}, " "))
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 0 && point == "never" || code != -1 && point != "never" {
		t.Fatalf("%v\n%s", err, out)
	}

	clock.Add(int64(time.Hour)) // the lock has expired
	analyzer, err := orchestrator.New(spec, orchestrator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	work := open(t, b, nil).MustRegister(jobs(analyzer.Analyze))
	h, operator := work.Handler(), work.Operator()
	charges := func() int {
		text, _ := os.ReadFile(ledger)                                              // missing: none
		return len(regexp.MustCompile(`(?m)^[0-9a-f]{32} 4200$`).FindAll(text, -1)) // each with its key
	}
	answered := ""
	for range 2 {
		post(t, h, "/tasks/job", `{"job_id":"1"}`)
		d, err := operator.Get(t.Context(), "1")
		if err != nil {
			t.Fatal(err)
		}
		if d.Status != analysislock.Failed || d.Error.Code != analysislock.ActUncertain {
			continue
		}
		reply := analysislock.Answer{Done: charges() > 0}
		if answered += "not done"; reply.Done {
			answered, reply.Result = "done", []byte(`{"charged":4200}`)
		}
		if _, err := operator.Resolve(t.Context(), "1", "", nil, "charge", reply, ""); err != nil {
			t.Fatal(err)
		}
	}

	got := fields(t, doc)
	result, _ := got["output"].(map[string]any)
	if got["state"] != "DONE" || result["charged"] != int64(4200) || charges() != 1 || answered != answer {
		t.Errorf("%v, result %v, %d charges, the operator answered %q; want DONE, one charge, and %q\n%s",
			got["state"], got["output"], charges(), answered, answer, out)
	}
}
