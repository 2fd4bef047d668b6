package main

import "syscall"

// holdAttributes has the kernel kill the command when this process dies without
// a word, so that it does not outlive the lock. It reaches no children of it.
func holdAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
