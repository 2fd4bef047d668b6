package chaos

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"taskguard/cmd/internal/workerservice"
	"taskguard/internal/testing/emulatortest"
)

// role makes the test binary another program: the worker, as cmd/worker is, or the analyzer that a
// worker runs.
const role = "CHAOS_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(emulatortest.Main(m))
	case "worker":
		go endWithParent()
		code, err := workerservice.Main(context.Background(), os.LookupEnv, os.Stdout)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	case "analyzer":
		code, err := analyze(os.Args[1], os.Args[2])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}
}

// endWithParent ends the process when the test has ended: then its standard input is
// closed.
func endWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(3)
}

// slot runs one worker after another.
type slot struct {
	mu      sync.Mutex
	program string // of the next worker: a file name; empty: this version
	process *process
}

// worker returns the slot's last worker.
func (s *slot) worker() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// startIn starts a worker in a slot.
func (c *chaos) startIn(s *slot) error {
	s.mu.Lock()
	program := s.program
	s.mu.Unlock()
	p, err := c.startWorker(program)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.process = p
	}
	return err
}

// keepRunning starts a worker in a slot each time that the last has ended, until ctx ends.
func (c *chaos) keepRunning(ctx context.Context, s *slot) {
	for ctx.Err() == nil {
		p := s.worker()
		select {
		case <-p.done:
		case <-ctx.Done():
			c.check(p.terminate())
		}
		if code := p.cmd.ProcessState.ExitCode(); code > 0 {
			c.check(fmt.Errorf("worker %d: exit %d: %s", p.number, code, p.stderr.String()))
		}
		if ctx.Err() == nil {
			err := c.startIn(s)
			if c.check(err); err != nil {
				pause(ctx, time.Second)
			}
		}
	}
}

// process is a worker. It leads a process group of its own: the kernel wakes a stopped process
// whose group is orphaned, as when the shell that began the tests ends.
type process struct {
	number  int
	cmd     *exec.Cmd
	serving serving
	watcher *exec.Cmd     // ends a worker of another version with the test; nil: it ends itself
	done    chan struct{} // closed when it has ended
	stderr  bytes.Buffer  // to read after done
}

// serving is the worker's log line of that name.
type serving struct{ Message, Address, Commit string }

// startWorker starts the next worker, with an address of its own at each proxy, and waits until it
// serves. program is as in slot.
func (c *chaos) startWorker(program string) (*process, error) {
	p := &process{cmd: exec.Command(cmp.Or(program, os.Args[0])), done: make(chan struct{})}
	c.locked(func() {
		c.started++
		p.number = c.started
	})
	firestore, err := c.proxy.listen(p.number)
	tasks, noTasks := c.queue.proxy.listen(p.number)
	p.cmd.Env = []string{
		role + "=worker", "PATH=" + os.Getenv("PATH"), "PORT=0", "TASK_AUTH=none",
		"GOOGLE_CLOUD_PROJECT=" + c.docs.Project, "FIRESTORE_EMULATOR_HOST=" + firestore,
		"TASK_QUEUE=" + c.queue.name, "TASK_TARGET_URL=http://worker.test", "CLOUD_TASKS_EMULATOR_HOST=" + tasks,
		fmt.Sprintf("ANALYZER=exec:env %s=analyzer %s %s/%d %s", role, os.Args[0], c.analyzer.URL, p.number, c.journal),
		"LOCK_TTL=" + c.ttl.String(), "LOCK_HEARTBEAT=" + (c.ttl * 2 / 5).String(),
		"MAX_ATTEMPTS=100000", "MAX_RUNS=40", "RUN_TIMEOUT=" + c.runTimeout.String(), "CHECKPOINT_INTERVAL=1s",
		"RETRY_MIN=4s", "RETRY_MAX=" + c.retryMax.String(),
	}
	p.cmd.Env = append(p.cmd.Env, c.environment...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = time.Second
	out, noOut := p.cmd.StdoutPipe()
	_, noIn := p.cmd.StdinPipe() // closed with this process
	if err = errors.Join(err, noTasks, noOut, noIn); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if program != "" {
		err = p.endWithTest()
	}

	lines := make(chan serving, 1)
	go p.follow(out, lines)
	if err != nil {
		p.kill()
		return nil, err
	}
	select {
	case p.serving = <-lines:
		c.locked(func() { c.commits[p.number] = p.serving.Commit })
		return p, nil
	case <-p.done:
		err = fmt.Errorf("a worker ended at once: %s", p.stderr.String())
	case <-time.After(waitLimit):
		err = errors.New("a worker does not serve")
	}
	p.kill()
	return nil, err
}

// endWithTest makes another process kill p when the test has ended, even if the test was killed.
func (p *process) endWithTest() error {
	p.watcher = exec.Command("sh", "-c", "cat; kill -9 $0", strconv.Itoa(p.cmd.Process.Pid))
	p.watcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	_, err := p.watcher.StdinPipe() // closed with the test
	return errors.Join(err, p.watcher.Start())
}

// follow reads the process's output to its end, then waits for the process.
func (p *process) follow(out io.Reader, lines chan<- serving) {
	defer close(p.done)
	for output := bufio.NewReader(out); ; {
		line, err := output.ReadBytes('\n')
		var entry serving
		if json.Unmarshal(line, &entry) == nil && entry.Message == "serving" {
			_, port, _ := net.SplitHostPort(entry.Address)
			entry.Address = net.JoinHostPort("127.0.0.1", port)
			lines <- entry
		}
		if err != nil {
			break
		}
	}
	if w := p.watcher; w != nil && w.Process != nil { // before Wait: until then no other process has p's number
		_ = syscall.Kill(-w.Process.Pid, syscall.SIGKILL)
		_ = w.Wait()
	}
	_ = p.cmd.Wait() // the state shows how it ended
}

// signal signals the process, unless it has ended.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill kills the process if it is still there.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// terminate sends SIGTERM, and returns an error if the process has not ended 30 s later.
func (p *process) terminate() error {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-time.After(30 * time.Second):
		p.kill()
		return fmt.Errorf("worker %d does not end after SIGTERM", p.number)
	}
}

// waitLimit is how long a test waits for an event that is due at once or after one TTL.
const waitLimit = time.Minute
