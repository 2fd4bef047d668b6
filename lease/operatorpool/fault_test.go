//go:build unix

package operatorpool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"taskguard/lease"
	"taskguard/lease/operatorpool"
)

// full writes where no file may be larger, in the way of a full disk.
func full(p *operatorpool.Pool) error {
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 64, Max: 64}); err != nil {
		return err
	}
	_, err := p.Assign(context.Background(), "kana")
	return said(err, lease.ErrUnavailable, syscall.EFBIG)
}

// readOnly writes as somebody who may not.
func readOnly(p *operatorpool.Pool) error {
	if os.Getuid() == 0 {
		if err := syscall.Setuid(65534); err != nil {
			return err
		}
	}
	_, err := p.Assign(context.Background(), "kana")
	return said(err, lease.ErrRefused, syscall.EACCES)
}

// said prints err if it is all of these.
func said(err error, want ...error) error {
	for _, w := range want {
		if !errors.Is(err, w) {
			return fmt.Errorf("%w; want %w", err, w)
		}
	}
	fmt.Println(err)
	return nil
}

func TestAFullDiskIsAClearErrorAndChangesNothing(t *testing.T) { // O8
	w := newWorld(t)
	w.assign("bystander", "tsukuyomi")
	cmd, out := program(t, "full", w.path, "A")
	text, err := io.ReadAll(out)
	if err := errors.Join(err, cmd.Wait()); err != nil || !strings.Contains(string(text), "file too large") {
		t.Errorf("it said %q, %v", text, err)
	}
	w.wantWritten("bystander=tsukuyomi")
	if _, err := os.Stat(w.path + ".tmp"); err == nil {
		t.Error("the temporary file is still there")
	}
}

func TestWhatAKilledWriterHadBegunIsIgnored(t *testing.T) { // O8
	w := newWorld(t)
	w.assign("bystander", "tsukuyomi")
	if err := os.WriteFile(w.path+".tmp", []byte(`{"storage":{"A":{"da`), 0o600); err != nil {
		t.Fatal(err)
	}
	w.assign("A", "kana")
	w.wantWritten("bystander=tsukuyomi", "A=kana")
}

func TestMissingPermissionIsAClearError(t *testing.T) { // O8
	w := newWorld(t)
	w.assign("bystander", "tsukuyomi")
	dir := filepath.Dir(w.path)
	for path, mode := range map[string]os.FileMode{dir: 0o555, filepath.Dir(dir): 0o755} { // who is nobody gets there
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
			t.Errorf("mode %v: it said %q, %v", mode, text, err)
		}
	}
	w.wantWritten("bystander=tsukuyomi")
}
