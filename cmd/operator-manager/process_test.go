package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"taskguard/internal/testing/must"
)

// A shell's commands share its operator; it is free once the shell has ended.
func TestOperatorSession_Shell(t *testing.T) { // O4, O9
	x := open(t, newState(t), "")
	delete(x.env, "TERM_SESSION_ID")
	exe := must.Get(os.Executable())(t)
	script := `"$0" "$@" assign kana && "$0" "$@" assign && "$0" "$@" status && read line`
	shell := x.in(exec.Command("sh", append([]string{"-c", script, exe}, x.flags...)...))
	stdin := must.Get(shell.StdinPipe())(t)
	out, err := shell.StdoutPipe()
	must.OK(t, errors.Join(err, shell.Start()))
	for scan := bufio.NewScanner(out); scan.Scan() && !strings.Contains(scan.Text(), ": かな"); {
	}
	other := open(t, x.flags[3], "other")
	other.refused("かな", "assign", "kana")
	must.OK(t, errors.Join(shell.Process.Kill(), stdin.Close()))
	if err := shell.Wait(); err == nil {
		t.Error("the shell ended by itself")
	}
	other.done("かな", "assign", "kana")
}

func TestEightProcessesGetSixOperators(t *testing.T) { // O1
	state := newState(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	codes, got := map[int]int{}, map[string]int{}
	for i := range 8 {
		cmd := open(t, state, fmt.Sprint("s", i)).program("assign")
		wg.Go(func() {
			out, err := cmd.Output()
			if err != nil && cmd.ProcessState == nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			codes[cmd.ProcessState.ExitCode()]++
			got[string(out)]++
		})
	}
	wg.Wait()
	if codes[exitDone] != 6 || codes[exitFailed] != 2 {
		t.Errorf("exit codes %v", codes)
	}
	if len(got) != 7 { // six names, and nothing
		t.Errorf("output %v", got)
	}
	other := open(t, state, "other")
	other.done("ありません", "available")
	other.refused("", "assign")
}

func TestAlive(t *testing.T) { // O9
	gone := exec.Command("true")
	must.OK(t, gone.Run())
	for pid, want := range map[int]bool{os.Getpid(): true, 1: true, gone.Process.Pid: false} { // 1: another user's
		if alive(pid) != want {
			t.Errorf("alive(%d) = %v", pid, !want)
		}
	}
}
