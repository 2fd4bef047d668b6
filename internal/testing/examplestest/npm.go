package examplestest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Modules returns the directory of the npm packages that folder/package-lock.json names. It
// is in the user's cache: npm takes longer than the test, so it runs only once for each
// content of package-lock.json.
func Modules(t *testing.T, npm, folder string) (modules string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.ReadFile(filepath.Join(folder, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	installed := filepath.Join(cache, fmt.Sprintf("taskguard-example-%x", sha256.Sum256(lock)))
	modules = filepath.Join(installed, "node_modules")
	if _, err := os.Stat(modules); err == nil {
		return modules
	}

	if err := os.MkdirAll(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(cache, "taskguard-example-") //nolint:usetesting // it is renamed within the cache
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	Copy(t, dir, filepath.Join(folder, "package.json"), filepath.Join(folder, "package-lock.json"))

	ci := exec.CommandContext(t.Context(), npm, "ci", "--ignore-scripts", "--prefer-offline",
		"--fetch-retries=1", "--fetch-timeout=60000", "--no-audit", "--no-fund")
	ci.Dir = dir
	if out, err := ci.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	if err := os.Rename(dir, installed); err != nil {
		t.Fatal(err)
	}
	return modules
}

// Copy copies files into dir.
func Copy(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
