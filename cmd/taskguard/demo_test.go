package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/testing/emulatortest"
)

// report is the demo's JSON.
type report struct {
	OK       bool
	Problems []string
	Files    []struct {
		File                        string
		ID                          string `json:"analysis_id"`
		Status                      string
		Runs                        int
		FinishedBy                  int `json:"finished_by"`
		Deliveries, Finishes, Skips int
		Unanswered                  int
	}
	Killed *struct {
		Worker    int
		ID        string    `json:"analysis_id"`
		ExpiresAt time.Time `json:"lock_expired_at"`
		TakenOver int       `json:"taken_over_by"`
		Percent   int       `json:"committed_percent"`
		Continued int       `json:"continued_percent"`
	}
}

// Every named file is finished once, one of them after its worker was killed and another has
// continued from its checkpoint.
func TestTheDemoFinishesEachFileOnce(t *testing.T) {
	t.Parallel()
	one, elsewhere := write(t, "one.txt", "just one file\n"), vars{"GOOGLE_CLOUD_PROJECT": "not-to-be-touched", "FIRESTORE_EMULATOR_HOST": closedPort(t)}
	o := taskguard(t, elsewhere, "demo", "main.go", "--json", one, one)
	o.want(t, cli.ExitDone, "with SIGKILL in the middle of its run", "the dead worker's lock", " over, token 2", ", and continues at ")
	var got report
	if err := json.Unmarshal([]byte(o.out), &got); err != nil {
		t.Fatalf("%v in %s", err, o.out)
	}
	if !got.OK || len(got.Problems) > 0 || len(got.Files) != 2 || got.Killed == nil || got.Killed.ExpiresAt.IsZero() {
		t.Fatalf("ok = %v, problems = %q, %d files, killed = %+v", got.OK, got.Problems, len(got.Files), got.Killed)
	}
	// A slow machine may not kill the first run in its middle: one.txt has one part only.
	if k := got.Killed; k.Continued != k.Percent || k.Percent == 0 && !strings.HasPrefix(k.ID, "one-") {
		t.Errorf("%+v, want it continued at what was committed", k)
	}
	for line := range strings.Lines(o.err) {
		if width := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); width > 80 {
			t.Errorf("a line of %d columns: %s", width, line)
		}
	}
	for _, f := range got.Files {
		if f.Deliveries != f.Runs+f.Skips+f.Unanswered {
			t.Errorf("%+v does not add up", f)
		}
		// A machine that stalls for longer than a lock lasts costs a run each time.
		if f.Status != "READY" || f.Finishes != 1 || f.Runs > f.Deliveries-f.Skips || f.Deliveries < 3 {
			t.Errorf("%+v, want READY once, after 3 deliveries or more", f)
		}
		if k := got.Killed; f.ID == k.ID && (f.Runs < 2 || f.FinishedBy == k.Worker || f.FinishedBy != k.TakenOver) {
			t.Errorf("%+v of the killed worker; killed: %+v", f, k)
		}
	}
}

// Started by systemd, or in a container, a worker has no open standard input.
func TestAWorkerNeedsNoOpenStandardInput(t *testing.T) {
	t.Parallel()
	out, cmd := &emulatortest.Log{}, exec.CommandContext(t.Context(), must(os.Executable())(t), "worker")
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "TASK_AUTH=none", "PORT=0"), out, out
	for name, value := range store(t) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	check(t, cmd.Start())
	out.Await(t, `"msg":"serving"`)
	time.Sleep(time.Second)
	if strings.Contains(out.String(), "stopping") {
		t.Error("it stops without a signal")
	}
	check(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// However the demo ends in the middle of its runs, none of its workers outlives it.
func TestNoProcessOutlivesTheDemo(t *testing.T) {
	for name, tc := range map[string]struct {
		signal syscall.Signal
		code   int
	}{"Ctrl-C": {syscall.SIGINT, cli.ExitInterrupted}, "SIGKILL": {syscall.SIGKILL, -1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			self := must(os.Executable())(t)
			out, cmd := &emulatortest.Log{}, exec.CommandContext(t.Context(), self, "demo")
			cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), out, out
			cmd.Env = append(os.Environ(), "FIRESTORE_EMULATOR_HOST="+closedPort(t)) // of another local, which has ended
			check(t, cmd.Start())
			eventually(t, "two runs at once", func() bool { return strings.Count(out.String(), "runs on") >= 2 })
			out.Await(t, "  5 documents\n") // its own, as none is named
			var pids []int
			for _, w := range regexp.MustCompile(`, process (\d+)`).FindAllStringSubmatch(out.String(), -1) {
				pids = append(pids, must(strconv.Atoi(w[1]))(t))
			}
			if len(pids) < 3 {
				t.Errorf("three workers are wanted, got %v", pids)
			}
			check(t, cmd.Process.Signal(tc.signal))
			_ = cmd.Wait() // the exit code is checked
			if got := cmd.ProcessState.ExitCode(); got != tc.code {
				t.Errorf("exit %d, want %d\n%s", got, tc.code, out)
			}
			eventually(t, "all processes have ended", func() bool {
				for _, pid := range pids {
					if alive(pid) {
						return false
					}
				}
				return true
			})
		})
	}
}

// alive reports whether pid runs; one that only waits to be reaped does not.
func alive(pid int) bool {
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && len(out) > 0 && out[0] != 'Z'
}
