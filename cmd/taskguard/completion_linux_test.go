package main

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
)

func TestHelp_Terminal(t *testing.T) {
	ours, theirs := terminal(t, 50)
	cmd := exec.CommandContext(t.Context(), must.Get(os.Executable())(t), "help")
	cmd.Env, cmd.Stdout = append(os.Environ(), "COLUMNS="), theirs
	must.OK(t, cmd.Run())
	text := make([]byte, 1<<16)
	n := must.Get(ours.Read(text))(t)
	if got := longest(strings.ReplaceAll(string(text[:n]), "\r", "")); got > 50 || got < 45 {
		t.Errorf("the longest line has %d characters, want at most 50", got)
	}
}

// shells has how to switch completion on in each shell, and what to type around a line for its completions.
var shells = map[string]struct {
	args              []string
	on, before, after string
}{
	"bash": {
		args: []string{"--norc", "-i"},
		on: "source /usr/share/bash-completion/bash_completion; source <(taskguard completion bash); " +
			"bind 'set show-all-if-ambiguous on'; bind 'set page-completions off'",
		after: "\t",
	},
	"zsh": {
		args:  []string{"-f", "-i"},
		on:    "autoload -Uz compinit; compinit -D; source <(taskguard completion zsh)",
		after: "\t",
	},
	"fish": {
		args:   []string{"--no-config"},
		on:     "taskguard completion fish | source",
		before: "complete --do-complete '", after: "'\n",
	},
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	dir := exampleFiles(t)
	for shell, s := range shells {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			path, err := exec.LookPath(shell)
			if required := os.Getenv("REQUIRE_SHELLS"); err != nil && strings.Trim(required, "0") == "" {
				t.Skipf("%v; REQUIRE_SHELLS=1 makes this a failure", err)
			}
			must.OK(t, err)
			ours, theirs := terminal(t, 160)
			cmd := exec.CommandContext(t.Context(), path, s.args...)
			cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, theirs, theirs, theirs
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "TERM=dumb", "HOME="+dir,
				`KINDS=[{"fields": {"finished": "DONE"}}, {"name": "order", "collection": "orders"}]`)
			must.OK(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // killed
			screen := &emulatortest.Log{}
			go func() { _, _ = io.Copy(screen, ours) }()

			must.Get(ours.WriteString(s.on + "; echo 'read''y'\n"))(t)
			screen.Await(t, "ready")
			for typed, words := range map[string]string{
				"taskguard req": "requeue", "taskguard requeue --dr": "--dry-run", "taskguard help can": "cancel",
				"taskguard status --status ": "QUEUED READY DONE", "taskguard requeue --kind ": "analysis order",
				"taskguard completion ": "bash zsh fish", "taskguard requeue --": "--kind --status --json",
				"taskguard submit rep": "report.txt", "taskguard doctor --service wor": "worker.yaml",
			} {
				seen := len(screen.String())
				must.Get(ours.WriteString(s.before + typed + s.after))(t)
				for word := range strings.FieldsSeq(words) {
					eventually(t, typed+" is completed to "+word, func() bool {
						return strings.Contains(screen.String()[seen:], word)
					})
				}
				must.Get(ours.WriteString("\x15"))(t) // Ctrl-U: an empty line
			}
		})
	}
}
