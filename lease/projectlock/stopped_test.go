//go:build unix

package projectlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/lease/projectlock"
)

// keep holds a lock of 2 s until it is lost, and says why.
func keep(l *projectlock.Locker, _ string) error {
	entered := 0
	l.Subscribe(func(e projectlock.Event) {
		if e.Type == projectlock.ReadonlyEntered {
			entered++
		}
	})
	var began bool
	err := l.WithProjectLock(context.Background(), once(2*time.Second), func(ctx context.Context, _ projectlock.Lease) error {
		began = true
		fmt.Println("held")
		<-ctx.Done()
		return nil
	})
	if !began {
		return err
	}
	fmt.Println(err != nil && strings.Contains(err.Error(), string(projectlock.LeaseStale)), entered)
	return nil
}

// stop stops a program that is not in the middle of a renewal, where it would keep
// the others out.
func stop(t *testing.T, cmd *exec.Cmd, dir string) {
	t.Helper()
	guard, err := os.OpenFile(filepath.Join(dir, "project", ".lock.guard"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = guard.Close() }()
	if err := errors.Join(syscall.Flock(int(guard.Fd()), syscall.LOCK_EX), cmd.Process.Signal(syscall.SIGSTOP)); err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Wait4(cmd.Process.Pid, nil, syscall.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
}

func TestAProgramThatWasStoppedForLongerThanItsTTLFindsItsLeaseStaleOnce(t *testing.T) {
	dir := t.TempDir()
	cmd, out, _ := program(t, "keep", dir)
	said(t, out)
	stop(t, cmd, dir)
	l, err := projectlock.New(projectlock.Config{Project: "p", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	ls, err := l.Acquire(t.Context(), projectlock.AcquireOptions{Wait: 10 * time.Second, Backoff: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := said(t, out); got != "true 1" {
		t.Errorf("stale, times: %s; want true 1", got)
	}
	if _, err := l.Renew(t.Context(), ls); err != nil {
		t.Errorf("the new holder's: %v", err)
	}
	if err := l.Release(t.Context(), ls, projectlock.ReleaseOptions{}); err != nil {
		t.Error(err)
	}
}
