package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"taskguard/internal/testing/emulatortest"
)

// shells has how to switch completion on in each shell, and what to type for the completions of a line.
var shells = map[string]struct {
	args       []string
	on, before string
	after      string
}{
	"bash": {
		[]string{"--norc", "-i"},
		"source /usr/share/bash-completion/bash_completion; source <(taskguard completion bash); " +
			"bind 'set show-all-if-ambiguous on'; bind 'set page-completions off'", "", "\t",
	},
	"zsh":  {[]string{"-f", "-i"}, "autoload -Uz compinit; compinit -D; source <(taskguard completion zsh)", "", "\t"},
	"fish": {[]string{"--no-config"}, "taskguard completion fish | source", "complete --do-complete '", "'\n"},
}

func TestHelpIsWrappedAtTheWidthOfTheTerminal(t *testing.T) {
	ours, theirs := terminal(t)
	check(t, unix.IoctlSetWinsize(int(theirs.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 50}))
	cmd := exec.CommandContext(t.Context(), must(os.Executable())(t), "help")
	cmd.Env, cmd.Stdout = append(os.Environ(), "COLUMNS="), theirs
	check(t, cmd.Run())
	text := make([]byte, 1<<16)
	n := must(ours.Read(text))(t)
	if got := longest(strings.ReplaceAll(string(text[:n]), "\r", "")); got > 50 || got < 45 {
		t.Errorf("the longest line has %d characters, want at most 50", got)
	}
}

// Each shell completes in a terminal what somebody types.
func TestEachShellCompletesWhatIsTyped(t *testing.T) {
	t.Parallel()
	dir := exampleFiles(t)
	for shell, s := range shells {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			path, err := exec.LookPath(shell)
			if v := os.Getenv("REQUIRE_SHELLS"); err != nil && (v == "" || v == "0") {
				t.Skipf("%v; REQUIRE_SHELLS=1 makes this a failure", err)
			}
			check(t, err)
			ours, theirs := terminal(t)
			check(t, unix.IoctlSetWinsize(int(theirs.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 160}))
			cmd := exec.CommandContext(t.Context(), path, s.args...)
			cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, theirs, theirs, theirs
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "TERM=dumb", "HOME="+dir,
				`KINDS=[{"fields": {"finished": "DONE"}}, {"name": "order", "collection": "orders"}]`)
			check(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // killed
			screen := &emulatortest.Log{}
			defer func() {
				if t.Failed() {
					t.Logf("%q", screen.String())
				}
			}()
			go func() {
				for text := make([]byte, 4096); ; {
					n, err := ours.Read(text)
					if err != nil {
						return
					}
					_, _ = screen.Write(text[:n])
				}
			}()

			must(ours.WriteString(s.on + "; echo 'read''y'\n"))(t)
			screen.Await(t, "ready")
			for typed, words := range map[string]string{
				"taskguard req": "requeue", "taskguard requeue --dr": "--dry-run", "taskguard help can": "cancel",
				"taskguard status --status ": "QUEUED READY DONE", "taskguard requeue --kind ": "analysis order",
				"taskguard completion ": "bash zsh fish", "taskguard requeue --": "--kind --status --json",
				"taskguard submit rep": "report.txt", "taskguard doctor --service wor": "worker.yaml",
			} {
				seen := len(screen.String())
				must(ours.WriteString(s.before + typed + s.after))(t)
				for word := range strings.FieldsSeq(words) {
					eventually(t, typed+" is completed to "+word, func() bool { return strings.Contains(screen.String()[seen:], word) })
				}
				must(ours.WriteString("\x15"))(t) // Ctrl-U: an empty line
			}
		})
	}
}
