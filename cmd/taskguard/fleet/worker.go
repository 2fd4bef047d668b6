package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Command is how a worker is started.
type Command struct {
	Path   string
	Args   []string
	Env    []string                      // all of it; see os/exec
	Stderr func(analysisID, text string) // is called with what analyzers write there, unless nil
}

// Run is the start of one run of an analysis, as a worker reports it.
type Run struct {
	Worker     *Worker
	AnalysisID string
	Token      int64
	Attempt    int
}

// Worker is one process. Its methods may be called concurrently.
type Worker struct {
	Number  int
	PID     int
	Address string // host:port on which it serves

	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{} // closed when the process is gone and its output is read
	tail  tail
}

// record is a line of a worker's log, as far as it matters here.
type record struct {
	Message    string `json:"msg"`
	Address    string `json:"address"`
	AnalysisID string `json:"analysis_id"`
	Token      int64  `json:"lock_token"`
	Attempt    int    `json:"attempt"`
	Stderr     bool   `json:"stderr"` // Message is what an analyzer wrote there
}

// Messages of a worker's log that its parent acts on.
const (
	serving = "serving"
	running = "run begins"
)

// Announce is how a worker reports the beginning of a run: to the JSON log on
// its standard output.
func Announce(ctx context.Context, log *slog.Logger, r Run) {
	log.InfoContext(ctx, running, "analysis_id", r.AnalysisID, "lock_token", r.Token, "attempt", r.Attempt)
}

// Stderr reports what an analyzer writes to standard error, which may hold the input.
func Stderr(log *slog.Logger, analysisID string) io.Writer {
	return slog.NewLogLogger(log.With("stderr", true, "analysis_id", analysisID).Handler(), slog.LevelInfo).Writer()
}

// startTimeout bounds how long a worker may take until it serves.
const startTimeout = 20 * time.Second

// Start starts a worker and waits until it serves. observe is called, from one
// goroutine, with each run that it begins, until the process has ended.
func Start(ctx context.Context, number int, c Command, observe func(Run)) (*Worker, error) {
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = c.Env
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("fleet: worker %d: %w", number, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("fleet: worker %d: %w", number, err)
	}
	w := &Worker{Number: number, cmd: cmd, stdin: stdin, done: make(chan struct{})}
	cmd.Stderr = &w.tail
	cmd.WaitDelay = time.Second // an analyzer that it left behind may hold its standard error
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("fleet: worker %d: %w", number, err)
	}
	w.PID = cmd.Process.Pid
	address := make(chan string, 1)
	go w.follow(out, address, observe, c.Stderr)
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("it does not serve"))
	defer cancel()
	select {
	case w.Address = <-address:
		return w, nil
	case <-w.done:
		err = fmt.Errorf("fleet: worker %d ended at once: %s", number, w.Log())
	case <-ctx.Done():
		err = fmt.Errorf("fleet: worker %d: %w", number, context.Cause(ctx))
	}
	w.Stop(0)
	return nil, err
}

// follow reads the process's log to its end, then waits for the process.
func (w *Worker) follow(out io.Reader, address chan<- string, observe func(Run), stderr func(id, text string)) {
	defer close(w.done)
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		var r record
		_ = json.Unmarshal(line, &r) // what is no record is kept as it is
		switch {
		case r.Stderr:
			if stderr != nil {
				stderr(r.AnalysisID, r.Message)
			}
		case r.Message == serving:
			address <- r.Address // the one such line; the channel has room for it
		case r.Message == running:
			observe(Run{Worker: w, AnalysisID: r.AnalysisID, Token: r.Token, Attempt: r.Attempt})
		default:
			_, _ = w.tail.Write(line)
		}
		if err != nil {
			break
		}
	}
	_ = w.cmd.Wait() // how it ended is for those who ended it
}

// Kill sends SIGKILL and waits until the process is gone.
func (w *Worker) Kill() error {
	err := w.cmd.Process.Kill()
	<-w.done
	return err
}

// Stop asks the process to end, which releases its locks, and kills it after
// grace. It waits until it is gone.
func (w *Worker) Stop(grace time.Duration) {
	_ = w.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-w.done:
	case <-time.After(grace):
		_ = w.Kill()
	}
	_ = w.stdin.Close()
}

// Done is closed when the process is gone.
func (w *Worker) Done() <-chan struct{} { return w.done }

// Log is the end of what the process has written.
func (w *Worker) Log() string { return w.tail.String() }

// String names the worker for people.
func (w *Worker) String() string { return fmt.Sprintf("worker %d", w.Number) }

// tail is a Writer that keeps the last few lines.
type tail struct {
	mu   sync.Mutex
	text string
}

const tailBytes = 4 << 10

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text += string(p)
	if extra := len(t.text) - tailBytes; extra > 0 {
		_, t.text, _ = strings.Cut(t.text[extra:], "\n")
	}
	return len(p), nil
}

// String is what is kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(t.text)
}
