package google

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// guardScript waits until the pipe on its standard input is closed and then kills
// its own process group, itself included. It ignores what Stop and a terminal
// send to the group, so that it is the last to go.
const guardScript = `trap '' HUP INT TERM; while read -r line; do :; done; kill -s KILL 0`

// A group is a process group that does not outlive this process. Its leader, the
// guard, keeps the group's id from being used again until end has returned, so
// that a signal to the group can reach no one else.
type group struct {
	guard    *exec.Cmd
	lifeline *os.File // closed by us or, when we die, by the kernel
}

// newGroup starts a group with only the guard in it. The caller ends it.
func newGroup() (*group, error) {
	in, lifeline, err := os.Pipe() // close-on-exec: no child of ours keeps it open
	if err != nil {
		return nil, fmt.Errorf("google: %w", err)
	}
	guard := exec.Command("/bin/sh", "-c", guardScript)
	guard.Stdin = in
	guard.Env = []string{} // a nil one would be ours
	guard.Dir = "/"
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = guard.Start()
	if err = errors.Join(err, in.Close()); err != nil {
		return nil, fmt.Errorf("google: %w", errors.Join(err, lifeline.Close()))
	}
	return &group{guard: guard, lifeline: lifeline}, nil
}

// join makes the command, not yet started, one of the group.
func (g *group) join(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: g.guard.Process.Pid}
}

func (g *group) signal(s syscall.Signal) error {
	return syscall.Kill(-g.guard.Process.Pid, s)
}

// end kills what is left of the group. It does not wait for members other than
// the guard: who started them does.
func (g *group) end() error {
	killed := g.signal(syscall.SIGKILL)
	closed := g.lifeline.Close()
	err := g.guard.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = nil // killed, as it should be
	}
	return errors.Join(killed, closed, err)
}
