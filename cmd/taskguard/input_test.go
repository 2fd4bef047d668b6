package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestOnlyRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	pipe, sparse := filepath.Join(dir, "pipe"), filepath.Join(dir, "sparse")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(sparse)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // nothing is written
	if err := f.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		pipe: "not a regular file", dir: "not a regular file", os.DevNull: "not a regular file", "/dev/zero": "not a regular file",
		sparse: "1099511627776 bytes, a document takes at most",
	} {
		for _, command := range []string{"submit", "demo"} {
			o := taskguard(t, vars{}, command, file).want(t, exitFailed, "taskguard "+command+": "+file+": "+want)
			if o.out != "" || strings.Count(o.err, "\n") != 1 {
				t.Errorf("want one line on standard error alone\nstdout: %s\nstderr: %s", o.out, o.err)
			}
		}
	}
}

// A file that says it has no bytes, as those of /proc do, is read no further
// than the limit.
func TestAFileIsReadNoFurtherThanTheLimit(t *testing.T) {
	path := write(t, "big", strings.Repeat("x", maxInput+1))
	if _, err := readFile(path); err == nil || !strings.Contains(err.Error(), "a document takes at most") {
		t.Errorf("got %v, want it refused", err)
	}
	if content, err := readFile(write(t, "fits", strings.Repeat("x", maxInput))); err != nil || len(content) != maxInput {
		t.Errorf("%d bytes, %v, want %d", len(content), err, maxInput)
	}
}

func TestAFilesNameReachesTheTerminalEscaped(t *testing.T) {
	name := "a\x1b[2J\nb"
	o := taskguard(t, vars{}, "submit", name).want(t, exitFailed, `taskguard submit: a\x1b[2J\nb: no such file`)
	if strings.Contains(o.err, "\x1b") {
		t.Errorf("raw: %q", o.err)
	}
}
