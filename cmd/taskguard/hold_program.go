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
)

var errInterrupted = errors.New("a signal came before it")

// program is hold's command, the leader of a process group.
type program struct {
	path string
	args []string

	terminal int // file descriptor whose foreground group it has been made; -1: none
	exited   chan syscall.WaitStatus
	stopped  chan syscall.Signal

	mu      sync.Mutex
	group   int  // zero: not started
	refused bool // a signal came first
	over    bool // nothing of the group runs; its id may be another's soon
}

// start starts it, on a thread that lives as long as it does: where the kernel
// ends a child whose parent dies, the parent is the thread.
func (p *program) start(env []string) error {
	cmd := exec.Command(p.path)
	cmd.Args, cmd.Env = p.args, env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr // themselves, and no copies
	cmd.SysProcAttr = holdAttributes()
	cmd.SysProcAttr.Setpgid = true
	p.terminal = -1
	if stdin := int(os.Stdin.Fd()); foreground(stdin) {
		p.terminal = stdin
		cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, stdin
	}
	p.exited, p.stopped = make(chan syscall.WaitStatus, 1), make(chan syscall.Signal, 1)
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p.mu.Lock()
		err := errInterrupted
		if !p.refused {
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
		p.refused = true
	case !p.over:
		_ = syscall.Kill(-p.group, s) // it fails where nobody is left
	}
	return p.group != 0
}

// left reports whether the group has members. Its id stays its own as long as it
// has; where it has none, the id has not come round within a look.
func (p *program) left() bool {
	return syscall.Kill(-p.group, 0) == nil
}

// wait waits until nothing of the group runs, and answers how the leader ended.
// The end of ctx ends the group.
func (p *program) wait(ctx context.Context, say func(string)) syscall.WaitStatus {
	defer p.settle()
	for {
		select {
		case status := <-p.exited:
			p.end(ctx, say)
			return status
		case s := <-p.stopped:
			if s == syscall.SIGTSTP {
				// Suspended together, the lock would lapse under it; alone, it would
				// have the terminal and nobody to wake it.
				say("a command that holds a lock cannot be suspended: continued")
				p.signal(syscall.SIGCONT)
			}
		case <-ctx.Done():
			say("the lock is lost: ending the command")
			return p.stop(killAfter(ctx))
		}
	}
}

// stop ends the group: SIGTERM, and SIGKILL after grace.
func (p *program) stop(grace time.Duration) (status syscall.WaitStatus) {
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
	p.kill()
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
	say("ending what the command has left running")
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT)
	over := time.After(leftGrace)
	if !p.await(ctx.Done(), over) {
		p.await(nil, time.After(min(leftGrace, killAfter(ctx))))
	}
	p.kill()
}

// kill ends at once whoever is left.
func (p *program) kill() {
	if p.left() {
		p.signal(syscall.SIGKILL)
		p.await(nil, time.After(reapGrace))
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
	signal.Ignore(syscall.SIGTTOU) // which stops who does this from the background
	_ = unix.IoctlSetPointerInt(p.terminal, unix.TIOCSPGRP, unix.Getpgrp())
	signal.Reset(syscall.SIGTTOU)
}
