package hold

import "syscall"

// attributes has the kernel kill the command when this process is killed, so that it
// does not outlive the lock. The command's own children are not killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
