//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// held is a taskguard hold in a process of its own.
type held struct {
	*exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs bytes.Buffer
}

// startHold starts hold --project p FLAGS with the environment env added.
func startHold(t *testing.T, env vars, args ...string) *held {
	t.Helper()
	return startHoldTo(t, nil, env, args...)
}

// startHoldTo is startHold with a standard error; nil: h.errs.
func startHoldTo(t *testing.T, stderr *os.File, env vars, args ...string) *held {
	t.Helper()
	exe := must(os.Executable())(t)
	h := &held{Cmd: exec.Command(exe, append([]string{"hold", "--project", "p"}, args...)...)}
	h.Env = os.Environ()
	for _, name := range []string{"GOOGLE_CLOUD_PROJECT", "FIRESTORE_EMULATOR_HOST"} {
		h.Env = append(h.Env, name+"="+env[name])
	}
	h.Stderr = &h.errs
	if stderr != nil {
		h.Stderr = stderr
	}
	h.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that signals to it are to it alone
	out, err := h.StdoutPipe()
	check(t, err)
	if h.in, err = h.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	h.out = bufio.NewReader(out)
	check(t, h.Start())
	t.Cleanup(func() { _ = h.Process.Kill(); _ = h.Wait() }) // if it still lives
	return h
}

// line returns the next line of the command.
func (h *held) line(t *testing.T) string {
	t.Helper()
	line, err := h.out.ReadString('\n')
	if err != nil {
		_ = h.Wait()
		t.Fatalf("%q, %v; standard error: %s", line, err, h.errs.String())
	}
	return strings.TrimSuffix(line, "\n")
}

// end waits for the end, and returns the rest of the standard output.
func (h *held) end(t *testing.T, code int, parts ...string) string {
	t.Helper()
	rest, err := io.ReadAll(h.out)
	if err != nil {
		t.Error(err)
	}
	_ = h.Wait() // the exit code is checked
	if got := h.ProcessState.ExitCode(); got != code {
		t.Errorf("exit %d; want %d; standard error: %s", got, code, h.errs.String())
	}
	for _, part := range parts {
		if !strings.Contains(h.errs.String(), part) {
			t.Errorf("standard error: %s\nwant %q in it", h.errs.String(), part)
		}
	}
	return string(rest)
}

func TestHoldExitsAsItsCommandDoes(t *testing.T) {
	t.Parallel()
	plain := filepath.Join(t.TempDir(), "plain")
	script := filepath.Join(t.TempDir(), "script")
	check(t, errors.Join(os.WriteFile(plain, []byte("x"), 0o600), os.WriteFile(script, []byte("#!/no/such\n"), 0o700)))
	for name, c := range map[string]struct {
		args   []string
		code   int
		stderr string
	}{
		"success":        {[]string{"--", "true"}, 0, "GOOGLE_CLOUD_PROJECT is not set"},
		"a status":       {[]string{"sh", "-c", "exit 37"}, 37, ""},
		"a signal":       {[]string{"--", "sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		"not found":      {[]string{"--", "no-such-command"}, 127, "taskguard hold: no-such-command"},
		"no such path":   {[]string{"--", "/no/such/command"}, 127, "/no/such/command"},
		"not executable": {[]string{"--", plain}, 126, "permission denied"},
		"no interpreter": {[]string{"--", script}, 127, script},
		"no directory":   {[]string{"--dir", plain, "true"}, 1, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startHold(t, vars{}, append([]string{"--dir", t.TempDir()}, c.args...)...)
			if out := h.end(t, c.code, c.stderr); out != "" {
				t.Errorf("standard output: %q; want nothing", out)
			}
		})
	}
}

func TestHoldPassesStreamsAndEnvironmentThrough(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := startHold(t, vars{}, "--dir", dir, "--", "sh", "-c", `echo "$PROJECT_LOCK_STRATEGY $PROJECT_LOCK_ID $PROJECT_LOCK_TOKEN"; cat; echo err >&2`)
	words := strings.Fields(h.line(t))
	var record struct {
		UUID  string
		Token int64
	}
	data, err := os.ReadFile(filepath.Join(dir, "project", ".lock"))
	check(t, errors.Join(err, json.Unmarshal(data, &record)))
	if want := []string{"file-lock", record.UUID, strconv.FormatInt(record.Token, 10)}; strings.Join(words, " ") != strings.Join(want, " ") {
		t.Errorf("environment %q; want %q", words, want)
	}
	all := bytes.Repeat([]byte("\x00\xff\r\n"), 100_000)
	go func() {
		_, _ = h.in.Write(all) // the answer shows it
		_ = h.in.Close()
	}()
	if got := h.end(t, 0, "err\n"); got != string(all) {
		t.Errorf("%d bytes came back; want the %d sent", len(got), len(all))
	}
	if _, err := os.Stat(filepath.Join(dir, "project", ".lock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock file: %v; want none", err)
	}
}

func TestHoldForwardsSignalsToTheWholeGroup(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			// A child of sh answers, which shows that the signal reached the whole group.
			script := `trap : INT TERM HUP QUIT USR1 USR2; (trap 'echo got; exit 0' INT TERM HUP QUIT USR1 USR2; echo up; while :; do sleep 0.05; done); exit 5`
			h := startHold(t, vars{}, "--dir", t.TempDir(), "--", "sh", "-c", script)
			if got := h.line(t); got != "up" {
				t.Fatal(got)
			}
			check(t, h.Process.Signal(s))
			if got := h.end(t, 5); got != "got\n" {
				t.Errorf("the command printed %q; want got", got)
			}
		})
	}
}

func TestASignalEndsTheWaitForTheLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := startHold(t, vars{}, "--dir", dir, "--", "sh", "-c", "echo up; cat")
	first.line(t)
	second := startHold(t, vars{}, "--dir", dir, "--wait", "1h", "--json", "--telemetry", "--", "echo", "never")
	appears(t, dir, "project/autosave/lock-*.jsonl")
	check(t, second.Process.Signal(syscall.SIGTERM))
	if out := second.end(t, 128+15, "interrupted"); out != "" {
		t.Errorf("the command ran: %q", out)
	}
	_ = first.in.Close()
	first.end(t, 0)
}

func TestHoldOfALockedProjectExits1AfterThreeAttempts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := startHold(t, vars{}, "--dir", dir, "--", "sh", "-c", "echo up; cat")
	first.line(t)
	second := startHold(t, vars{}, "--dir", dir, "--json", "--", "echo", "never")
	if out := second.end(t, 1, "project p is locked by another program or browser (file project/.lock) until 2", "(fallback-conflict)", `"type":"lock:readonly-entered"`); out != "" {
		t.Errorf("the command ran: %q", out)
	}
	if n := strings.Count(second.errs.String(), `"type":"lock:attempt"`); n != 1+3 {
		t.Errorf("%d attempts; want one remote and three for the file", n)
	}
	third := startHold(t, vars{}, "--dir", dir, "--wait", "1m", "--telemetry", "--", "echo", "mine")
	_ = first.in.Close()
	first.end(t, 0)
	if out := third.end(t, 0); out != "mine\n" {
		t.Errorf("%q; want it to have waited", out)
	}
	names, err := filepath.Glob(filepath.Join(dir, "project", "autosave", "*.jsonl"))
	if err != nil || len(names) == 0 { // two at midnight
		t.Errorf("%v, %v; want telemetry", names, err)
	}
}
