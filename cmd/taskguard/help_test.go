package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/iso8601"
)

// shownCommands are the commands that the help lists.
func shownCommands(t testing.TB) []*cobra.Command {
	t.Helper()
	root := cli.Root(commands(), vars{}.lookup)
	root.InitDefaultHelpCmd()
	all := slices.DeleteFunc(root.Commands(), func(c *cobra.Command) bool { return c.Hidden })
	if len(all) < 19 {
		t.Fatalf("%d commands", len(all))
	}
	return all
}

// longest returns the number of characters of the longest line.
func longest(text string) (n int) {
	for line := range strings.Lines(text) {
		n = max(n, len([]rune(strings.TrimSuffix(line, "\n"))))
	}
	return n
}

func TestHelpIsAsWideAsItsTerminal(t *testing.T) {
	for _, c := range shownCommands(t) {
		for columns, want := range map[string]int{"": 80, "50": 50, "x": 80} {
			text := taskguard(t, vars{"COLUMNS": columns}, "help", c.Name()).want(t, cli.ExitDone, "taskguard "+c.Name()).out
			if want < 80 { // examples are not broken, and the names of flags leave too little room
				text, _, _ = strings.Cut(text, "\nExamples:\n")
			}
			if n := longest(text); n > want {
				t.Errorf("help %s has a line of %d characters with COLUMNS=%s, want at most %d", c.Name(), n, columns, want)
			}
		}
	}
	for columns, want := range map[string]int{"80": 80, "50": 50} {
		if n := longest(taskguard(t, vars{"COLUMNS": columns}, "help").out); n > want {
			t.Errorf("help has a line of %d characters, want at most %d", n, want)
		}
	}
	if n := longest(taskguard(t, vars{"COLUMNS": "200"}, "help", "run").out); n <= 100 {
		t.Errorf("with COLUMNS=200 the longest line has %d characters", n)
	}
}

var listedCommand = regexp.MustCompile("(?m)^\\| `taskguard ([^`]+)` \\|")

func TestTheReferenceListsEachCommandWithItsArguments(t *testing.T) {
	_, page, _ := strings.Cut(string(must(os.ReadFile("../../docs/reference.md"))(t)), "\n### The commands\n")
	page, _, _ = strings.Cut(page, "\n#### ")
	listed, want := []string{}, []string{}
	for _, row := range listedCommand.FindAllStringSubmatch(page, -1) {
		listed = append(listed, strings.ReplaceAll(row[1], `\|`, "|"))
	}
	for _, c := range shownCommands(t) {
		want = append(want, strings.Replace(c.Use, " [flags]", "", 1))
	}
	slices.Sort(listed)
	if slices.Sort(want); !slices.Equal(listed, want) {
		t.Errorf("the page lists\n%s\nwant\n%s", strings.Join(listed, "\n"), strings.Join(want, "\n"))
	}
}

// exampleFiles are the files that the examples name.
func exampleFiles(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"report.txt": "a report", "notes.md": "# Notes",
		"transcribe": "#!/bin/sh\necho '\"words\"'\n", "publish.sh": "#!/bin/sh\necho published\n",
		"worker.yaml": string(must(os.ReadFile(shippedFiles + "service.yaml"))(t)),
		"queue.yaml":  string(must(os.ReadFile(shippedFiles + "queue.yaml"))(t)),
	} {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700))
	}
	check(t, os.Symlink(must(os.Executable())(t), filepath.Join(dir, "taskguard")))
	return dir
}

// putExamples writes the analyses that the examples name. Recovery does not find them yet.
func putExamples(t *testing.T, env vars) {
	t.Helper()
	now := iso8601.Format(time.Now())
	for _, id := range []string{"report-3", "report-7", "recording-17"} {
		put(t, env, id, map[string]any{"status": "QUEUED", "updatedAt": now, "input": map[string]any{"text": "x"}})
	}
	put(t, env, "report-8", map[string]any{"status": "FAILED", "updatedAt": now, "error": map[string]any{"code": "ocr_down", "message": "m"}})
	put(t, env, "report-9", map[string]any{"status": "PROCESSING", "updatedAt": now, "lockToken": 3, "lockOwner": "w/1", "lockExpiresAt": now})
	for _, id := range []string{"order-1", "order-2"} {
		put(t, env, id, map[string]any{
			"status": "FAILED", "updatedAt": now, "error": map[string]any{"code": "effect_uncertain", "message": "m"}, "lockToken": 3,
			"openEffects": 1, "effects": map[string]any{"charge": map[string]any{"state": "started", "token": 3, "at": now}},
		})
	}
}

// serving has a text that a command prints when it serves, until Ctrl-C.
var serving = map[string]string{"local": "In another terminal, run the exports", "emulator": "# Ready: ", "console": "the console: http://"}

// Examples are pasted: each does what it says, in a shell, with the analyses that it names.
func TestEachExampleOfTheHelpRuns(t *testing.T) {
	t.Parallel()
	env, _ := localCloud(t, vars{})
	dir := exampleFiles(t)
	putExamples(t, env)
	environment := append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "COLUMNS=")
	for name, value := range env {
		environment = append(environment, name+"="+value)
	}
	for _, c := range shownCommands(t) {
		if c.Example == "" {
			t.Errorf("%s has no example", c.Name())
		}
		for line := range strings.SplitSeq(c.Example, "\n") {
			t.Run(line, func(t *testing.T) {
				ready, serves := serving[c.Name()]
				if serves {
					line = "exec env " + line + " --port 0"
				}
				out := &emulatortest.Log{}
				cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
				cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, environment, out, out
				cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Setpgid: true}, time.Minute
				check(t, cmd.Start())
				if serves {
					out.Await(t, ready)
					check(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGINT))
				}
				if err := cmd.Wait(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
	for _, id := range []string{"report-7", "report-8", "report-9", "recording-17", "order-1", "order-2"} {
		if o := taskguard(t, env, "status", id).want(t, cli.ExitDone); strings.Contains(o.out, "the last") {
			t.Errorf("%s", o.out)
		}
	}
	taskguard(t, env, "status", "report-3").want(t, cli.ExitFailed, `no analysis "report-3"`)
	taskguard(t, env, "status", "recording-17").want(t, cli.ExitDone, "READY", "words")
}
