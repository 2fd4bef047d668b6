//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/locks/document"
	"taskguard/locks/project"
	"taskguard/repo"
)

// rooms opens the store that hold uses.
func rooms(t *testing.T, env vars) *repo.Rooms {
	t.Helper()
	o := repo.Options{Emulator: env["FIRESTORE_EMULATOR_HOST"]}
	r := must(repo.OpenRooms(t.Context(), env["GOOGLE_CLOUD_PROJECT"], o))(t)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestHoldEndsItsCommandWhenAnotherTakesTheRoomByForce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ script, ended string }{
		"a command that ends":            {`trap 'echo asked; exit 9' TERM; echo $PROJECT_LOCK_STRATEGY; while :; do sleep 0.05; done`, "exit status 9"},
		"a command that ignores SIGTERM": {`trap 'echo asked' TERM; echo $PROJECT_LOCK_STRATEGY; while :; do sleep 0.05; done`, "killed"},
		"a command that is stopped":      {`trap 'echo asked; exit 9' TERM; echo $PROJECT_LOCK_STRATEGY; kill -STOP $$; exit 3`, "exit status 9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, dir := store(t), t.TempDir()
			locks := must(document.New(rooms(t, env), 0))(t)
			h := startHold(t, env, "--dir", dir, "--ttl", "16s", "--wait", "17s", "--", "sh", "-c", c.script)
			if got := h.line(t); got != "web-lock" {
				t.Fatal(got)
			}
			if _, err := locks.Acquire(t.Context(), "p:project", "browser"); !errors.As(err, new(*document.HeldError)) {
				t.Errorf("the browser: %v; want the room held", err)
			}
			if broken, err := locks.Break(t.Context(), "p:project"); err != nil || !broken {
				t.Fatalf("%t, %v", broken, err)
			}
			must(locks.Acquire(t.Context(), "p:project", "browser"))(t)
			if got := h.end(t, 1, "lease-stale", c.ended); got != "asked\n" {
				t.Errorf("the command printed %q; want asked", got)
			}
			if _, err := locks.Release(t.Context(), "p:project", "browser"); err != nil {
				t.Errorf("the browser's lock was touched: %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "project")); err == nil {
				t.Error("the lock file was used in addition to Firestore")
			}
		})
	}
}

func TestHoldIsDeniedWhileABrowserEdits(t *testing.T) {
	t.Parallel()
	env, dir := store(t), t.TempDir()
	locks := must(document.New(rooms(t, env), 0))(t)
	must(locks.Acquire(t.Context(), "p:project", "browser"))(t)
	h := startHold(t, env, "--dir", dir, "--", "echo", "never")
	if out := h.end(t, 1, "project p is locked by another program or browser (in Firestore, room p:project) until 2", "--wait 10m (acquire-denied)"); out != "" {
		t.Errorf("the command ran: %q", out)
	}
}

func TestProcessesThatTheCommandLeavesRunningAreEndedBeforeTheRelease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := fmt.Sprintf(`(trap 'ls %q; exit' TERM; echo up; while :; do sleep 0.05; done) & read x; exit 4`, filepath.Join(dir, "project", ".lock"))
	h := startHold(t, vars{}, "--dir", dir, "--", "sh", "-c", script)
	h.line(t)
	must(io.WriteString(h.in, "go\n"))(t)
	if out := h.end(t, 4, "left running"); !strings.HasSuffix(out, "/project/.lock\n") {
		t.Errorf("%q; want the lock still there when it was asked to end", out)
	}
}

func TestHoldThatWasStoppedForLongerThanItsLockEndsItsCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := startHold(t, vars{}, "--dir", dir, "--ttl", "8s", "--json", "--", "sh", "-c", "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done") // with 8 s, it has 400 ms to end
	h.line(t)
	guarded(t, dir, func() error { // stopped during a renewal, it would keep the guard
		err := h.Process.Signal(syscall.SIGSTOP)
		if err == nil {
			_, err = syscall.Wait4(h.Process.Pid, nil, syscall.WUNTRACED, nil)
		}
		return err
	})
	other := startHold(t, vars{}, "--dir", dir, "--wait", "20s", "--", "sh", "-c", "echo mine; cat")
	other.line(t)
	check(t, h.Process.Signal(syscall.SIGCONT))
	if got := h.end(t, 1, "lease-stale"); got != "asked\n" {
		t.Errorf("the command printed %q; want asked", got)
	}
	if n := strings.Count(h.errs.String(), "lock:readonly-entered"); n != 1 {
		t.Errorf("read-only was entered %d times; want once", n)
	}
	_ = other.in.Close()
	other.end(t, 0)
}

func TestAfterHoldWasKilledTheLockExpires(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := startHold(t, vars{}, "--dir", dir, "--ttl", "1s", "--", "sh", "-c", "echo up $$; exec sleep 1000")
	pid := must(strconv.Atoi(strings.TrimPrefix(h.line(t), "up ")))(t)
	check(t, h.Process.Kill())
	_ = h.Wait() // killed
	l := must(project.New(project.Config{Project: "p", Dir: dir}))(t)
	taken := must(l.Acquire(context.Background(), project.AcquireOptions{Wait: 10 * time.Second}))(t)
	check(t, l.Release(context.Background(), taken, project.ReleaseOptions{}))
	if runtime.GOOS == "linux" && alive(pid) {
		t.Error("the command outlives hold")
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}
