package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// alive reports whether the process exists.
func alive(pid int) bool {
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) // EPERM: another user's
}

// parent returns the process that started this one or, if that is the go tool, the
// process that started the go tool.
func parent() int {
	pid := os.Getppid()
	if name, above, err := process(pid); err == nil && name == "go" {
		return above
	}
	return pid
}

// process returns the name and the parent of a process.
func process(pid int) (name string, above int, err error) {
	out, err := exec.Command("ps", "-o", "ppid=", "-o", "comm=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return "", 0, err
	}
	first, rest, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	above, err = strconv.Atoi(first)
	return filepath.Base(strings.TrimSpace(rest)), above, err
}
