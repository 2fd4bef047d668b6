package operator_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"taskguard/internal/testing/must"
	"taskguard/lease"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Another process, of another user, may not change the state file. O8
func TestPermission(t *testing.T) {
	const childPath = "OPERATOR_TEST_PATH"
	if path := os.Getenv(childPath); path != "" {
		if os.Getuid() == 0 {
			must.OK(t, syscall.Setuid(65534))
		}
		err := (&fixture{T: t, path: path}).try("A", "kana")
		wantErr(t, err, lease.ErrRefused)
		wantErr(t, err, syscall.EACCES)
		return
	}

	w := newFixture(t)
	w.assign("bystander", "tsukuyomi")
	dir := filepath.Dir(w.path)
	must.OK(t, errors.Join(os.Chmod(dir, 0o555), os.Chmod(filepath.Dir(dir), 0o755))) // it can be reached

	t.Cleanup(func() { must.OK(t, os.Chmod(dir, 0o700)) }) //nolint:gosec // so that it can be removed

	for _, mode := range []os.FileMode{0o600, 0o644} { // it may not even read; it may not write
		must.OK(t, os.Chmod(w.path, mode))
		cmd := exec.Command(must.Get(os.Executable())(t), "-test.run=^TestPermission$")
		cmd.Env, cmd.Stdout = append(os.Environ(), childPath+"="+w.path), t.Output()
		must.OK(t, cmd.Run())
	}
	w.wantWritten("bystander=tsukuyomi")
}
