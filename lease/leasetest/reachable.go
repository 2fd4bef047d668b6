package leasetest

import (
	"os"
	"testing"
)

// Reachable is a new directory that another account can enter, as TMPDIR may not
// let it. It is removed at the end of the test.
func Reachable(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "lease") //nolint:usetesting // TMPDIR may be nobody else's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // a temporary directory
		t.Fatal(err)
	}
	return dir
}
