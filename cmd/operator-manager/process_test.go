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
)

// A shell's commands share its operator; it is free once the shell has ended.
func TestWithoutATerminalsNameTheShellIsTheSession(t *testing.T) { // O4, O9
	x := open(t, newState(t), "")
	delete(x.env, "TERM_SESSION_ID")
	exe := must(os.Executable())(t)
	script := `"$0" "$@" assign kana && "$0" "$@" assign && "$0" "$@" status && read line`
	shell := x.in(exec.Command("sh", append([]string{"-c", script, exe}, x.flags...)...))
	stdin := must(shell.StdinPipe())(t)
	out, err := shell.StdoutPipe()
	check(t, errors.Join(err, shell.Start()))
	for scan := bufio.NewScanner(out); scan.Scan() && !strings.HasPrefix(scan.Text(), "現在のオペレータ: かな"); {
	}
	other := open(t, x.flags[3], "other")
	other.refuses("エラー: かなは他のセッションで使用中です", "assign", "kana")
	if err := errors.Join(shell.Process.Kill(), stdin.Close()); err != nil {
		t.Error(err)
	}
	if err := shell.Wait(); err == nil {
		t.Error("the shell ended by itself")
	}
	other.prints("かなを割り当てました", "assign", "kana")
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
	if codes[0] != 6 || codes[1] != 2 || len(got) != 7 {
		t.Errorf("exit codes %v, output %v", codes, got)
	}
	other := open(t, state, "other")
	other.prints("利用可能なオペレータはありません", "available")
	other.refuses("エラー: 利用可能なオペレータがありません", "assign")
}

func TestALiveProcessOfAnotherUserIsDetected(t *testing.T) { // O9
	if !alive(os.Getpid()) || !alive(1) {
		t.Error("what lives is dead")
	}
	gone := exec.Command("true")
	check(t, gone.Run())
	if alive(gone.Process.Pid) {
		t.Error("what is dead lives")
	}
}
