package web_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
	"taskguard/locks/document/server/web"
)

func TestMain(m *testing.M) { os.Exit(examplestest.Main(m, "NODE")) }

// run runs a program in dir and returns what it prints.
func run(t *testing.T, dir string, command ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var errs bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", command, err, out, &errs)
	}
	return out
}

// `make types` writes them.
func TestTypes_Generated(t *testing.T) {
	paths := examplestest.Find(t, "NODE", "node", "npm")
	dir := t.TempDir()
	examplestest.Copy(t, dir, "locks.js")
	run(t, dir, paths[0], filepath.Join(examplestest.Modules(t, paths[1], "testdata"), "typescript", "bin", "tsc"),
		"--declaration", "--emitDeclarationOnly", "--allowJs", "--strict", "--target", "es2022",
		"--lib", "es2022,dom,dom.iterable", "--outDir", "types", "locks.js")
	want, noTypes := os.ReadFile(filepath.Join(dir, "types", "locks.d.ts"))
	got, noFile := web.Files.ReadFile("locks.d.ts")
	must.OK(t, errors.Join(noTypes, noFile))
	if !bytes.Equal(got, want) {
		t.Error("locks.d.ts is not what locks.js declares: make types")
	}
}

// Each author's file compiles as he typed it. The types need no lib dom, which a program that shares them
// with a page may not have.
func TestBothAuthorsFilesCompile(t *testing.T) {
	paths := examplestest.Find(t, "NODE", "node", "npm")
	dir := t.TempDir()
	examplestest.Copy(t, dir, "locks.d.ts", "testdata/seed000.ts", "testdata/seed001.ts")
	tsc := filepath.Join(examplestest.Modules(t, paths[1], "testdata"), "typescript", "bin", "tsc")
	for lib, files := range map[string][]string{"es2022,dom": {"seed000.ts", "seed001.ts"}, "es2022": {"seed001.ts"}} {
		options := []string{paths[0], tsc, "--noEmit", "--strict", "--target", "es2022", "--module", "es2022",
			"--moduleResolution", "bundler", "--lib", lib}
		run(t, dir, append(options, files...)...)
	}
}

// Without a browser, each strategy is unavailable: the lock is refused at once. With a
// server, a lease that was lost is given back before the next acquisition begins, also if onReadonly
// begins it.
func TestPackage_Installed(t *testing.T) {
	paths := examplestest.Find(t, "NODE", "node", "npm")
	dir := t.TempDir()
	packing := exec.CommandContext(t.Context(), paths[1], "pack", "--json", "--offline", "--pack-destination", dir)
	out, err := packing.Output()
	must.OK(t, err)
	var packed []struct {
		Filename string
		Files    []struct{ Path string }
	}
	if err := json.Unmarshal(out, &packed); err != nil || len(packed[0].Files) != 3 {
		t.Fatalf("%s: %v; want locks.js, locks.d.ts, package.json", out, err)
	}
	examplestest.Copy(t, dir, filepath.Join("testdata", "import.mjs"))
	file := "./" + packed[0].Filename
	run(t, dir, paths[1], "install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", file)
	const want = "FALLBACK_LOCK_TTL_MS LOCK_HEARTBEAT_INTERVAL_MS MAX_LOCK_RETRIES ProjectLockEventTarget WEB_LOCK_TTL_MS " +
		"acquireProjectLock confirmProjectLock releaseProjectLock renewProjectLock " +
		"subscribeAllLockEvents subscribeLockEvents subscribeLockTelemetry withProjectLock\n25000 30000 10000 3\n" +
		"ttlMs ttlMs retryLimit 0\nmust ttlMS ttlMS ttlMS\n" +
		`["acquire-denied",false,"acquire-denied",7]` + "\nlease-stale POST PUT DELETE freed POST DELETE freed\n" +
		"POST PUT DELETE freed POST DELETE freed\n" +
		"POST POST PUT PUT DELETE DELETE freed freed POST DELETE freed\n" +
		"attempt error waiting fallback-engaged attempt acquired renew-scheduled attempt renewed renew-scheduled\ntrue"
	if got := string(bytes.TrimSpace(run(t, dir, paths[0], "import.mjs"))); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
