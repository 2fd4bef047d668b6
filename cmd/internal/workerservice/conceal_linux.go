package workerservice

import "golang.org/x/sys/unix"

// conceal makes this process not dumpable: a program of the same user, such as the analyzer, cannot
// read its environment and memory in /proc. Programs that it starts are dumpable again.
func conceal() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }
