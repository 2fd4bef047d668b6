package orchestrator

import (
	"errors"
	"syscall"
	"time"
)

// attributes puts the program into a group of its own.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitExit blocks until the child has exited, and leaves it to be waited for.
// waitid would not do: on macOS it also returns for a child that was stopped.
func awaitExit(pid int) {
	queue, err := syscall.Kqueue()
	for err != nil { // out of descriptors: others will be closed
		time.Sleep(pollEvery)
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
		// ESRCH, here or in the event: it has exited already.
		if _, err := syscall.Kevent(queue, exit, events, nil); !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// running reports whether a process of the group runs: macOS counts no zombies
// when it looks for whom to signal.
func (g group) running() bool {
	return !g.leaderExited() || syscall.Kill(-g.leader, 0) == nil
}
