package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"taskguard/cmd/internal/cli"
)

// command starts workers. Its functions are called with parts of their logs.
type command struct {
	path    string
	env     []string
	runs    func(run)                        // for each run that a worker begins
	stderr  func(analysisID, text string)    // for each write of an analyzer to standard error
	ignored func(analysisID, problem string) // for each problem of a report or an output; nil: it stays in the log
}

// run is the start of one run of an analysis.
type run struct {
	worker *process
	record
}

// process is a worker. Its standard input is a pipe, which the kernel closes when its parent
// ends. Then the worker ends too.
type process struct {
	number  int
	address string // host:port on which it serves

	cmd    *exec.Cmd
	done   chan struct{} // closed when the process has ended and its output is read
	log    tail          // for errors; complete when done is closed
	stderr tail          // for errors; complete when done is closed

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

// startTimeout limits how long a worker may take until it serves.
const startTimeout = 20 * time.Second

// startProcess starts a worker and waits until it serves.
func startProcess(ctx context.Context, number int, c command) (*process, error) {
	w := &process{number: number, done: make(chan struct{})}
	w.cmd = exec.Command(c.path, "worker", "--until-stdin-closes")
	w.cmd.Env, w.cmd.Stderr = c.env, &w.stderr
	w.cmd.WaitDelay = time.Second // an analyzer may outlive the worker and keep standard error open

	_, err := w.cmd.StdinPipe() // closed by Wait
	out, outErr := w.cmd.StdoutPipe()
	if err = errors.Join(err, outErr); err == nil {
		err = w.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", w, err)
	}

	address := make(chan string, 1)
	go w.follow(out, address, c)
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("it does not serve"))
	defer cancel()
	select {
	case w.address = <-address:
		return w, nil
	case <-w.done:
		err = fmt.Errorf("%v ended at once: %s", w, strings.TrimSpace(string(w.stderr+w.log)))
	case <-ctx.Done():
		err = fmt.Errorf("%v: %w", w, context.Cause(ctx))
	}
	w.stop(0)
	return nil, err
}

// follow reads the worker's log to its end, then waits for the process.
func (w *process) follow(out io.Reader, address chan<- string, c command) {
	defer close(w.done)
	for reader := bufio.NewReader(out); ; {
		line, err := reader.ReadBytes('\n')
		w.handle(line, address, c)
		if err != nil {
			_ = w.cmd.Wait() // the exit code is not needed
			return
		}
	}
}

// handle handles a line of the worker's log.
func (w *process) handle(line []byte, address chan<- string, c command) {
	var r record
	_ = json.Unmarshal(line, &r) // a line that is not JSON is only kept in the log
	switch {
	case r.Stderr:
		c.stderr(r.AnalysisID, r.Message)
	case r.Problem != "" && c.ignored != nil:
		c.ignored(r.AnalysisID, r.Message+": "+r.Problem)
	case r.Message == servingMessage:
		address <- r.Address // never blocks: there is one such line, and the channel is buffered
	case r.Message == runMessage:
		c.runs(run{w, r})
	default:
		_, _ = w.log.Write(line)
	}
}

// kill sends SIGKILL and waits until the process has ended.
func (w *process) kill() error {
	err := w.cmd.Process.Kill()
	<-w.done
	return err
}

// stop asks the worker to end, which releases its locks, and kills it after grace. It
// waits until the process has ended.
func (w *process) stop(grace time.Duration) {
	_ = w.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-w.done:
	case <-time.After(grace):
		_ = w.kill()
	}
}

func (w *process) pid() int { return w.cmd.Process.Pid }

// startProcesses starts n workers, numbered from 1, and prints their addresses. With an error
// it also returns the workers that have started.
func startProcesses(ctx context.Context, n int, c command, show *cli.Progress) (workers []*process, err error) {
	for number := 1; number <= n; number++ {
		w, err := startProcess(ctx, number, c)
		if err != nil {
			return workers, err
		}
		show.Print("%v serves on %s, process %d", w, w.address, w.pid())
		workers = append(workers, w)
	}
	return workers, nil
}

// tail keeps the last lines that are written to it.
type tail string

const tailBytes = 4 << 10

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	*t += tail(p)
	if extra := len(*t) - tailBytes; extra > 0 {
		_, kept, _ := strings.Cut(string((*t)[extra:]), "\n")
		*t = tail(kept)
	}
	return len(p), nil
}
