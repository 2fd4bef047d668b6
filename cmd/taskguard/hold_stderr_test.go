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
	"time"

	"taskguard/cmd/internal/cli"
)

// appears waits for a file in dir that matches pattern, and returns its text.
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

// guarded calls do while no hold renews its lock.
func guarded(t *testing.T, dir string, do func() error) {
	t.Helper()
	guard := must(os.OpenFile(filepath.Join(dir, "project", ".lock.guard"), os.O_RDWR, 0))(t)
	defer func() { _ = guard.Close() }()
	check(t, errors.Join(syscall.Flock(int(guard.Fd()), syscall.LOCK_EX), do()))
}

// The command ends with the lock, and hold with the command, also where hold cannot write
// its messages.
func TestHoldEndsItsCommandAlthoughItsStandardErrorIsBlockedOrClosed(t *testing.T) {
	t.Parallel()
	for name, blocked := range map[string]bool{"blocked": true, "closed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w, err := os.Pipe()
			check(t, err)
			dir := t.TempDir()
			script := fmt.Sprintf(`exec 2>/dev/null; trap 'echo asked >"%[1]s/asked"; exit 9' TERM; echo $$ >"%[1]s/up"; while :; do sleep 0.05; done`, dir)
			h := startHoldTo(t, w, vars{}, "--dir", dir, "--ttl", "6s", "--json", "--", "sh", "-c", script)
			pid := must(strconv.Atoi(appears(t, dir, "up")))(t)
			t.Cleanup(func() { _ = syscall.Kill(-pid, syscall.SIGKILL) }) // if it still lives
			filled := make(chan struct{})
			go func() { // fills the pipe, and then blocks
				defer close(filled)
				if blocked {
					_, _ = w.Write(make([]byte, 4<<20)) // ends when the other end is closed
				}
			}()
			if !blocked {
				_ = r.Close()
			}
			time.Sleep(200 * time.Millisecond) // until the pipe is full
			// A renewal in progress would write the file again.
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

func TestHoldForwardsNoSignalThatItIgnores(t *testing.T) {
	t.Parallel()
	exe := must(os.Executable())(t)
	dir := t.TempDir()
	// The script does what nohup does. Without it the signal would end the command.
	script := fmt.Sprintf(`trap '' HUP; exec %q hold --project p --dir %q -- sh -c 'echo up >"%[2]s/up"; sleep 1; echo end >"%[2]s/end"'`, exe, dir)
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(os.Environ(), "GOOGLE_CLOUD_PROJECT=", "FIRESTORE_EMULATOR_HOST=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	check(t, cmd.Start())
	appears(t, dir, "up")
	check(t, cmd.Process.Signal(syscall.SIGHUP))
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v; want the command to finish", err)
	}
	appears(t, dir, "end")
}

func TestASignalBeforeTheStartPreventsTheCommand(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // as main does, where the signal comes before hold listens
	mark := filepath.Join(dir, "ran")
	code := taskguardWith(ctx, vars{}, "", "hold", "--project", "p", "--dir", dir, "--", "touch", mark).code
	if _, err := os.Stat(mark); err == nil || code != cli.ExitInterrupted {
		t.Errorf("exit %d, %v; want 130, and no command", code, err)
	}
}
