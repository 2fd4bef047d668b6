package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/testing/emulatortest"
)

// report is the demo's JSON.
type report struct {
	OK       bool
	Problems []string
	Files    []struct {
		File                                            string
		ID                                              string `json:"analysis_id"`
		Status                                          string
		Runs                                            int
		FinishedBy                                      int `json:"finished_by"`
		Deliveries, Finishes, Skips, Unanswered, Others int
	}
	Killed *struct {
		Worker    int
		ID        string    `json:"analysis_id"`
		ExpiresAt time.Time `json:"lock_expired_at"`
		TakenOver int       `json:"taken_over_by"`
		Done      int       `json:"done_percent"`
		Committed int       `json:"committed_percent"`
		Continued int       `json:"continued_percent"`
	}
	Total struct{ Skips int }
	Runs  int
}

// checkDemo fails unless every file was finished once, one of them after its worker was
// killed and another has continued from its checkpoint.
func checkDemo(t *testing.T, o outcome, files int) {
	t.Helper()
	o.want(t, cli.ExitDone, "with SIGKILL in the middle of its run", "the dead worker's lock", "locked, skipped; a follow-up is booked", " over, token 2", ", continued from line ")
	var got report
	if err := json.Unmarshal([]byte(o.out), &got); err != nil {
		t.Fatalf("%v in %s", err, o.out)
	}
	if !got.OK || len(got.Problems) > 0 || len(got.Files) != files || got.Killed == nil || got.Killed.ExpiresAt.IsZero() {
		t.Fatalf("ok = %v, problems = %q, %d files, killed = %+v", got.OK, got.Problems, len(got.Files), got.Killed)
	}
	// If the worker that took over was delayed, yet another has continued at a later checkpoint.
	if k := got.Killed; k.Committed == 0 || k.Committed > k.Done || k.Continued < k.Committed {
		t.Errorf("%+v, want it continued at what was committed", k)
	}
	for _, f := range got.Files {
		// A machine that stalls for longer than a lock lasts costs a run each time.
		if f.Status != "READY" || f.Finishes != 1 || f.Runs > 1+f.Unanswered+f.Others || f.Deliveries < 3 {
			t.Errorf("%+v, want READY once, after 3 deliveries or more", f)
		}
		if k := got.Killed; f.ID == k.ID && (f.Runs < 2 || f.FinishedBy == k.Worker || f.FinishedBy != k.TakenOver) {
			t.Errorf("%+v of the killed worker; killed: %+v", f, k)
		}
	}
	if got.Total.Skips == 0 || got.Runs < files+1 {
		t.Errorf("%d runs, %+v", got.Runs, got.Total)
	}
}

func TestTheDemoFinishesEachFileOnce(t *testing.T) {
	t.Parallel()
	checkDemo(t, taskguard(t, vars{"GOOGLE_CLOUD_PROJECT": "not-to-be-touched"}, "demo", "--json").want(t, cli.ExitDone, "texts of this program"), 5)
}

func TestTheDemoOfNamedFilesOnAnotherEmulatorLeavesItsDocumentsThere(t *testing.T) {
	t.Parallel()
	env := store(t)
	one := write(t, "one.txt", "just one file\n")
	o := taskguard(t, env, "demo", "main.go", "--json", one, one)
	checkDemo(t, o, 2)
	env["ANALYSES_COLLECTION"] = regexp.MustCompile(`taskguard-demo-[a-z0-9]+`).FindString(o.out)
	if n := strings.Count(taskguard(t, env, "status", "--json").want(t, cli.ExitDone).out, `"status":"READY"`); n != 2 {
		t.Errorf("%d documents READY in %s afterwards, want 2", n, env["ANALYSES_COLLECTION"])
	}
}

// However the demo ends in the middle of its runs, none of its workers and analyzers
// outlives it.
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
			check(t, cmd.Start())
			eventually(t, "two runs at once", func() bool { return strings.Count(out.String(), "runs on") >= 2 })
			var pids []int
			for _, w := range regexp.MustCompile(`, process (\d+)`).FindAllStringSubmatch(out.String(), -1) {
				pid := must(strconv.Atoi(w[1]))(t)
				pids = append(append(pids, pid), children(t, pid)...)
			}
			if len(pids) < 3+1 {
				t.Errorf("three workers and an analyzer are wanted, got %v", pids)
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

// children are the processes that pid has started.
func children(t *testing.T, pid int) (pids []int) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-o", "pid=", "--ppid", strconv.Itoa(pid)).Output()
	if err != nil && len(out) > 0 {
		t.Fatal(err)
	}
	for _, field := range bytes.Fields(out) {
		child := must(strconv.Atoi(string(field)))(t)
		pids = append(pids, child)
	}
	return pids
}

// alive reports whether pid runs; one that only waits to be reaped does not.
func alive(pid int) bool {
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && len(out) > 0 && out[0] != 'Z'
}
