package orchestrator

import "syscall"

// attributes makes the program the leader of a process group.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// othersRun reports whether a process of the group runs after its leader has exited. Kill on
// macOS ignores zombies.
func (g group) othersRun() bool { return syscall.Kill(-g.leader, 0) == nil }
