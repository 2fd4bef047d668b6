package orchestrator

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// From linux/wait.h; package syscall has the options, but not the call.
const (
	idTypePID = 1
	wNoWait   = 0x01000000
)

// attributes puts the program into a group of its own, and has the kernel end
// it when this process dies without a word.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit blocks until the child has exited, and leaves it to be waited for.
func awaitExit(pid int) {
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, idTypePID, uintptr(pid), 0,
			syscall.WEXITED|wNoWait, 0, 0)
		if errno != syscall.EINTR {
			return // exited; or no child of ours, which no one but us can make it
		}
	}
}

// running reports whether a process of the group runs. A zombie does not.
//
// It also waits for zombies of the group whose parents have died and that have
// become children of this process, as in a container whose process 1 it is:
// nobody else would. While the leader is not waited for, there is no mistaking
// them for others.
func (g group) running() bool {
	if !g.leaderExited() {
		return true
	}
	proc, err := os.Open("/proc")
	if err != nil {
		return false // not to be seen: SIGKILL has to do without grace
	}
	defer func() { _ = proc.Close() }()
	names, _ := proc.Readdirnames(-1) // what was read of it counts
	running := false
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == g.leader {
			continue
		}
		// 200 groups that end at once read /proc/PID/stat 200² times else: 1.2 s of CPU.
		if group, err := syscall.Getpgid(pid); err == nil && group != g.leader {
			continue
		}
		p, err := stat(name)
		switch {
		case err != nil || p.group != g.leader:
		case p.runs():
			running = true
		case p.parent == os.Getpid():
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
	}
	return running
}

// process is what /proc says of one.
type process struct {
	state                  string
	parent, group, threads int
}

// runs: a process whose first thread has ended shows as a zombie, while its
// other threads still hold its files and may still be at work.
func (p process) runs() bool {
	return p.threads > 1 || p.state != "Z" && p.state != "X"
}

var errMalformed = errors.New("malformed /proc/PID/stat")

// stat reads "PID (NAME) STATE PARENT GROUP …", of which the 20th field is the
// number of threads. The name may hold anything.
func stat(pid string) (process, error) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return process{}, err // gone meanwhile
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 18 {
		return process{}, errMalformed
	}
	p := process{state: fields[0]}
	for field, number := range map[int]*int{1: &p.parent, 2: &p.group, 17: &p.threads} {
		if *number, err = strconv.Atoi(fields[field]); err != nil {
			return process{}, errMalformed
		}
	}
	return p, nil
}
