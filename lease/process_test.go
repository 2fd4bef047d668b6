//go:build unix

package lease_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"taskguard/lease"
)

// fullDir names the directory that the test binary, as another program, finds full.
const fullDir = "LEASE_TEST_FULL"

func TestMain(m *testing.M) {
	dir := os.Getenv(fullDir)
	if dir == "" {
		goleak.VerifyTestMain(m)
		return
	}
	if err := full(lease.NewFile(dir, "guard", jsonFormat{})); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// full writes where no file may be larger than 64 bytes, which fails as a full disk
// does.
func full(f *lease.File[job]) error {
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 64, Max: 64}); err != nil {
		return err
	}
	c, err := f.Load(context.Background(), "a", lease.OnlyLease)
	if err != nil {
		return err
	}
	if _, err = f.Swap(context.Background(), "a", c, job{Note: "second"}); !errors.Is(err, syscall.EFBIG) || errors.Is(err, lease.ErrRefused) {
		return fmt.Errorf("swap: %w; want %w", err, syscall.EFBIG)
	}
	return nil
}

func TestAFullDiskChangesNothing(t *testing.T) {
	f, path := newFile(t)
	before := loadFile(t, f)
	exe, err := os.Executable()
	fatal(t, err)
	cmd := exec.Command(exe)
	cmd.Env, cmd.Stderr = append(os.Environ(), fullDir+"="+filepath.Dir(path)), t.Output()
	check(t, cmd.Run())
	if got := loadFile(t, f); got.Rev != before.Rev {
		t.Errorf("%+v; want it as it was", got)
	}
	if _, err := os.Lstat(path + ".tmp"); err == nil {
		t.Error("the temporary file is still there")
	}
}
