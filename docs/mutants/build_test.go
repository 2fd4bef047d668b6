package mutants

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// root is the module's, from this package's folder.
const root = "../.."

// switchboard is compiled into a mutated package.
const switchboard = `package %s

import (
	"os"
	"strconv"
	"sync/atomic"
)

var (
	mutatedID, _   = strconv.Atoi(os.Getenv("MUTANT"))
	mutatedLog     = os.Getenv("MUTANTS_REACHED")
	mutatedReached [%d]atomic.Bool
)

func mutated(id int) bool {
	if mutatedLog != "" && !mutatedReached[id].Swap(true) {
		// A process of another user cannot open it.
		if f, err := os.OpenFile(mutatedLog, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			_, _ = f.WriteString(strconv.Itoa(id) + " ")
			_ = f.Close()
		}
	}
	return id == mutatedID
}

func mutatedZero[T any](id int, v T) (zero T) {
	if mutated(id) {
		return zero
	}
	return v
}

func mutatedNumber[T any](id int, mutant, v T) T {
	if mutated(id) {
		return mutant
	}
	return v
}
`

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// overlay returns a file for the go command's option of that name: these files
// replace the tree's, or are added to it.
func overlay(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, replace := t.TempDir(), map[string]string{}
	write := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, data, 0o600)); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for file, text := range files {
		original, err := filepath.Abs(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		replace[original] = write(file, []byte(text))
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	return write("overlay.json", data)
}

// buildTests compiles the tests of a package into a file of dir.
func buildTests(t *testing.T, dir, pkg, overlay string) (binary string) {
	t.Helper()
	binary = binaryOf(dir, pkg)
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay="+overlay, "-o", binary, "./"+pkg)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", pkg, err, out)
	}
	return binary
}

func binaryOf(dir, pkg string) string {
	return filepath.Join(dir, strings.ReplaceAll(pkg, "/", "_")+".test")
}

// execute runs a package's tests. A loop without an end gets no more than 4 GiB.
// Of the variables of the proofs the tests see those of env alone.
func execute(t *testing.T, pkg, binary string, env []string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", `ulimit -d 4194304; exec "$0" "$@"`, binary}, args...)...)
	cmd.Dir, cmd.WaitDelay = filepath.Join(root, pkg), time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a mutant may send a signal to its own group
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "EXPLORE_") || strings.HasPrefix(e, "SIMULATE_") || strings.HasPrefix(e, "MUTANT")
	}), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// end is the last of a test's output.
func end(out string) string { return out[max(0, len(out)-4096):] }
