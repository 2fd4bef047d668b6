package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"taskguard/emulator/firestore"
	"taskguard/repo"
)

// The test binary is the worker too, so that real processes can be started,
// paused and killed.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_AS_WORKER") != "" {
		main()
	}
	os.Exit(m.Run())
}

// cloud is an embedded Firestore on a port, and a project in it.
type cloud struct {
	server   *firestore.Server
	host     string
	analyses *repo.Analyses
}

func newCloud(t testing.TB) *cloud {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{server: firestore.NewServer(firestore.Options{}), host: l.Addr().String()}
	served := make(chan error, 1)
	go func() { served <- c.server.Serve(l) }()
	t.Cleanup(func() {
		c.server.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Setenv("FIRESTORE_EMULATOR_HOST", c.host)
	if c.analyses, err = repo.Open(t.Context(), "test-project", repo.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.analyses.Close() })
	return c
}

// process is a worker of its own.
type process struct {
	cmd    *exec.Cmd
	url    string
	log    bytes.Buffer // after the line that names the address
	done   sync.WaitGroup
	stderr bytes.Buffer
}

func (c *cloud) command(env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append([]string{
		"TEST_AS_WORKER=1", "PATH=" + os.Getenv("PATH"), "PORT=0", "TASK_AUTH=none",
		"GOOGLE_CLOUD_PROJECT=test-project", "FIRESTORE_EMULATOR_HOST=" + c.host,
	}, env...)
	return cmd
}

func (c *cloud) start(t testing.TB, env ...string) *process {
	t.Helper()
	p := &process{cmd: c.command(env...)}
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
	lines := bufio.NewReader(out)
	for p.url == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("the worker did not start: %v %s", err, p.stderr.String())
		}
		var entry struct{ Message, Address string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("a log line is not JSON: %q", line)
		}
		if entry.Message == "serving" {
			_, port, _ := net.SplitHostPort(entry.Address)
			p.url = "http://127.0.0.1:" + port
		}
	}
	p.done.Go(func() { _, _ = io.Copy(&p.log, lines) })
	return p
}

// wait is the exit code, once the process has ended.
func (p *process) wait(t testing.TB) int {
	t.Helper()
	p.done.Wait()
	err := p.cmd.Wait()
	if p.cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) deliver(ctx context.Context, id string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/internal/tasks/analysis", strings.NewReader(fmt.Sprintf(`{"analysis_id":%q}`, id)))
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

func (c *cloud) create(t testing.TB, id string) {
	t.Helper()
	if err := c.analyses.Create(t.Context(), id, map[string]any{"name": "a.txt", "text": "hello world"}); err != nil {
		t.Fatal(err)
	}
}

// until polls an analysis until it is as wanted.
func (c *cloud) until(t testing.TB, id string, what string, ok func(repo.Analysis) bool) repo.Analysis {
	t.Helper()
	for range 3000 {
		a, err := c.analyses.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if ok(a) {
			return a
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s: never %s", id, what)
	return repo.Analysis{}
}

func running(a repo.Analysis) bool { return a.Lock.Owner != "" }

func TestAWorkerRunsADelivery(t *testing.T) {
	c := newCloud(t)
	c.create(t, "x")
	p := c.start(t)
	code, body, err := p.deliver(t.Context(), "x")
	if err != nil || code != 200 || !strings.Contains(body, `"status":"READY"`) {
		t.Fatalf("%d %s %v", code, body, err)
	}
	a, err := c.analyses.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if result, _ := a.Result.(map[string]any); result["words"] != int64(2) {
		t.Errorf("result = %v", a.Result)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d, want 0", code)
	}
}

func TestSIGTERMCancelsTheRunReleasesAndAnswers(t *testing.T) {
	c := newCloud(t)
	c.create(t, "x")
	p := c.start(t, "ANALYZER=exec:sleep 30")
	answered := make(chan string, 1)
	go func() {
		code, body, err := p.deliver(t.Context(), "x")
		answered <- fmt.Sprint(code, body, err)
	}()
	c.until(t, "x", "running", running)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := <-answered; !strings.Contains(got, "500") || !strings.Contains(got, "shutting_down") {
		t.Errorf("answer: %s", got)
	}
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d, want 0; %s", code, p.stderr.String())
	}
	a := c.until(t, "x", "released", func(a repo.Analysis) bool { return !running(a) })
	if a.Status != repo.Queued || a.Lock.Attempts != 0 || a.Lock.Token != 1 {
		t.Errorf("analysis = %+v", a)
	}
}

// A worker stopped past its TTL and woken, another having finished, writes
// nothing and ends its program.
func TestAWorkerThatWasPausedWritesNothing(t *testing.T) {
	c := newCloud(t)
	c.create(t, "x")
	lock := []string{"LOCK_TTL=2s", "LOCK_HEARTBEAT=500ms"}
	paused := c.start(t, append(lock, "ANALYZER=exec:sleep 30")...)
	answered := make(chan string, 1)
	go func() {
		code, body, err := paused.deliver(t.Context(), "x")
		answered <- fmt.Sprint(code, body, err)
	}()
	c.until(t, "x", "running", running)
	if err := paused.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	other := c.start(t, lock...)
	code := 0
	for code != 200 {
		var err error
		if code, _, err = other.deliver(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	before, err := c.analyses.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := paused.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := <-answered; !strings.Contains(got, "409") || !strings.Contains(got, "lock_lost") {
		t.Errorf("answer: %s", got)
	}
	after, err := c.analyses.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if before.Status != repo.Ready || after.Lock != before.Lock || !after.UpdatedAt.Equal(before.UpdatedAt) {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

// kill -9 in a run: another worker takes the lock when its TTL has passed, and
// no sooner.
func TestAKilledWorkersAnalysisIsTakenOver(t *testing.T) {
	c := newCloud(t)
	c.create(t, "x")
	lock := []string{"LOCK_TTL=2s", "LOCK_HEARTBEAT=500ms"}
	killed := c.start(t, append(lock, "ANALYZER=exec:sleep 30")...)
	go func() { _, _, _ = killed.deliver(context.WithoutCancel(t.Context()), "x") }()
	held := c.until(t, "x", "running", running)
	if err := killed.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed.wait(t)
	other := c.start(t, lock...)
	if code, body, err := other.deliver(t.Context(), "x"); err != nil || code != 409 && code != 200 {
		t.Fatalf("%d %s %v", code, body, err)
	}
	for code := 0; code != 200; time.Sleep(50 * time.Millisecond) {
		var err error
		if code, _, err = other.deliver(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
	}
	a := c.until(t, "x", "finished", func(a repo.Analysis) bool { return a.Status == repo.Ready })
	if a.Lock.Token != held.Lock.Token+1 {
		t.Errorf("token %d after %d", a.Lock.Token, held.Lock.Token)
	}
}

// A caller that hangs up does not end the run.
func TestACallerThatHangsUpDoesNotEndTheRun(t *testing.T) {
	c := newCloud(t)
	c.create(t, "y")
	p := c.start(t, "ANALYZER=exec:sleep 1")
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _, _ = p.deliver(ctx, "y")
	}()
	c.until(t, "y", "running", running)
	hangUp()
	<-gone
	c.until(t, "y", "finished", func(a repo.Analysis) bool { return a.Status == repo.Ready })
}

func TestAConfigurationErrorExits2(t *testing.T) {
	c := newCloud(t)
	for name, env := range map[string][]string{
		"TASK_AUTH":            {"TASK_AUTH="},
		"GOOGLE_CLOUD_PROJECT": {"GOOGLE_CLOUD_PROJECT="},
		"LOCK_TTL":             {"LOCK_TTL=soon"},
	} {
		cmd := c.command(env...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != 2 {
			t.Errorf("%v: exit %d, want 2", env, code)
		}
		if !strings.HasPrefix(stderr.String(), name+": ") || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%v: stderr %q, want one line naming %s", env, stderr.String(), name)
		}
	}
}

// 200 clients that trickle their headers or send half a body hold nobody up.
func TestSlowClientsDoNotDelayADelivery(t *testing.T) {
	c := newCloud(t)
	c.create(t, "x")
	p := c.start(t)
	address := strings.TrimPrefix(p.url, "http://")
	for i := range 200 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		half := "POST /internal/tasks/analysis HTTP/1.1\r\nHost: x\r\n"
		if i%2 == 0 {
			half += "Content-Length: 1000\r\n\r\n{"
		}
		if _, err := conn.Write([]byte(half)); err != nil {
			t.Fatal(err)
		}
	}
	if code, body, err := p.deliver(t.Context(), "x"); err != nil || code != 200 {
		t.Errorf("%d %s %v", code, body, err)
	}
}
