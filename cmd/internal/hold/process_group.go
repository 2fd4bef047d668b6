//go:build unix

package hold

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"taskguard/internal/children"
)

const (
	// pollInterval is how often a group that is being ended is checked: no system
	// reports when a group becomes empty.
	pollInterval = 5 * time.Millisecond
	// childGrace is how long children that outlive the command may take to end.
	childGrace = 5 * time.Second
	// reapGrace limits the wait for killed orphans that no process reaps.
	reapGrace = time.Second
)

// processGroup is the command, the leader of a process group, and its children.
type processGroup struct {
	path   string
	args   []string
	cancel context.CancelCauseFunc // prevents the start

	terminal int // file descriptor of the controlling terminal; -1: none
	exited   chan syscall.WaitStatus

	mu   sync.Mutex
	id   int  // zero: not started
	over bool // no process of the group runs; the system may reuse id
}

// start starts the command, on a thread that lives as long as the command: the kernel
// kills a child with Pdeathsig when its parent thread ends.
func (g *processGroup) start(ctx context.Context, env []string) error {
	cmd := exec.Command(g.path)
	cmd.Args, cmd.Env = g.args, env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr // without copying
	cmd.SysProcAttr = attributes()
	cmd.SysProcAttr.Setpgid = true

	// The command may read /dev/tty even if its standard input is a pipe.
	g.terminal, _ = unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0) // -1 if there is none
	if owner, err := unix.IoctlGetInt(g.terminal, unix.TIOCGPGRP); err == nil && owner == unix.Getpgrp() {
		cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, g.terminal
	}

	// A command that is suspended together with this process would lose the lock meanwhile.
	// Alone, it would keep the terminal, and nothing would continue it. So both ignore Ctrl-Z.
	signal.Ignore(syscall.SIGTSTP)

	g.exited = make(chan syscall.WaitStatus, 1)
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := g.launch(ctx, cmd)
		started <- err
		if err != nil {
			return
		}
		_ = children.Wait(cmd) // the status has what matters
		status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
		g.exited <- status
	}()
	return <-started
}

// launch starts cmd, unless ctx has ended.
func (g *processGroup) launch(ctx context.Context, cmd *exec.Cmd) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := children.Start(cmd); err != nil {
		return err
	}
	g.id = cmd.Process.Pid
	return nil
}

// signal sends s to the whole group. Before the start it prevents the start.
func (g *processGroup) signal(s syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.id == 0:
		g.cancel(signalError(s))
	case !g.over:
		_ = syscall.Kill(-g.id, s) // fails where no process is left
	}
}

// running reports whether the group has processes. For processes of another user the error
// is EPERM, not ESRCH.
func (g *processGroup) running() bool { return !errors.Is(syscall.Kill(-g.id, 0), syscall.ESRCH) }

// wait waits until no process of the group runs, and returns the status of the leader. When
// ctx ends, it ends the group.
func (g *processGroup) wait(ctx context.Context, report func(string)) syscall.WaitStatus {
	defer g.finish()
	select {
	case status := <-g.exited:
		if g.running() {
			report("ending what the command has left running")
			g.end(ctx)
		}
		return status
	case <-ctx.Done():
		g.end(ctx)
		report("the lock is lost: the command was ended")
		return <-g.exited
	}
}

// end ends the group: SIGTERM, and SIGKILL after childGrace. The end of ctx shortens the grace.
func (g *processGroup) end(ctx context.Context) {
	g.signal(syscall.SIGTERM)
	g.signal(syscall.SIGCONT) // a stopped process handles SIGTERM only then

	var reaped <-chan time.Time
	lost, kill := ctx.Done(), time.After(childGrace)
	for g.running() {
		select {
		case <-time.After(pollInterval):
		case <-lost:
			lost = nil
			var urgent interface{ KillAfter() time.Duration }
			if errors.As(context.Cause(ctx), &urgent) {
				kill = time.After(urgent.KillAfter())
			}
		case <-kill:
			g.signal(syscall.SIGKILL)
			reaped = time.After(reapGrace)
		case <-reaped:
			return
		}
	}
}

// finish stops forwarding signals, and takes the terminal back from the group.
func (g *processGroup) finish() {
	g.mu.Lock()
	g.over = true
	g.mu.Unlock()
	if owner, _ := unix.IoctlGetInt(g.terminal, unix.TIOCGPGRP); owner == g.id {
		signal.Ignore(syscall.SIGTTOU) // would stop a background process that does this
		_ = unix.IoctlSetPointerInt(g.terminal, unix.TIOCSPGRP, unix.Getpgrp())
	}
}
