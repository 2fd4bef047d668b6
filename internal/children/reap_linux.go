package children

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pause is how long Reap waits after a process has ended. Most are programs of ours, whose own goroutines
// read their status meanwhile, so that Reap need not read /proc.
const pause = 100 * time.Millisecond

// Reap reaps what this process inherits, until ctx ends. Without it each such process remains as a zombie,
// and counts against the container's limit of processes. Only process 1 and a subreaper inherit any.
func Reap(ctx context.Context) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD) // also comes for a zombie that is inherited
	defer signal.Stop(ended)
	for reap(); ; reap() {
		select {
		case <-ctx.Done():
			return
		case <-ended:
			time.Sleep(pause)
		}
	}
}

// reap reaps all inherited zombies.
func reap() {
	var zombie unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &zombie, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	if err != nil || zombie.Signo == 0 {
		return // no child is a zombie
	}

	// A line of /proc/PID/stat is "PID (NAME) STATE PARENT GROUP …", where NAME may contain any character.
	child := fmt.Sprintf(") Z %d ", os.Getpid())
	inGroup := fmt.Sprintf("%s%d ", child, syscall.Getpgrp())
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		stat, _ := os.ReadFile("/proc/" + entry.Name() + "/stat") // empty if the process has been reaped
		state := string(stat[max(0, bytes.LastIndexByte(stat, ')')):])
		if err != nil || !strings.HasPrefix(state, child) || strings.HasPrefix(state, inGroup) {
			continue
		}

		started.Lock()
		if _, ours := started.programs.Load(pid); !ours {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
		started.Unlock()
	}
}
