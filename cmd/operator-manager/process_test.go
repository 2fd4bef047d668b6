package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// A shell's commands share its operator; it is free once the shell has ended.
func TestWithoutATerminalsNameTheShellIsTheSession(t *testing.T) { // O4, O9
	x := open(t, newState(t), "")
	delete(x.env, "TERM_SESSION_ID")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := `"$0" "$@" assign kana && "$0" "$@" assign && "$0" "$@" status && read line`
	shell := x.in(exec.Command("sh", append([]string{"-c", script, exe}, x.flags...)...))
	stdin, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out lines
	shell.Stdout, shell.Stderr = &out, t.Output()
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	out.await(t, "現在のオペレータ: かな")
	other := open(t, x.flags[3], "other")
	other.refuses("エラー: かなは他のセッションで使用中です", "assign", "kana")
	if err := errors.Join(shell.Process.Kill(), stdin.Close()); err != nil {
		t.Error(err)
	}
	if err := shell.Wait(); err == nil {
		t.Error("the shell ended by itself")
	}
	other.says("かなを割り当てました", "assign", "kana")
}

func TestUnderGoRunTheShellIsTheSession(t *testing.T) { // O4
	x := open(t, newState(t), "")
	delete(x.env, "TERM_SESSION_ID")
	script := `go run . "$@" assign kana && go run . "$@" assign --json; true`
	shell := x.in(exec.Command("sh", append([]string{"-c", script, "sh"}, x.flags...)...))
	shell.Stderr = t.Output()
	out, err := shell.Output()
	if want := "かなを割り当てました\n" + `{"operator":{"id":"kana","name":"かな"},"kept":true}` + "\n"; err != nil || string(out) != want {
		t.Errorf("%s%v; want %s", out, err, want)
	}
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
}

func TestALiveProcessIsSeenAlsoIfItIsAnothersUser(t *testing.T) { // O9
	if !alive(os.Getpid()) || !alive(1) {
		t.Error("what lives is dead")
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	if alive(gone.Process.Pid) {
		t.Error("what is dead lives")
	}
	if !exists(syscall.EPERM) {
		t.Error("another user's process is dead")
	}
}

func TestAProcessIsNamedAndHasAParent(t *testing.T) {
	name, above, err := process(os.Getpid())
	if err != nil || name == "" || !strings.HasPrefix(filepath.Base(os.Args[0]), name) || above != os.Getppid() {
		t.Errorf("%q, %d, %v", name, above, err)
	}
	if _, _, err := process(1 << 30); err == nil {
		t.Error("a process that is none has one")
	}
}

// lines is output that can be waited for.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
	came chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.came != nil {
		close(l.came)
		l.came = nil
	}
	return l.text.Write(p)
}

// await returns once text has been written.
func (l *lines) await(t *testing.T, text string) {
	t.Helper()
	for {
		l.mu.Lock()
		found, came := strings.Contains(l.text.String(), text), make(chan struct{})
		l.came = came
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-came:
		case <-t.Context().Done():
			t.Fatalf("%q never came", text)
		}
	}
}
