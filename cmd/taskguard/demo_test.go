package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/emulator/emulatortest"
)

// told is the demo's JSON.
type told struct {
	OK       bool     `json:"ok"`
	Problems []string `json:"problems"`
	Files    []row    `json:"files"`
	Killed   *killing `json:"killed"`
	Total    tally    `json:"total"`
	Runs     int64    `json:"runs"`
	Pending  *int     `json:"follow_ups_pending"`
}

// check fails unless every file finished once, and one of them after its
// worker was killed.
func check(t *testing.T, o outcome, files int) {
	t.Helper()
	o.want(t, exitDone, "with SIGKILL in the middle of its run", "the dead worker's lock", "locked, skipped; a follow-up is booked", " over, token 2")
	var got told
	if err := json.Unmarshal([]byte(o.out), &got); err != nil {
		t.Fatalf("%v in %s", err, o.out)
	}
	if !got.OK || len(got.Problems) > 0 || len(got.Files) != files || got.Killed == nil {
		t.Fatalf("ok = %v, problems = %q, %d files, killed = %+v", got.OK, got.Problems, len(got.Files), got.Killed)
	}
	skips := 0
	var total tally
	for i := range got.Files {
		f := &got.Files[i]
		skips += f.Skips
		total.add(f.tally)
		want := int64(1)
		if f.ID == got.Killed.ID {
			want = 2
			if f.FinishedBy == got.Killed.Worker || f.FinishedBy != got.Killed.TakenOver {
				t.Errorf("%s was finished by worker %d; killed: %+v", f.Name, f.FinishedBy, got.Killed)
			}
		}
		// A machine that stalls for longer than a lock lasts costs a run each time.
		if f.Status != "READY" || f.Runs < want || f.Runs > want+int64(f.Others) || f.Deliveries < 3 || f.FinishedBy == 0 {
			t.Errorf("%+v, want READY after %d runs and 3 deliveries or more", *f, want)
		}
	}
	if n := total.Finishes + total.Skips + total.Unanswered + total.Others; total != got.Total || n != total.Deliveries || total.Finishes != files || got.Runs < int64(files)+1 {
		t.Errorf("%d runs, %+v; the files' sum is %+v", got.Runs, got.Total, total)
	}
	if skips == 0 {
		t.Error("no delivery was skipped")
	}
	if got.Pending == nil {
		t.Error("it is not said how many follow-ups were left")
	}
	if got.Killed.ExpiresAt.IsZero() {
		t.Error("the killed worker's lock has no expiry")
	}
}

func TestTheDemoOnEmbeddedPartsFinishesEachFileOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 10 s")
	}
	t.Parallel()
	check(t, taskguard(t, vars{"GOOGLE_CLOUD_PROJECT": "not-to-be-touched"}, "demo", "--json").
		want(t, exitDone, "GOOGLE_CLOUD_PROJECT is not touched"), 8)
}

func TestTheDemoOnGooglesEmulatorDoesTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 10 s")
	}
	env := vars{"GOOGLE_CLOUD_PROJECT": emulatortest.Project(), "FIRESTORE_EMULATOR_HOST": emulatortest.Google(t)}
	t.Parallel()
	one := filepath.Join(t.TempDir(), "one.txt")
	if err := os.WriteFile(one, []byte("just one file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := taskguard(t, env, "demo", "main.go", "--json", one, one)
	check(t, o, 2)
	collection := regexp.MustCompile(`taskguard-demo-[a-z0-9]+`).FindString(o.out)
	env["ANALYSES_COLLECTION"] = collection
	if n := strings.Count(taskguard(t, env, "status", "--json").want(t, exitDone).out, `"status":"READY"`); n != 2 {
		t.Errorf("%d documents READY in %s afterwards, want 2", n, collection)
	}
}

// start starts the program as a process of its own.
func start(t *testing.T, dir string, args ...string) (*exec.Cmd, *emulatortest.Log) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Dir = dir
	cmd.Env = environ(os.Environ(), map[string]string{asProgram: "1"})
	out := &emulatortest.Log{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // unless the test has seen its end
		_ = cmd.Wait()
	})
	return cmd, out
}

// eventually polls for at most 30 s.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// However the demo ends in the middle of its runs, nothing of it lives on: not
// its workers, nor their analyzers.
func TestNoProcessOutlivesTheDemo(t *testing.T) {
	for name, tc := range map[string]struct {
		signal syscall.Signal
		code   int
	}{"Ctrl-C": {syscall.SIGINT, exitInterrupted}, "SIGKILL": {syscall.SIGKILL, -1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, out := start(t, t.TempDir(), "demo")
			eventually(t, "two runs at once", func() bool { return strings.Count(out.String(), "runs on") >= 2 })
			workers := regexp.MustCompile(`, process (\d+)`).FindAllStringSubmatch(out.String(), -1)
			if len(workers) < demoWorkers {
				t.Fatalf("%d workers in\n%s", len(workers), out)
			}
			var pids []int
			for _, w := range workers {
				pid, err := strconv.Atoi(w[1])
				if err != nil {
					t.Fatal(err)
				}
				pids = append(pids, pid)
				pids = append(pids, children(t, pid)...)
			}
			if len(pids) <= len(workers) {
				t.Errorf("no analyzer among %v", pids)
			}
			if err := cmd.Process.Signal(tc.signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // its exit code says it
			if got := cmd.ProcessState.ExitCode(); got != tc.code {
				t.Errorf("exit %d, want %d\n%s", got, tc.code, out)
			}
			eventually(t, "all processes are gone", func() bool {
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

// children are the processes that pid has started, where the system tells.
func children(t *testing.T, pid int) []int {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-o", "pid=", "--ppid", strconv.Itoa(pid)).Output()
	if err != nil && len(out) > 0 {
		t.Fatal(err)
	}
	var pids []int
	for _, field := range bytes.Fields(out) {
		child, err := strconv.Atoi(string(field))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, child)
	}
	return pids
}

// alive reports whether pid runs; one that only waits to be reaped does not.
func alive(pid int) bool {
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && len(out) > 0 && out[0] != 'Z'
}

func TestADemoThatCannotBeginSaysWhy(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large.txt")
	if err := os.WriteFile(large, bytes.Repeat([]byte("x"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	emulator := vars{"FIRESTORE_EMULATOR_HOST": "127.0.0.1:1", "GOOGLE_CLOUD_PROJECT": "p"}
	taskguard(t, nil, "demo", filepath.Join(dir, "missing.txt")).want(t, exitFailed, "missing.txt")
	taskguard(t, nil, "demo", dir).want(t, exitFailed, dir)
	taskguard(t, nil, "demo", large).want(t, exitFailed, "large.txt: ", "at most")
	taskguard(t, nil, "demo", "--cloud").want(t, exitUsage, "GOOGLE_CLOUD_PROJECT: must be set")
	taskguard(t, emulator, "demo", "--cloud").want(t, exitUsage, "FIRESTORE_EMULATOR_HOST: contradicts --cloud")
}
