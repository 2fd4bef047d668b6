//go:build linux || darwin

package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// exitRejected is the exit status of a program that rejects its job for good:
// EX_DATAERR of sysexits.h.
const exitRejected = 65

// program is an analyzer that is a program of its own.
type program struct {
	path     string   // absolute
	args     []string // its name, as it was given, is the first
	grace    time.Duration
	wantJSON bool
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
	return &program{path: path, args: args, grace: o.Grace, wantJSON: o.JSON}, nil
}

// Analyze implements [Analyzer].
func (p *program) Analyze(ctx context.Context, job Job) (Result, error) {
	if err := ended(ctx); err != nil {
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
		c.group.end(ctx, p.grace)
		return c.out.result()
	case <-ctx.Done():
		select {
		case <-c.exited: // it was first
		default:
			c.group.end(ctx, p.grace)
			return nil, ended(ctx)
		}
	}
	c.settle()
	c.group.end(ctx, p.grace)
	return p.outcome(c, c.status())
}

func (p *program) name() string { return filepath.Base(p.args[0]) }

// outcome is what the program's exit means.
func (p *program) outcome(c *child, status syscall.WaitStatus) (Result, error) {
	exit, said := describe(status), c.said.String()
	switch {
	case c.out.tooLarge, status.Exited() && status.ExitStatus() == 0:
		return c.out.result()
	case status.Exited() && status.ExitStatus() == exitRejected:
		if said == "" {
			said = p.name() + " ended with " + exit
		}
		return nil, &PermanentError{Code: CodeAnalyzerRejected, Message: said}
	}
	return nil, &FailureError{Reason: p.name() + " ended with " + exit, Said: said}
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return fmt.Sprintf("signal %d (%v)", int(status.Signal()), status.Signal())
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}
