// Package examplestest runs the examples for applications against `taskguard
// local`.
package examplestest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// analyzer returns its job as the result. It rejects the text "refuse".
const analyzer = `#!/bin/sh
job=$(cat)
case "$job" in *'"refuse"'*) echo "refused by the analyzer" >&2; exit 65;; esac
printf '%s' "$job"
`

// Check runs the example command, with ID and TEXT as its last arguments, in dir. The last two lines
// that it prints are a status, and a result or an error.
func Check(t *testing.T, dir string, command ...string) {
	t.Helper()
	script := filepath.Join(t.TempDir(), "analyzer")
	if err := os.WriteFile(script, []byte(analyzer), 0o700); err != nil {
		t.Fatal(err)
	}
	env := Start(t, "local", "ANALYZER=exec:"+script)
	submit := func(id, text string) (status, output string, exit int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		var out, errs bytes.Buffer
		cmd := exec.CommandContext(ctx, command[0], slices.Concat(command[1:], []string{id, text})...) //nolint:gosec // the test's own
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, &out, &errs
		err := cmd.Run()

		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) < 2 {
			t.Fatalf("%q: %v, printed %q, want a status and a result or an error\n%s", command, err, lines, &errs)
		}
		return lines[len(lines)-2], lines[len(lines)-1], cmd.ProcessState.ExitCode()
	}

	// The second submission finds the document, which keeps its input and result.
	for _, text := range []string{"first", "second"} {
		status, output, exit := submit("an-id", text)
		var result struct{ Input struct{ Text string } }
		err := json.Unmarshal([]byte(output), &result)
		if err != nil || exit != 0 || status != "READY" || result.Input.Text != "first" {
			t.Errorf("submitting %s: exit %d, %s, %q; want READY and the first result", text, exit, status, output)
		}
	}

	status, output, exit := submit("another", "refuse")
	if exit != 1 || status != "FAILED" || !strings.Contains(output, "refused by the analyzer") {
		t.Errorf("exit %d, %s, %q; want 1, FAILED and the analyzer's message", exit, status, output)
	}
}

// Build returns the program of a main package. Unlike go build, go run keeps linked programs
// in Go's cache.
func Build(t *testing.T, pkg string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "program")
	run := exec.CommandContext(t.Context(), "go", "run", "-exec", "cp", pkg, program)
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// Start runs the command local or emulator of taskguard, with more variables, until the test ends.
// It returns the environment that it prints.
func Start(t *testing.T, command string, variables ...string) (env []string) {
	t.Helper()
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		env = append(env, name+"="+os.Getenv(name))
	}

	var progress bytes.Buffer
	cmd := exec.CommandContext(t.Context(), Build(t, "taskguard/cmd/taskguard"), command, "--port", "0", "--json")
	cmd.Env, cmd.Stderr = slices.Concat(env, variables), &progress
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Wait(); t.Failed() || cmd.ProcessState.ExitCode() != 0 {
			t.Errorf("taskguard %s: %v\n%s", command, err, &progress)
		}
	})

	var printed struct{ Environment map[string]string }
	if err := json.NewDecoder(out).Decode(&printed); err != nil {
		t.Fatalf("taskguard %s prints no environment: %v", command, err)
	}
	for name, value := range printed.Environment {
		env = append(env, name+"="+value)
	}
	return append(env, "METADATA_SERVER_DETECTION=none") // for Google's Node clients
}

// Main runs the tests of a package that all need a tool. Unless REQUIRE_tool is set (to anything
// but "" or "0") it runs none, and go test reports [no tests to run]. It returns the code with
// which TestMain exits.
func Main(m *testing.M, tool string) int {
	if wanted(tool) {
		return m.Run()
	}
	// After this line, which it shows for no package that passes, go test prints [no tests to run].
	fmt.Println("testing: warning: no tests to run")
	return 0
}

// Find returns the paths of a tool's programs, and fails the test if one is missing. Unless
// REQUIRE_tool is set, it skips the test.
func Find(t *testing.T, tool string, programs ...string) (paths []string) {
	t.Helper()
	if !wanted(tool) {
		t.Skipf("REQUIRE_%s is not set", tool)
	}
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func wanted(tool string) bool {
	v := os.Getenv("REQUIRE_" + tool)
	return v != "" && v != "0"
}
