package children

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stage makes the test binary a process that inherits what its programs leave behind, as process 1 does.
const stage = "REAPER_STAGE"

func TestMain(m *testing.M) {
	if os.Getenv(stage) == "" {
		os.Exit(m.Run())
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	go Reap(context.Background())
	inherit()
}

// inherit starts programs that leave processes behind, each with a status of its own, and waits until none
// of these is left. It prints each status that is not as it should be.
func inherit() {
	late := exec.Command("/bin/sh", "-c", "exit 7") //nolint:noctx // it ends
	_ = late.Start()                                // another's program, in the group of this process

	var running sync.WaitGroup
	for i := range 60 {
		running.Go(func() {
			leave := []string{
				"setsid sh -c 'sleep 0.2' &", "setsid true &",
				"set -m; sleep 0.2 & set +m;", "set -m; true & set +m;", "",
			}[i%5]
			script := fmt.Sprintf("exec >/dev/null 2>&1 </dev/null; %s exit %d", leave, i)
			program := exec.Command("/bin/bash", "-c", script) //nolint:noctx // it ends
			program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			err := Start(program)
			if i%2 == 0 {
				time.Sleep(3 * pause) // Reap finds the zombie first
			}
			_ = Wait(program)
			if got := program.ProcessState.ExitCode(); err != nil || got != i {
				fmt.Printf("%q: %v, exit status %d, want %d\n", leave, err, got, i)
			}
		})
	}
	running.Wait()
	if _ = late.Wait(); late.ProcessState.ExitCode() != 7 {
		fmt.Println("another's program:", late.ProcessState)
	}

	for end := time.Now().Add(time.Minute); ; time.Sleep(pause) {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		switch {
		case err == syscall.ECHILD: //nolint:errorlint // of a system call
			fmt.Println("no child is left")
			os.Exit(0)
		case time.Now().After(end):
			out, _ := exec.Command("ps", "-eo", "ppid,stat,args").Output() //nolint:noctx // it ends
			fmt.Printf("children are left:\n%s", out)
			os.Exit(1)
		}
	}
}

// What is inherited is reaped, and no status is taken from whoever waits for it.
func TestReap(t *testing.T) {
	reaper := exec.CommandContext(t.Context(), "/proc/self/exe")
	reaper.Env = append(os.Environ(), stage+"=reaper", "GORACE=atexit_sleep_ms=0")
	out, err := reaper.CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != "no child is left" {
		t.Errorf("%v\n%s", err, got)
	}
}
