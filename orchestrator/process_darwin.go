package orchestrator

import (
	"errors"
	"syscall"
	"time"
)

// attributes puts the program into a group of its own.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitExit blocks until the child has exited. It leaves the child a zombie. It does
// not use waitid, which on macOS also returns for a child that was stopped.
func awaitExit(pid int) {
	queue, err := syscall.Kqueue()
	for err != nil { // no free descriptor: wait for one
		time.Sleep(pollInterval)
		queue, err = syscall.Kqueue()
	}
	defer func() { _ = syscall.Close(queue) }()
	exit := []syscall.Kevent_t{{
		Ident:  uint64(pid),
		Filter: syscall.EVFILT_PROC,
		Flags:  syscall.EV_ADD | syscall.EV_ONESHOT,
		Fflags: syscall.NOTE_EXIT,
	}}

	events := make([]syscall.Kevent_t, 1)
	for {
		// ESRCH, here or in the event, means that the child has exited already.
		if _, err := syscall.Kevent(queue, exit, events, nil); !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// othersRun reports whether a process of the group other than its leader runs. Kill on
// macOS ignores zombies.
func (g group) othersRun() bool { return syscall.Kill(-g.leader, 0) == nil }
