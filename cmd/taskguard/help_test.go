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
	"taskguard/internal/testing/must"
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

func TestHelp(t *testing.T) {
	t.Run("it lists the commands that are not hidden", func(t *testing.T) {
		for _, line := range []string{"help", "--help", "help help"} {
			o := taskguard(t, vars{}, line).done(t)
			for _, command := range commands() {
				cmd := command(vars{}.lookup)
				if listed := strings.Contains(o.out, "\n  "+cmd.Name()+" "); listed == cmd.Hidden {
					t.Errorf("%q lists %s: %t", line, cmd.Name(), listed)
				}
			}
		}
		if o := taskguard(t, vars{}, "").refused(t, "submit"); o.out != "" {
			t.Errorf("without a command, standard output has %s", o.out)
		}
	})
	t.Run("a command's has its flags and variables", func(t *testing.T) {
		taskguard(t, vars{}, "help requeue").done(t, " --fresh ", "TASK_QUEUE", "FIRESTORE_EMULATOR_HOST")
		taskguard(t, vars{}, "help cancel").done(t, " --running ").lacks(t, "TASK_QUEUE")
	})
	t.Run("it is as wide as COLUMNS says", func(t *testing.T) {
		for _, name := range append(shownCommands(t), &cobra.Command{Use: ""}) {
			for columns, limit := range map[string]int{"": 80, "50": 50, "x": 80} {
				text := taskguard(t, vars{"COLUMNS": columns}, "help "+name.Name()).done(t).out
				if limit < 80 { // examples are not broken, and the names of flags leave too little room
					text, _, _ = strings.Cut(text, "\nExamples:\n")
				}
				if n := longest(text); n > limit {
					t.Errorf("help %s has a line of %d characters with COLUMNS=%s", name.Name(), n, columns)
				}
			}
		}
		if n := longest(taskguard(t, vars{"COLUMNS": "200"}, "help run").out); n <= 100 {
			t.Errorf("with COLUMNS=200 the longest line has %d characters", n)
		}
	})
	t.Run("the version is the changelog's newest", func(t *testing.T) {
		changes := string(must.Get(os.ReadFile("../../CHANGELOG.md"))(t))
		release := regexp.MustCompile(`(?m)^## (\d\S*)`).FindStringSubmatch(changes)[1]
		taskguard(t, vars{}, "-v").done(t, release)
		object := taskguard(t, vars{}, "version --json").done(t).object(t)
		wantValues(t, wantKeys(t, object, "version commit go"), doc{"version": release})
	})
	t.Run("the reference lists each command with its arguments", func(t *testing.T) {
		_, page, _ := strings.Cut(string(must.Get(os.ReadFile("../../docs/reference.md"))(t)), "\n### The commands\n")
		page, _, _ = strings.Cut(page, "\n#### ")
		all := shownCommands(t)
		for _, c := range all {
			use := strings.ReplaceAll(strings.Replace(c.Use, " [flags]", "", 1), "|", `\|`)
			if !strings.Contains(page, "\n| `taskguard "+use+"` |") {
				t.Errorf("no %s", use)
			}
		}
		if n := strings.Count(page, "\n| `taskguard "); n != len(all) {
			t.Errorf("the page lists %d commands, want %d", n, len(all))
		}
	})
	t.Run("the commands that are read in an emergency exist", func(t *testing.T) {
		page := must.Get(os.ReadFile("../../docs/operations.md"))(t)
		page = append(page, must.Get(os.ReadFile("../../docs/backup.md"))(t)...)
		for _, named := range regexp.MustCompile("(?m)(?:^|`)taskguard ([a-z]+)").FindAllSubmatch(page, -1) {
			if command := string(named[1]); command != "commands" {
				taskguard(t, vars{}, "help "+command).done(t)
			}
		}
	})
	t.Run("completion's descriptions have no quotes of the help", func(t *testing.T) {
		taskguard(t, vars{}, "__complete requeue --co").done(t, "CODE").lacks(t, "`")
		taskguard(t, vars{}, "__complete requeue --code", "").done(t, "\nstalled\n", "\n:4\n")
	})
}

// exampleFiles are the files that the examples name.
func exampleFiles(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"report.txt": "a report", "notes.md": "# Notes",
		"transcribe": "#!/bin/sh\necho '\"words\"'\n", "publish.sh": "#!/bin/sh\necho published\n",
		"worker.yaml": string(must.Get(os.ReadFile(shippedFiles + "service.yaml"))(t)),
		"queue.yaml":  string(must.Get(os.ReadFile(shippedFiles + "queue.yaml"))(t)),
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700))
	}
	must.OK(t, os.Symlink(must.Get(os.Executable())(t), filepath.Join(dir, "taskguard")))
	return dir
}

// putExamples writes the analyses that the examples name. Recovery does not find them yet.
func putExamples(t *testing.T, env vars) {
	t.Helper()
	now := ago(0)
	for _, id := range []string{"report-3", "report-7", "recording-17"} {
		put(t, env, id, doc{"status": "QUEUED", "updatedAt": now, "input": doc{"text": "x"}})
	}
	put(t, env, "report-8", doc{"status": "FAILED", "updatedAt": now, "error": doc{"code": "ocr_down"}})
	put(t, env, "report-9", doc{
		"status": "PROCESSING", "updatedAt": now, "lockToken": 3, "lockOwner": "w/1", "lockExpiresAt": now,
	})
	for _, id := range []string{"order-1", "order-2"} {
		put(t, env, id, doc{
			"status": "FAILED", "updatedAt": now, "error": doc{"code": "effect_uncertain"}, "lockToken": 3,
			"openEffects": 1, "effects": doc{"charge": doc{"state": "started", "token": 3, "at": now}},
		})
	}
}

// serving has a text that a command prints when it serves, until Ctrl-C.
var serving = map[string]string{
	"local": "In another terminal", "emulator": "# Ready: ", "console": "the console: http://",
}

// Examples are pasted: each does what it says, in a shell, with the analyses that it names.
func TestHelp_Examples(t *testing.T) {
	t.Parallel()
	env, _ := localCloud(t, vars{})
	dir := exampleFiles(t)
	putExamples(t, env)
	environment := append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "COLUMNS=")
	for name, value := range env {
		environment = append(environment, name+"="+value)
	}
	for _, c := range shownCommands(t) {
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
				must.OK(t, cmd.Start())
				if serves {
					out.Await(t, ready)
					must.OK(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGINT))
				}
				if err := cmd.Wait(); err != nil || !strings.Contains(line, "taskguard") {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
	// The worker may have run them since.
	for id, was := range map[string]string{"report-8": "ocr_down", "report-9": "w/1", "order-2": "effect_uncertain"} {
		taskguard(t, env, "status --json "+id).done(t).lacks(t, was)
	}
	for id, part := range map[string]string{"report-7": "cancelled", "order-1": "4200", "recording-17": "words"} {
		taskguard(t, env, "status --json "+id).done(t, part)
	}
	taskguard(t, env, "status report-3").fails(t) // deleted
}
