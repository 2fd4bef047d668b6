package operator_test

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

	"go.uber.org/goleak"

	"taskguard/lease"
	"taskguard/locks/operator"
)

// childPath names the state file that the test binary, as another program, may not change.
const childPath = "OPERATOR_TEST_PATH"

func TestMain(m *testing.M) {
	path := os.Getenv(childPath)
	if path == "" {
		goleak.VerifyTestMain(m)
		return
	}
	if err := readOnly(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// readOnly writes without permission.
func readOnly(path string) error {
	if os.Getuid() == 0 {
		if err := syscall.Setuid(65534); err != nil {
			return err
		}
	}
	f, err := operator.Open(path)
	if err != nil {
		return err
	}
	p, err := operator.New(f, path, "A", six, operator.Options{})
	if err != nil {
		return err
	}
	_, err = p.Assign(context.Background(), "kana")
	if !errors.Is(err, lease.ErrRefused) || !errors.Is(err, syscall.EACCES) {
		return fmt.Errorf("%w; want %w and %w", err, lease.ErrRefused, syscall.EACCES)
	}
	fmt.Println(err)
	return nil
}

func TestPermission(t *testing.T) { // O8
	w := newFixture(t)
	w.assign("bystander", "tsukuyomi")
	dir := filepath.Dir(w.path)
	check(t, errors.Join(os.Chmod(dir, 0o555), os.Chmod(filepath.Dir(dir), 0o755))) // "nobody" can reach it
	t.Cleanup(func() { check(t, os.Chmod(dir, 0o700)) })                            //nolint:gosec // so that it can be removed
	for _, mode := range []os.FileMode{0o600, 0o644} {                              // may not even read; may not write
		check(t, os.Chmod(w.path, mode))
		cmd := exec.Command(must(os.Executable())(t))
		cmd.Env, cmd.Stderr = append(os.Environ(), childPath+"="+w.path), t.Output()
		if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), "permission denied") {
			t.Errorf("mode %v: it printed %q, %v", mode, out, err)
		}
	}
	w.wantWritten("bystander=tsukuyomi")
}
