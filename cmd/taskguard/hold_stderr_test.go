//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease/projectlock"
)

// holdTo starts hold with a standard error of the test's own.
func holdTo(t *testing.T, stderr *os.File, args ...string) *held {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := &held{Cmd: exec.Command(exe, append([]string{"hold", "--project", "p"}, args...)...)}
	h.Env = append(os.Environ(), "GOOGLE_CLOUD_PROJECT=", "FIRESTORE_EMULATOR_HOST=")
	h.Stderr = stderr
	h.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Process.Kill(); _ = h.Wait() }) // if it still lives
	return h
}

// appears waits for a file that the command makes, in dir.
func appears(t *testing.T, dir, pattern string) string {
	t.Helper()
	var text string
	eventually(t, pattern, func() bool {
		names, err := fs.Glob(os.DirFS(dir), pattern)
		if err != nil || len(names) == 0 {
			return false
		}
		data, err := os.ReadFile(filepath.Join(dir, names[0]))
		text = string(data)
		return err == nil && strings.HasSuffix(text, "\n")
	})
	return strings.TrimSpace(text)
}

// guarded does something while no hold is in the middle of a renewal.
func guarded(t *testing.T, dir string, do func() error) {
	t.Helper()
	guard, err := os.OpenFile(filepath.Join(dir, "project", ".lock.guard"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = guard.Close() }()
	if err := errors.Join(syscall.Flock(int(guard.Fd()), syscall.LOCK_EX), do()); err != nil {
		t.Fatal(err)
	}
}

// Nobody reads, or nobody can: whatever hold has to say, its command ends with
// the lock, and hold with it.
func TestHoldWhoseStandardErrorIsBlockedOrClosedEndsItsCommandAllTheSame(t *testing.T) {
	t.Parallel()
	for _, blocked := range []bool{true, false} {
		for _, flags := range [][]string{{"--json"}, {}} {
			t.Run(fmt.Sprintf("blocked %t, %v", blocked, flags), func(t *testing.T) {
				t.Parallel()
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				dir := t.TempDir()
				script := fmt.Sprintf(`exec 2>/dev/null; trap 'echo asked >"%[1]s/asked"; exit 9' TERM; echo $$ >"%[1]s/up"; while :; do sleep 0.05; done`, dir)
				h := holdTo(t, w, append(append([]string{"--dir", dir, "--ttl", "2s"}, flags...), "--", "sh", "-c", script)...)
				pid, err := strconv.Atoi(appears(t, dir, "up"))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = syscall.Kill(-pid, syscall.SIGKILL) }) // if it still lives
				filled := make(chan struct{})
				go func() { // as much as the pipe takes, and then it blocks
					defer close(filled)
					if blocked {
						_, _ = w.Write(make([]byte, 4<<20)) // the end of reading ends it
					}
				}()
				if !blocked {
					_ = r.Close()
				}
				time.Sleep(200 * time.Millisecond) // until it is full: if not, less is shown
				// Somebody takes it away; a renewal under way would put it back.
				guarded(t, dir, func() error { return os.Remove(filepath.Join(dir, "project", ".lock")) })
				appears(t, dir, "asked")
				_ = h.Wait()
				if got := h.ProcessState.ExitCode(); got != 1 {
					t.Errorf("exit %d; want 1", got)
				}
				_ = r.Close()
				<-filled
				_ = w.Close()
			})
		}
	}
}

// stuck is a Writer that returns when it is told to.
type stuck chan struct{}

func (s stuck) Write(p []byte) (int, error) { <-s; return len(p), nil }

func TestAVoiceThatNobodyHearsHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := make(stuck)
		v := newVoice(to)
		began := time.Now()
		for range 3 * voicePending {
			printTo(v, "line\n")
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("writing took %v", waited)
		}
		v.close()
		if waited := time.Since(began); waited != voiceGrace {
			t.Errorf("closing took %v; want %v", waited, voiceGrace)
		}
		printTo(v, "afterwards\n")
		close(to)
	})
}

func TestHoldLeavesIgnoredSignalsToWhoIgnoresThem(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// What nohup does; the command itself would end by the signal.
	script := fmt.Sprintf(`trap '' HUP; exec %q hold --project p --dir %q -- sh -c 'echo up >"%[2]s/up"; sleep 1; echo end >"%[2]s/end"'`, exe, dir)
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(os.Environ(), "GOOGLE_CLOUD_PROJECT=", "FIRESTORE_EMULATOR_HOST=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	appears(t, dir, "up")
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v; want it to come to its end", err)
	}
	appears(t, dir, "end")
}

func TestASignalBeforeTheCommandHasStartedKeepsItFromStarting(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // as main does, where the signal comes before hold listens
	mark := filepath.Join(dir, "ran")
	code := run(ctx, []string{"hold", "--project", "p", "--dir", dir, "--", "touch", mark}, streams{os.Stdin, os.Stdout, t.Output()}, vars{}.lookup)
	if _, err := os.Stat(mark); err == nil || code != exitInterrupted {
		t.Errorf("exit %d, %v; want 130, and no command", code, err)
	}
	h := &holding{run: &program{path: "/bin/true", args: []string{"true"}}}
	if h.run.signal(syscall.SIGTERM) {
		t.Error("a program that has not started got a signal")
	}
	err := h.outcome(t.Context(), h.body(t.Context(), projectlock.Lease{}))
	if coded := (exitError{}); !errors.As(err, &coded) || coded.code != 128+15 {
		t.Errorf("%v; want 143", err)
	}
}

func TestAGroupThatMayNotBeSignalledIsNotEmpty(t *testing.T) {
	t.Parallel()
	for err, left := range map[error]bool{nil: true, syscall.EPERM: true, syscall.ESRCH: false} {
		if got := populated(err); got != left {
			t.Errorf("%v: left %t; want %t", err, got, left)
		}
	}
}
