// Package examplestest runs the examples for applications against `taskguard
// local`.
package examplestest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
	"taskguard/orchestrator"
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
	must.OK(t, os.WriteFile(script, []byte(analyzer), 0o700))
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
	run.Env = append(os.Environ(), "CGO_ENABLED=0") // the images are built without it too
	Output(t, run)
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
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
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
	return append(env, "METADATA_SERVER_DETECTION=none") // Google's Node clients read it
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
		paths = append(paths, must.Get(exec.LookPath(name))(t))
	}
	return paths
}

func wanted(tool string) bool {
	v := os.Getenv("REQUIRE_" + tool)
	return v != "" && v != "0"
}

// Continues runs the analyzer of an example twice: over three pages, and then over five from the newest
// checkpoint of the first run. Each run must report only the pages that are new to it.
func Continues(t *testing.T, spec string) {
	t.Helper()
	var newest json.RawMessage
	for _, pages := range [][]int{{1, 2, 3}, {4, 5}} {
		last, reported := pages[len(pages)-1], &reports{t: t}
		job := orchestrator.Job{Resume: newest, Reporter: reported}
		// The text in name must not pass for the number of pages.
		job.Input = fmt.Appendf(nil, `{"name":"\"pages\": 7","pages":%d,"seconds":0}`, last)
		result, err := Ask(t, spec, job)

		want := map[string]any{"sum": int64(last * (last + 1) / 2)}
		if err != nil || !reflect.DeepEqual(result, want) || !slices.Equal(reported.pages, pages) {
			t.Errorf("from %s: %v, %v after the pages %v, want %v after %v", newest, result, err, reported.pages, want, pages)
		}
		newest = reported.newest
	}
}

// reports is a Reporter that keeps the pages that are done, and the newest checkpoint.
type reports struct {
	orchestrator.Reporter // nil: these analyzers never call Commit

	t      *testing.T
	pages  []int
	newest json.RawMessage
}

func (r *reports) Report(report orchestrator.Report) {
	var state struct{ Done int }
	r.newest, _ = json.Marshal(report.Checkpoint)
	if err := json.Unmarshal(r.newest, &state); err != nil || report.Message == nil {
		r.t.Errorf("a report without a checkpoint or a message: %s, %v", r.newest, err)
	}
	r.pages = append(r.pages, state.Done)
}

func (r *reports) Invalid(problem string) { r.t.Error(problem) }

// users are the ids, and for some of them the names and the ids for others, of sessions.
var users = [][]string{
	{"user_7-x"}, {"8", "つくよみ, A. \"B\" <c>"}, {"a.b+c@x.test"}, {"7.1800000000"}, {"あ/%41;~!*'() ="}, {"9", "Ann", "u9"}, {"10", "", "あ"},
}

// Session checks the sessions that an example command makes for the document lock.
func Session(t *testing.T, command ...string) {
	t.Helper()
	const secret = "secretsecretsecretsecretsecretsecret"
	caller := func(secret string, r *http.Request) (server.Caller, error) {
		cookies, err := server.NewCookies([]byte(secret))
		if err != nil {
			return server.Caller{}, err
		}
		return cookies.Caller(httptest.NewRecorder(), r, false)
	}
	run := func(user ...string) ([]byte, error) {
		args := slices.Concat(command[1:], user)
		cmd := exec.CommandContext(t.Context(), command[0], args...) //nolint:gosec // the test's own
		cmd.Env = append(os.Environ(), "SESSION_SECRET="+secret)
		return cmd.Output()
	}
	if out, err := run(""); err == nil {
		t.Errorf("an empty id gives %s", out)
	}

	for _, user := range users {
		out := must.Get(run(user...))(t)
		r := &http.Request{Header: http.Header{"Cookie": {strings.TrimSpace(string(out))}}}
		shown := slices.Concat(user[1:], []string{"", ""})
		want := document.Profile{Name: shown[0], User: shown[1]}
		if got, err := caller(secret, r); err != nil || got.Owner != "session/"+url.PathEscape(user[0]) || got.Profile != want {
			t.Errorf("%s: got %+v, %v, want %q", out, got, err, user)
		}
		if got, _ := caller(secret+"x", r); got.Owner != "" {
			t.Errorf("%s is accepted with another secret", out)
		}
	}
}

// Modules returns the directory of the npm packages that folder/package-lock.json names. It
// is in the user's cache: npm takes longer than the test, so it runs only once for each
// content of package-lock.json, also if tests or packages that run in parallel need it.
func Modules(t *testing.T, npm, folder string) (modules string) {
	t.Helper()
	cache := must.Get(os.UserCacheDir())(t)
	lock := must.Get(os.ReadFile(filepath.Join(folder, "package-lock.json")))(t)
	installed := filepath.Join(cache, fmt.Sprintf("taskguard-example-%x", sha256.Sum256(lock)))
	modules = filepath.Join(installed, "node_modules")
	must.OK(t, os.MkdirAll(cache, 0o700))
	guard := must.Get(os.Create(installed + ".lock"))(t)
	defer guard.Close() //nolint:errcheck // frees the lock
	must.OK(t, syscall.Flock(int(guard.Fd()), syscall.LOCK_EX))
	if _, err := os.Stat(modules); err == nil {
		return modules
	}

	dir := must.Get(os.MkdirTemp(cache, "taskguard-example-"))(t) //nolint:usetesting // it is renamed within the cache
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	Copy(t, dir, filepath.Join(folder, "package.json"), filepath.Join(folder, "package-lock.json"))

	ci := exec.CommandContext(t.Context(), npm, "ci", "--ignore-scripts", "--prefer-offline",
		"--fetch-retries=1", "--fetch-timeout=60000", "--no-audit", "--no-fund")
	ci.Dir = dir
	Output(t, ci)
	must.OK(t, os.Rename(dir, installed))
	return modules
}

// Copy copies files into dir.
func Copy(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		data := must.Get(os.ReadFile(name))(t)
		must.OK(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), data, 0o600))
	}
}
