//go:build unix

package projectlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"taskguard/lease/leasetest"
	"taskguard/lease/projectlock"
)

// readOnly acquires as somebody who may not write.
func readOnly(l *projectlock.Locker, dir string) error {
	if err := os.Chmod(dir, 0o555); err != nil { //nolint:gosec // for nobody to look into
		return err
	}
	if os.Getuid() == 0 {
		if err := syscall.Setuid(65534); err != nil {
			return err
		}
	}
	return refused(l, projectlock.AcquireDenied)
}

// fullDisk acquires where no file may have a byte, which fails in the way of a
// full disk.
func fullDisk(l *projectlock.Locker, _ string) error {
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 8, Max: 8}); err != nil {
		return err
	}
	return refused(l, projectlock.AcquireTimeout)
}

func refused(l *projectlock.Locker, code projectlock.Code) error {
	_, err := l.Acquire(context.Background(), once(0))
	var e *projectlock.Error
	if !errors.As(err, &e) || e.Code != code || l.State() != projectlock.Readonly {
		return fmt.Errorf("%w, %s; want %s", err, l.State(), code)
	}
	fmt.Println("refused")
	return nil
}

func TestWhereNothingCanBeWrittenNothingIsLeft(t *testing.T) {
	for _, name := range []string{"read-only", "full"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if os.Getuid() == 0 { // the program will be nobody, and gets through to the directory wherever TMPDIR is
				dir = leasetest.Reachable(t)
			}
			_, out, _ := program(t, name, dir)
			if got := said(t, out); got != "refused" {
				t.Errorf("it said %q", got)
			}
			entries, err := os.ReadDir(filepath.Join(dir, "project"))
			if err == nil && (len(entries) != 1 || entries[0].Name() != ".lock.guard") {
				t.Errorf("left behind: %v", entries)
			}
		})
	}
}
