package google

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// guardScript waits until the pipe on its standard input is closed and then kills
// its own process group, itself included. It ignores the signals that a terminal
// sends to the group, so that it ends last.
const guardScript = `trap '' HUP INT TERM; while read -r line; do :; done; kill -s KILL 0`

// group is a process group that ends with this process. Its leader, the guard, reads from
// a pipe, which the kernel closes when this process ends. This works on Linux and macOS,
// and unlike a parent-death signal it does not depend on a thread. The guard also keeps
// the group's id from being used again until end has returned.
type group struct {
	guard    *exec.Cmd
	lifeline *os.File // closed by end or, when this process ends, by the kernel
}

// newGroup starts a group with only the guard in it. The caller ends it.
func newGroup() (*group, error) {
	in, lifeline, err := os.Pipe() // close-on-exec: no child of ours keeps it open
	if err != nil {
		return nil, fmt.Errorf("google: %w", err)
	}
	guard := exec.Command("/bin/sh", "-c", guardScript)
	guard.Stdin = in
	guard.Env = []string{} // nil would mean the environment of this process
	guard.Dir = "/"
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	err = guard.Start()
	if err = errors.Join(err, in.Close()); err != nil {
		return nil, fmt.Errorf("google: %w", errors.Join(err, lifeline.Close()))
	}
	return &group{guard: guard, lifeline: lifeline}, nil
}

// end kills the group. It waits for the guard, but not for other members.
func (g *group) end() error {
	killed := syscall.Kill(-g.guard.Process.Pid, syscall.SIGKILL)
	closed := g.lifeline.Close()
	_ = g.guard.Wait() // killed
	return errors.Join(killed, closed)
}
