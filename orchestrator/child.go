//go:build linux || darwin

package orchestrator

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// child is one running program and what it is connected by. All but its
// goroutines' own work is done by the one goroutine that has started it.
type child struct {
	cmd    *exec.Cmd
	group  group
	exited chan struct{} // closed when the program has ended; it stays a zombie until status
	full   chan struct{} // closed when it has printed more than there may be
	out    output
	said   tail

	stdin          *os.File
	stdout, stderr intake
	feeding        sync.WaitGroup
}

// start starts the program. The caller ends its group, and then calls close.
func (p *program) start(ctx context.Context, job Job, input []byte) (*child, error) {
	c := &child{exited: make(chan struct{}), full: make(chan struct{}), out: output{wantJSON: p.wantJSON}}
	c.cmd = exec.Command(p.path, p.args[1:]...)
	c.cmd.Args[0] = p.args[0]
	c.cmd.Env = append(slices.DeleteFunc(os.Environ(), ofTrace),
		"ANALYSIS_ID="+job.AnalysisID,
		"LOCK_TOKEN="+strconv.FormatInt(job.LockToken, 10),
		"ATTEMPT="+strconv.Itoa(job.Attempt))
	for name, value := range traced(ctx) {
		c.cmd.Env = append(c.cmd.Env, strings.ToUpper(name)+"="+value)
	}
	c.cmd.SysProcAttr = attributes()
	theirs, err := c.connect()
	if err == nil {
		err = c.launch()
	}
	closeAll(theirs...)
	if err != nil {
		closeAll(c.stdin, c.stdout.pipe, c.stderr.pipe)
		return nil, err
	}
	c.group = group{leader: c.cmd.Process.Pid, exited: c.exited}
	c.stdout.take, c.stderr.take = c.takeOutput, c.said.add
	if job.Stderr != nil {
		c.stderr.take = func(b []byte) { c.said.add(b); _, _ = job.Stderr.Write(b) }
	}
	c.stdout.begin()
	c.stderr.begin()
	c.feeding.Go(func() {
		// A program need not read its input: that the pipe breaks is no error.
		_, _ = c.stdin.Write(input)
		closeAll(c.stdin)
	})
	return c, nil
}

// ofTrace reports whether a variable is of the trace in which this process itself
// was started.
func ofTrace(variable string) bool {
	return strings.HasPrefix(variable, "TRACEPARENT=") || strings.HasPrefix(variable, "TRACESTATE=")
}

// connect makes the pipes. They are ours rather than package exec's: its Wait
// waits for whoever else has inherited them, or loses what they still hold.
func (c *child) connect() (theirs []*os.File, err error) {
	var in, out, errs *os.File
	if in, c.stdin, err = os.Pipe(); err != nil {
		return nil, err
	}
	if c.stdout.pipe, out, err = os.Pipe(); err != nil {
		return []*os.File{in}, err
	}
	if c.stderr.pipe, errs, err = os.Pipe(); err != nil {
		return []*os.File{in, out}, err
	}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = in, out, errs
	return []*os.File{in, out, errs}, nil
}

// launch starts the program on a thread that stays until the program has ended:
// where the kernel ends a child whose parent dies, the parent is the thread.
func (c *child) launch() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			awaitExit(c.cmd.Process.Pid)
			close(c.exited)
		}
	}()
	return <-started
}

func (c *child) takeOutput(b []byte) {
	if !c.out.tooLarge && !c.out.add(b) {
		close(c.full)
	}
}

// settle makes out and said what the program had written when it exited. What
// children of its write after that is read, for their sake, and dropped.
func (c *child) settle() {
	c.stdout.settle()
	c.stderr.settle()
}

// status waits for the program, which has exited, and so frees its id.
func (c *child) status() syscall.WaitStatus {
	_ = c.cmd.Wait() // says no more than the status
	status, _ := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return status
}

// close frees what the child has held. Its group has ended.
func (c *child) close() {
	if c.cmd.ProcessState == nil {
		c.status()
	}
	closeAll(c.stdin)
	c.feeding.Wait()
	c.stdout.end()
	c.stderr.end()
}

// closeAll closes pipes, which may be closed already or nil: nothing is lost,
// since what goes through a pipe is not in doubt until it is closed.
func closeAll(files ...*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
