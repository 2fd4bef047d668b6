package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
)

// asProgram makes the test binary behave as operator-manager itself.
const asProgram = "OPERATOR_MANAGER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	emulatortest.Isolate()
	os.Exit(m.Run())
}

// terminal is where one session's commands are typed.
type terminal struct {
	*testing.T
	env   map[string]string
	flags []string
}

// outcome is the result of one command.
type outcome struct {
	code     int
	out, err string
}

// newState is a state file that terminals may share.
func newState(t *testing.T) string { return filepath.Join(t.TempDir(), "state.json") }

// written is a file with the content.
func written(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "o.json")
	must.OK(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// open is a terminal of that session, with the operators of the sample.
func open(t *testing.T, state, session string) terminal {
	flags := []string{"--operators", "operators.json", "--state", state}
	return terminal{t, map[string]string{"TERM_SESSION_ID": session}, flags}
}

func (t terminal) run(args ...string) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), append(t.flags, args...), surroundings{
		out: &out, err: &errs, hostname: os.Hostname,
		getenv: func(name string) string { return t.env[name] },
	})
	return outcome{code, out.String(), errs.String()}
}

// done requires that the command is done, and its output has the text.
func (t terminal) done(text string, args ...string) {
	t.Helper()
	got := t.run(args...)
	if want := (outcome{exitDone, got.out, ""}); got != want || !strings.Contains(got.out, text) {
		t.Errorf("%v: %+v; want %q", args, got, text)
	}
}

// refused requires that the command exits 1, and its error has the text.
func (t terminal) refused(text string, args ...string) {
	t.Helper()
	got := t.run(args...)
	if want := (outcome{exitFailed, "", got.err}); got != want || !strings.Contains(got.err, text) {
		t.Errorf("%v: %+v; want it refused with %q", args, got, text)
	}
}

// program is the same command as a process of its own, as a shell starts it.
func (t terminal) program(args ...string) *exec.Cmd {
	t.Helper()
	return t.in(exec.Command(must.Get(os.Executable())(t), append(t.flags, args...)...))
}

// in is cmd in the terminal's environment.
func (t terminal) in(cmd *exec.Cmd) *exec.Cmd {
	of := regexp.MustCompile(`^(I?TERM_SESSION_ID|LANG|LC_[A-Z]+)=`)
	for _, v := range os.Environ() {
		if !of.MatchString(v) {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, asProgram+"=1")
	for name, value := range t.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}
