package main

import (
	"errors"
	"fmt"
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
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil { // not Linux
		out, err := exec.Command("ps", "-o", "ppid=", "-o", "comm=", "-p", strconv.Itoa(pid)).Output()
		if err != nil {
			return "", 0, err
		}
		parent, path, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
		above, err = strconv.Atoi(parent)
		return filepath.Base(strings.TrimSpace(path)), above, err
	}

	// 17 (a name (of any kind)) S 16 …
	text := string(stat)
	begin, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if begin < 0 || end < begin {
		return "", 0, fmt.Errorf("process %d: unreadable state", pid)
	}
	var state string
	_, err = fmt.Sscan(text[end+1:], &state, &above)
	return text[begin+1 : end], above, err
}
