package hold

import "syscall"

// attributes makes the kernel kill the command when this process is killed, so that the
// command does not outlive the lock. The kernel does not kill the command's children.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
