//go:build unix

package main

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
)

const (
	// lookEvery is how often a group that is being ended is looked at: no system
	// tells when a group has become empty.
	lookEvery = 5 * time.Millisecond
	// leftGrace is what children have that outlive the command.
	leftGrace = 5 * time.Second
	// reapGrace bounds the wait for killed orphans that nobody reaps.
	reapGrace = time.Second
	// terminalEvery is how often a command that waits for the terminal is looked
	// after: nothing tells when this process has come to the foreground.
	terminalEvery = time.Second
)

// program is hold's command, the leader of a process group.
type program struct {
	path string
	args []string

	terminal int  // file descriptor of the controlling terminal; -1: none
	lent     bool // the terminal, to the group
	exited   chan syscall.WaitStatus
	stopped  chan syscall.Signal

	mu      sync.Mutex
	group   int            // zero: not started
	refused syscall.Signal // that came first; zero: none
	over    bool           // nothing of the group runs; its id may be another's soon
}

// start starts it, on a thread that lives as long as it does: where the kernel
// ends a child whose parent dies, the parent is the thread.
func (p *program) start(env []string) error {
	cmd := exec.Command(p.path)
	cmd.Args, cmd.Env = p.args, env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr // themselves, and no copies
	cmd.SysProcAttr = holdAttributes()
	cmd.SysProcAttr.Setpgid = true
	// Not by standard input, which may be a pipe where the command asks on /dev/tty.
	p.terminal, _ = unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0) // -1 if it has none
	if p.lent = foreground(p.terminal); p.lent {
		cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, p.terminal
	}
	p.exited, p.stopped = make(chan syscall.WaitStatus, 1), make(chan syscall.Signal, 1)
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p.mu.Lock()
		err := error(signalError(p.refused))
		if p.refused == 0 {
			err = cmd.Start()
		}
		if err == nil {
			p.group = cmd.Process.Pid
		}
		p.mu.Unlock()
		started <- err
		if err == nil {
			p.reap(cmd.Process)
		}
	}()
	return <-started
}

// reap waits for the leader, and tells of its stops.
func (p *program) reap(leader *os.Process) {
	defer func() { _ = leader.Release() }()
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(p.group, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && status.Stopped():
			select {
			case p.stopped <- status.StopSignal():
			default:
			}
			continue
		}
		p.exited <- syscall.WaitStatus(status)
		return
	}
}

// signal reaches the whole group. If there is none yet, there will be none, and
// it reports false.
func (p *program) signal(s syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.group == 0:
		p.refused = s
	case !p.over:
		_ = syscall.Kill(-p.group, s) // it fails where nobody is left
	}
	return p.group != 0
}

// left reports whether the group has members. Its id stays its own as long as it
// has; where it has none, the id has not come round within a look.
func (p *program) left() bool { return populated(p.look()) }

func (p *program) look() error { return syscall.Kill(-p.group, 0) }

// populated is whether a group has members, by the answer to a signal: those that
// became another user may not be signalled.
func populated(err error) bool { return !errors.Is(err, syscall.ESRCH) }

// wait waits until nothing of the group runs, and answers how the leader ended.
// The end of ctx ends the group.
func (p *program) wait(ctx context.Context, say func(string)) syscall.WaitStatus {
	defer p.settle()
	var again <-chan time.Time // the command waits for the terminal
	for {
		select {
		case status := <-p.exited:
			p.end(ctx, say)
			return status
		case s := <-p.stopped:
			switch s {
			case syscall.SIGTSTP:
				// Suspended together, the lock would lapse under it; alone, it would
				// have the terminal and nobody to wake it.
				p.signal(syscall.SIGCONT)
				say("a command that holds a lock cannot be suspended: continued")
			case syscall.SIGTTIN, syscall.SIGTTOU:
				again = time.After(0)
			}
		case <-again:
			if again = nil; p.lend() {
				p.signal(syscall.SIGCONT)
			} else {
				again = time.After(terminalEvery)
			}
		case <-ctx.Done():
			status := p.stop(killAfter(ctx), say)
			say("the lock is lost: the command was ended")
			return status
		}
	}
}

// lend gives the group the terminal, if it is this process's or the group's.
func (p *program) lend() bool {
	if p.terminal < 0 {
		return false
	}
	if foreground(p.terminal) {
		p.lent = unix.IoctlSetPointerInt(p.terminal, unix.TIOCSPGRP, p.group) == nil
	}
	group, err := unix.IoctlGetInt(p.terminal, unix.TIOCGPGRP)
	return err == nil && group == p.group
}

// stop ends the group: SIGTERM, and SIGKILL after grace.
func (p *program) stop(grace time.Duration, say func(string)) (status syscall.WaitStatus) {
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT) // the stopped, too, get to hear of it
	over := time.NewTimer(grace)
	defer over.Stop()
	select {
	case status = <-p.exited:
		p.await(nil, over.C)
	case <-over.C:
		p.signal(syscall.SIGKILL)
		status = <-p.exited
	}
	p.kill(say)
	return status
}

// killAfter is how long what ignores the end of ctx may live on.
func killAfter(ctx context.Context) time.Duration {
	var urgent interface{ KillAfter() time.Duration }
	if errors.As(context.Cause(ctx), &urgent) {
		return urgent.KillAfter()
	}
	return leftGrace
}

// end ends what the leader has left behind; the end of ctx shortens its time.
func (p *program) end(ctx context.Context, say func(string)) {
	if !p.left() {
		return
	}
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT)
	say("ending what the command has left running")
	over := time.After(leftGrace)
	if !p.await(ctx.Done(), over) {
		p.await(nil, time.After(min(leftGrace, killAfter(ctx))))
	}
	p.kill(say)
}

// kill ends at once whoever is left.
func (p *program) kill(say func(string)) {
	if !p.left() {
		return
	}
	p.signal(syscall.SIGKILL)
	p.await(nil, time.After(reapGrace))
	if errors.Is(p.look(), syscall.EPERM) {
		say("what the command has left running is another user's now: it runs on without the lock")
	}
}

// await waits until the group is empty or its time is over; false: interrupted.
func (p *program) await(interrupt <-chan struct{}, over <-chan time.Time) bool {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for p.left() {
		select {
		case <-look.C:
		case <-over:
			return true
		case <-interrupt:
			return false
		}
	}
	return true
}

// foreground reports whether fd is the terminal that this process has.
func foreground(fd int) bool {
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// settle ends the signals, and makes this process's group the terminal's
// foreground again.
func (p *program) settle() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	if p.terminal < 0 {
		return
	}
	if now, err := unix.IoctlGetInt(p.terminal, unix.TIOCGPGRP); p.lent && err == nil && now == p.group {
		signal.Ignore(syscall.SIGTTOU) // which stops who does this from the background
		_ = unix.IoctlSetPointerInt(p.terminal, unix.TIOCSPGRP, unix.Getpgrp())
		signal.Reset(syscall.SIGTTOU)
	}
	_ = unix.Close(p.terminal)
}
