//go:build linux || darwin

package orchestrator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
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
	return &program{path: path, args: args, grace: defaultGrace, wantJSON: o.JSON, env: env}, nil
}

// Analyze implements [Analyzer].
func (p *program) Analyze(ctx context.Context, job Job) (Result, error) {
	if err := contextError(ctx); err != nil {
		return nil, err
	}
	input, err := job.encode()
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
	if c.group.leaderExited() {
		c.collect()
		c.group.end(ctx, p.grace)
		return p.outcome(c, job)
	}

	c.group.end(ctx, p.grace)
	c.collect() // the reports may include a last checkpoint
	if err := contextError(ctx); err != nil {
		return nil, err
	}
	return p.outcome(c, job)
}

// Withheld returns the names of this process's variables that the program does not get.
func (p *program) Withheld() (names []string) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); p.withholds(v) {
			names = append(names, name)
		}
	}
	return names
}

func (p *program) name() string { return filepath.Base(p.args[0]) }

// outcome returns the result or the error of a program that has exited.
func (p *program) outcome(c *child, job Job) (Result, error) {
	state := c.cmd.ProcessState
	if c.out.tooLarge || state.Success() {
		if c.reported.failed {
			job.warn("the program reported an error and ended with exit status 0: its output is the result")
		}
		result, err := c.out.result(job)
		return result, c.replies.unanswered(err)
	}

	f := c.reported.failure
	f.message = cmp.Or(f.message, c.errors.String())
	f.permanent = f.permanent || state.ExitCode() == exitRejected
	return nil, c.replies.unanswered(f.error(p.name() + " ended with " + state.String()))
}
