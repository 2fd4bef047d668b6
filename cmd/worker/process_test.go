package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// The test binary is the worker too, so that real processes can be started and killed.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_AS_WORKER") != "" {
		main()
	}
	emulatortest.Isolate()
	os.Exit(m.Run())
}

func listen(t testing.TB, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	must.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// cloud is an embedded Firestore on a port, and a project in it.
type cloud struct {
	*emulatortest.Backend
	host     string
	analyses *repo.Analyses
}

func newCloud(t testing.TB) *cloud {
	t.Helper()
	return newCloudOn(t, emulatortest.Embedded(t))
}

func newCloudOn(t testing.TB, b *emulatortest.Backend) *cloud {
	t.Helper()
	c := &cloud{Backend: b, host: b.Listen(t)}
	var err error
	if c.analyses, err = repo.Open(t.Context(), c.Project, repo.Options{}, c.Client(t)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.analyses.Close() })
	return c
}

func (c *cloud) create(t testing.TB, id string) {
	t.Helper()
	input := map[string]any{"name": "a.txt", "text": "hello world"}
	must.OK(t, c.analyses.Create(t.Context(), id, input, repo.CreateOptions{}))
}

func (c *cloud) get(t testing.TB, id string) analysislock.Analysis {
	t.Helper()
	a, err := c.analyses.Get(t.Context(), id)
	must.OK(t, err)
	return a
}

// until polls an analysis until it is as wanted.
func (c *cloud) until(t testing.TB, id string, what string, ok func(analysislock.Analysis) bool) analysislock.Analysis {
	t.Helper()
	for range 3000 {
		if a := c.get(t, id); ok(a) {
			return a
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s: never %s", id, what)
	return analysislock.Analysis{}
}

func running(a analysislock.Analysis) bool { return a.Lock.Owner != "" }

func ready(a analysislock.Analysis) bool { return a.Status == analysislock.Ready }

// process is a worker of its own.
type process struct {
	cmd    *exec.Cmd
	url    string
	config string // the line that names the address
	done   sync.WaitGroup
	log    emulatortest.Log // after the line that names the address
	stderr emulatortest.Log
}

// command is a worker whose environment is env, on c where env does not say
// otherwise.
func (c *cloud) command(env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append([]string{
		"TEST_AS_WORKER=1", "PATH=" + os.Getenv("PATH"), "PORT=0", "TASK_AUTH=none",
		"GOOGLE_CLOUD_PROJECT=" + c.Project, "FIRESTORE_EMULATOR_HOST=" + c.host,
	}, env...)
	return cmd
}

// start starts a worker and waits until it serves.
func (c *cloud) start(t testing.TB, env ...string) *process {
	t.Helper()
	p := &process{cmd: c.command(env...)}
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); p.done.Wait(); _ = p.cmd.Wait() })
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
			p.url, p.config = "http://127.0.0.1:"+port, line
		}
	}
	p.done.Go(func() { _, _ = io.Copy(&p.log, lines) })
	return p
}

func (p *process) signal(t testing.TB, s os.Signal) {
	t.Helper()
	must.OK(t, p.cmd.Process.Signal(s))
}

// stop sends SIGTERM, and SIGKILL to a worker that does not end. Cloud Run does so after
// 10 s; a slow machine may need more.
func (p *process) stop(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	hung := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
	t.Cleanup(func() { hung.Stop() })
}

// wait is the exit code, once the process has ended; -1 if a signal ended it.
func (p *process) wait(t testing.TB) int {
	t.Helper()
	p.done.Wait()
	err := p.cmd.Wait()
	if p.cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// exitsCleanly waits for the end of the process and checks that it exits with 0.
func (p *process) exitsCleanly(t testing.TB) {
	t.Helper()
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d, want 0; %s", code, p.stderr.String())
	}
}

// deliver delivers a task and waits for its answer.
func (p *process) deliver(ctx context.Context, id string) (int, string, error) {
	task := strings.NewReader(fmt.Sprintf(`{"analysis_id":%q}`, id))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/internal/tasks/analysis", task)
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

// delivered delivers a task in the background, and sends its answer.
func (p *process) delivered(t testing.TB, id string) <-chan string {
	answer := make(chan string, 1)
	ctx := context.WithoutCancel(t.Context())
	go func() { // ends with the process, at the latest
		code, body, err := p.deliver(ctx, id)
		answer <- fmt.Sprint(code, " ", body, err)
	}()
	return answer
}

func TestWorker_HungUpCaller(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.create(t, "y")
	p := c.start(t, "ANALYZER=exec:sleep 1", "ANALYZER_OUTPUT=any")
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _, _ = p.deliver(ctx, "y")
	}()
	c.until(t, "y", "running", running)
	hangUp()
	<-gone
	c.until(t, "y", "finished", ready)
}

// The runtime has the container's limit, unless one is set.
func TestWorker_MemoryLimit(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	contained := int64(math.MaxInt64) // none
	if limit, err := memlimit.FromCgroup(); err == nil {
		contained = int64(float64(limit) * 0.9)
	}
	for env, want := range map[string]int64{"LOG_LEVEL=info": contained, "GOMEMLIMIT=100MiB": 100 << 20} {
		var line struct {
			Limit int64 `json:"memory_limit"`
		}
		err := json.Unmarshal([]byte(c.start(t, env).config), &line)
		if err != nil || line.Limit != want {
			t.Errorf("%s: a limit of %d bytes, want %d (%v)", env, line.Limit, want, err)
		}
	}
}
