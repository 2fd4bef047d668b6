//go:build linux || darwin

package orchestrator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"taskguard/internal/clock"
	"taskguard/internal/text"
)

// exitRejected is the exit status of a program that rejects its job permanently,
// EX_DATAERR of sysexits.h.
const exitRejected = 65

// defaultGrace is the time from SIGTERM to SIGKILL. The cause of ctx's end may shorten it.
const defaultGrace = 5 * time.Second

// program is the analyzer of exec:.
type program struct {
	path     string   // absolute
	args     []string // the first is the name as configured
	grace    time.Duration
	patience time.Duration // see defaultPatience
	wantJSON bool
	env      []string // the variables that the program gets, as in Options.Env
}

// defaultEnv lists the variables that every program gets: for files, libraries, language,
// time zone, certificates, proxies, project and emulators. Without the variables of the
// emulators a program would use the real project. None of them is a secret of the worker,
// as OTEL_EXPORTER_OTLP_HEADERS is.
var defaultEnv = []string{
	"PATH", "LD_LIBRARY_PATH", "HOME", "USER", "TMPDIR", "LANG", "LC_*", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"GOOGLE_CLOUD_PROJECT", "FIRESTORE_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST",
}

func newProgram(line string, o Options) (Analyzer, error) {
	args := strings.Fields(line)
	if len(args) == 0 {
		return nil, errors.New("orchestrator: exec: names no program")
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return nil, fmt.Errorf("orchestrator: %w", err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("orchestrator: exec: %w", err)
	}
	env := slices.Concat(defaultEnv, o.Env)
	return &program{
		path: path, args: args, grace: defaultGrace, patience: defaultPatience, wantJSON: !o.AnyOutput, env: env,
	}, nil
}

// Analyze implements [Analyzer].
func (p *program) Analyze(ctx context.Context, job Job) (Result, error) {
	if err := contextError(ctx); err != nil {
		return nil, err
	}
	input, err := job.encode(nil)
	if err != nil {
		return nil, err
	}
	c, err := p.start(ctx, job, input)
	if err != nil {
		return nil, &FailureError{Reason: p.name() + " did not start: " + err.Error(), Err: err}
	}
	defer c.close()

	select {
	case <-c.exited:
	case <-c.full:
	case <-ctx.Done():
	}
	lasting, release := Outlast(ctx, job)
	defer release()
	c.awaitActs(ctx, lasting)
	if c.group.leaderExited() {
		c.collect()
		c.group.end(lasting, p.grace)
		return p.outcome(ctx, c, job)
	}

	c.group.end(lasting, p.grace)
	c.collect() // the reports may include a last checkpoint
	if err := contextError(ctx); err != nil {
		return nil, err
	}
	return p.outcome(ctx, c, job)
}

// Withheld returns the names of the variables of an environment that the program does not get.
func (p *program) Withheld(environment []string) (names []string) {
	for _, v := range environment {
		if name, _, _ := strings.Cut(v, "="); p.withholds(v) {
			names = append(names, name)
		}
	}
	return names
}

func (p *program) name() string { return filepath.Base(p.args[0]) }

// outcome returns the result or the error of a program that has exited.
func (p *program) outcome(ctx context.Context, c *child, job Job) (Result, error) {
	state := c.cmd.ProcessState
	if c.out.tooLarge || state.Success() {
		if c.reported.failed {
			job.warn("the program reported an error and ended with exit status 0: its output is the result")
		}
		result, err := c.out.result(job)
		return result, c.replies.unanswered(ctx, err)
	}

	f := c.reported.failure
	f.message = cmp.Or(f.message, c.errors.String())
	f.permanent = f.permanent || state.ExitCode() == exitRejected
	if stopped(state) && !f.permanent {
		clock.Sleep(ctx, p.patience)
	}
	return nil, c.replies.unanswered(ctx, f.error(p.name()+" ended with "+state.String()))
}

// stopped reports whether a program was ended by SIGTERM or SIGINT, or exits as a shell does whose command was.
func stopped(state *os.ProcessState) bool {
	by := syscall.Signal(state.ExitCode() - 128)
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		by = status.Signal()
	}
	return by == syscall.SIGTERM || by == syscall.SIGINT
}

// pipe reads what a program writes. It can be closed while another process still holds
// the writing end. Only one goroutine may call its methods.
type pipe struct {
	file  *os.File
	take  func([]byte)
	ended func()        // called when all writers have closed the pipe; nil: not called
	done  chan struct{} // closed when the reading goroutine has ended
}

// read starts a goroutine that reads and passes the bytes to take. interrupt ends it.
func (p *pipe) read(take func([]byte)) {
	p.take, p.done = take, make(chan struct{})
	go func() {
		defer close(p.done)
		buffer := make([]byte, readBytes)
		for {
			n, err := p.file.Read(buffer)
			if n > 0 {
				p.take(buffer[:n])
			}
			if errors.Is(err, io.EOF) && p.ended != nil {
				p.ended()
			}
			if err != nil {
				return
			}
		}
	}()
}

// interrupt ends the goroutine and waits for it.
func (p *pipe) interrupt() {
	_ = p.file.SetReadDeadline(time.Unix(1, 0)) // pipes support deadlines
	<-p.done
}

// collect passes the present contents of the pipe to take, and drops later input.
func (p *pipe) collect() {
	p.interrupt()
	p.ended = nil
	_ = p.file.SetReadDeadline(time.Time{})
	p.drain()
	p.read(func([]byte) {})
}

// maxPipeBytes is the largest size of a pipe that fcntl(F_SETPIPE_SZ) grants without
// privilege. It bounds what an endless writer can add while drain reads.
const maxPipeBytes = 1 << 20

// drain reads until the pipe is empty, without waiting. Read on the file itself
// cannot do that: once the deadline has passed, it returns no data at all.
func (p *pipe) drain() {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return // closed
	}

	buffer := make([]byte, readBytes)
	_ = raw.Read(func(fd uintptr) bool {
		for total := 0; total < maxPipeBytes; {
			n, err := syscall.Read(int(fd), buffer)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if n <= 0 {
				break
			}
			p.take(buffer[:n])
			total += n
		}
		return true // do not wait for more
	})
}

// close stops reading and closes the pipe.
func (p *pipe) close() {
	p.interrupt()
	closeAll(p.file)
}

// tail keeps the end of the bytes that are added to it.
type tail struct{ kept []byte }

func (t *tail) add(b []byte) {
	const limit = 2 * messageBytes // more than one message, because a cut may fall inside a rune
	t.kept = append(t.kept, b...)
	t.kept = slices.Delete(t.kept, 0, max(0, len(t.kept)-limit))
}

// String returns the end as a message.
func (t *tail) String() string { return legible(string(t.kept), text.Tail, messageBytes) }
