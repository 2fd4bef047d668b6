// Package children starts programs, and reaps the processes that this process inherits as process 1 of
// a container, because a program left them behind in another session or process group.
package children

import (
	"os/exec"
	"sync"
)

// started has the programs of Start by their process ids, until Wait has read their exit status. It is
// global because the system's table of children is. It is locked while a program starts, whose id is
// not known yet, and while Reap takes the status of a process.
var started struct {
	sync.RWMutex
	programs sync.Map // of *exec.Cmd
}

// Start is cmd.Start for a program with a separate process group. Reap leaves its exit status to Wait.
// A program in the group of this process needs neither: Reap takes no status from that group.
func Start(cmd *exec.Cmd) error {
	started.RLock()
	defer started.RUnlock()
	err := cmd.Start()
	if err == nil {
		started.programs.Store(cmd.Process.Pid, cmd)
	}
	return err
}

// Wait is cmd.Wait for a program of Start.
func Wait(cmd *exec.Cmd) error {
	// The process id is free when cmd.Wait returns: the entry may belong to a newer program.
	defer started.programs.CompareAndDelete(cmd.Process.Pid, cmd)
	return cmd.Wait()
}
