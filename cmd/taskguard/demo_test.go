package main

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
)

// Every named file is finished once, one of them after its worker was killed and another has
// continued from its checkpoint. cmd/internal/local tests how the demo finds out.
func TestDemo(t *testing.T) {
	t.Parallel()
	one := write(t, "one.txt", "just one file\n")
	elsewhere := vars{"GOOGLE_CLOUD_PROJECT": "not-to-be-touched", "FIRESTORE_EMULATOR_HOST": closedPort(t)}
	o := taskguard(t, elsewhere, "demo main.go --json "+one+" "+one).done(t)
	report := o.object(t)
	wantValues(t, report, doc{"ok": true})
	files := report["files"].([]any)
	if len(files) != 2 {
		t.Fatalf("%d files, want 2: %s", len(files), o.out)
	}
	killed := report["killed"].(doc)
	for _, file := range files {
		f := file.(doc)
		sum := f["runs"].(float64) + f["skips"].(float64) + f["unanswered"].(float64)
		wantValues(t, f, doc{"status": "READY", "finishes": 1.0, "deliveries": sum})
		if f["analysis_id"] == killed["analysis_id"] {
			wantValues(t, f, doc{"finished_by": killed["taken_over_by"]})
		}
	}
	wantValues(t, killed, doc{"continued_percent": killed["committed_percent"]})
	// A slow machine may not kill the first run in its middle: one.txt has one part only.
	if killed["committed_percent"] == 0.0 && !strings.HasPrefix(killed["analysis_id"].(string), "one-") {
		t.Errorf("%v, want something committed", killed)
	}
	if n := longest(o.err); n > 80 {
		t.Errorf("a line of %d columns: %s", n, o.err)
	}
}

// Started by systemd, or in a container, a worker has no open standard input.
func TestWorker_Stdin(t *testing.T) {
	t.Parallel()
	r := startRun(t, store(t).with("TASK_AUTH", "none").with("PORT", "0"), "worker")
	r.out.Await(t, `"msg":"serving"`)
	time.Sleep(time.Second)
	if strings.Contains(r.out.String(), "stopping") {
		t.Error("it stops without a signal")
	}
	must.OK(t, r.Process.Signal(syscall.SIGTERM))
	r.end(t, cli.ExitDone, "stopping")
}

// However the demo ends in the middle of its runs, none of its workers outlives it.
func TestDemo_Interrupt(t *testing.T) {
	for name, tc := range map[string]struct {
		signal syscall.Signal
		code   int
	}{"Ctrl-C": {syscall.SIGINT, cli.ExitInterrupted}, "SIGKILL": {syscall.SIGKILL, -1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, cmd := &emulatortest.Log{}, exec.CommandContext(t.Context(), must.Get(os.Executable())(t), "demo")
			cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), out, out
			// It is of another local, which has ended.
			cmd.Env = append(os.Environ(), "FIRESTORE_EMULATOR_HOST="+closedPort(t))
			must.OK(t, cmd.Start())
			eventually(t, "two runs at once", func() bool { return strings.Count(out.String(), "runs on") >= 2 })
			out.Await(t, "  5 documents\n") // its own, as none is named
			var pids []int
			for _, w := range regexp.MustCompile(`, process (\d+)`).FindAllStringSubmatch(out.String(), -1) {
				pids = append(pids, must.Get(strconv.Atoi(w[1]))(t))
			}
			if len(pids) < 3 {
				t.Errorf("three workers are wanted, got %v", pids)
			}
			must.OK(t, cmd.Process.Signal(tc.signal))
			_ = cmd.Wait() // the exit code is checked
			if got := cmd.ProcessState.ExitCode(); got != tc.code {
				t.Errorf("exit %d, want %d\n%s", got, tc.code, out)
			}
			eventually(t, "all processes have ended", func() bool { return !slices.ContainsFunc(pids, alive) })
		})
	}
}

// alive reports whether pid runs; one that only waits to be reaped does not.
func alive(pid int) bool {
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && len(out) > 0 && out[0] != 'Z'
}
