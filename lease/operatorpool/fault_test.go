package operatorpool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"taskguard/lease"
	"taskguard/lease/operatorpool"
)

// readOnly writes without permission.
func readOnly(p *operatorpool.Pool) error {
	if os.Getuid() == 0 {
		if err := syscall.Setuid(65534); err != nil {
			return err
		}
	}
	_, err := p.Assign(context.Background(), "kana")
	return printed(err, lease.ErrRefused, syscall.EACCES)
}

// printed prints err if it wraps all of want.
func printed(err error, want ...error) error {
	for _, w := range want {
		if !errors.Is(err, w) {
			return fmt.Errorf("%w; want %w", err, w)
		}
	}
	fmt.Println(err)
	return nil
}

func TestMissingPermissionIsAClearError(t *testing.T) { // O8
	w := newFixture(t)
	w.assign("bystander", "tsukuyomi")
	dir := filepath.Dir(w.path)
	for path, mode := range map[string]os.FileMode{dir: 0o555, filepath.Dir(dir): 0o755} { // the user "nobody" can reach it
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // so that it can be removed
			t.Error(err)
		}
	})
	for _, mode := range []os.FileMode{0o600, 0o644} { // may not even read; may not write
		if err := os.Chmod(w.path, mode); err != nil {
			t.Fatal(err)
		}
		cmd, out := program(t, "read-only", w.path, "A")
		text, err := io.ReadAll(out)
		if err := errors.Join(err, cmd.Wait()); err != nil || !strings.Contains(string(text), "permission denied") {
			t.Errorf("mode %v: it printed %q, %v", mode, text, err)
		}
	}
	w.wantWritten("bystander=tsukuyomi")
}
