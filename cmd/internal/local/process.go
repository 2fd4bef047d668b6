package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// command starts workers.
type command struct {
	env    []string
	slow   time.Duration           // how long a run takes; 0: no longer than its analyzer
	stderr io.Writer               // of the workers
	log    func(*process, *record) // called for each line of a worker's log
}

// process is a worker. Its standard input is a pipe, which the kernel closes when its parent
// ends. Then the worker ends too.
type process struct {
	number  int
	address string // host:port on which it serves

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and its log is read

	deliveries atomic.Int32 // under way
}

// String names the worker for people.
func (w *process) String() string { return fmt.Sprintf("worker %d", w.number) }

// record is the part of a worker's log line that the parent reads.
type record struct {
	Message    string `json:"msg"`
	Address    string `json:"address"`
	AnalysisID string `json:"analysis_id"`
	Token      int64  `json:"lock_token"`
	Stderr     bool   `json:"stderr"`    // Message was written by an analyzer
	Continues  bool   `json:"continues"` // the run continues from a checkpoint
	Problem    string `json:"problem"`   // of an ignored report, or of a doubtful output
}

// Messages of a worker's log that the parent reads.
const (
	servingMessage = "serving"
	runMessage     = "run begins"
)

// startProcess starts a worker and waits until it serves.
func startProcess(ctx context.Context, number int, c command) (*process, error) {
	w := &process{number: number, done: make(chan struct{})}
	path, pathErr := os.Executable()
	w.cmd = exec.Command(path, "worker", "--slow", c.slow.String())
	w.cmd.Env, w.cmd.Stderr = c.env, c.stderr
	w.cmd.WaitDelay = time.Second // an analyzer may outlive the worker and keep standard error open

	_, err := w.cmd.StdinPipe() // closed by Wait
	out, outErr := w.cmd.StdoutPipe()
	if err = errors.Join(pathErr, err, outErr); err == nil {
		err = w.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", w, err)
	}

	serves := make(chan struct{})
	go w.follow(out, serves, c.log)
	select {
	case <-serves:
		return w, nil
	case <-w.done:
		return nil, fmt.Errorf("%v ended at once: %v", w, w.cmd.ProcessState)
	case <-ctx.Done():
		w.stop(0)
		return nil, context.Cause(ctx)
	}
}

// follow reads the worker's log to its end, then waits for the process.
func (w *process) follow(out io.Reader, serves chan<- struct{}, log func(*process, *record)) {
	defer close(w.done)
	defer func() { _ = w.cmd.Wait() }() // the exit code is not needed
	for lines := json.NewDecoder(out); ; {
		var r record
		if err := lines.Decode(&r); err != nil { // usually the end
			return
		}
		if r.Message == servingMessage && !r.Stderr {
			w.address = r.Address
			close(serves)
		} else {
			log(w, &r)
		}
	}
}

// kill sends SIGKILL and waits until the process has ended.
func (w *process) kill() {
	_ = w.cmd.Process.Kill() // fails if it has ended
	<-w.done
}

// stop asks the worker to end, which releases its locks, and kills it after grace. It
// waits until the process has ended.
func (w *process) stop(grace time.Duration) {
	_ = w.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-w.done:
	case <-time.After(grace):
		w.kill()
	}
}

func (w *process) pid() int { return w.cmd.Process.Pid }
