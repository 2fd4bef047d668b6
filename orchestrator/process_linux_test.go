package orchestrator_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// Programs for what only Linux does.
func init() {
	programs["worker"] = worker
	programs["adopter"] = adopter
}

// worker SPEC… runs an analysis.
func worker(args []string) {
	spec := "exec:" + os.Args[0] + " " + asProgram
	for _, arg := range args {
		spec += " " + arg
	}
	a := must(orchestrator.NewWithGrace(spec, 20*time.Millisecond))
	must(orchestrator.Run(context.Background(), a, orchestrator.Job{}))
}

// adopter SPEC… becomes the parent of its orphaned descendants, like process 1 of
// a container, and fails if one has not been reaped when the analysis has ended.
func adopter(args []string) {
	const setChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); errno != 0 {
		panic(errno)
	}
	worker(args)
	if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
		panic(pid)
	}
}

// waitUntilAllEnded waits until every process that locked file has ended.
func waitUntilAllEnded(t *testing.T, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

func TestProgram_KilledWorker(t *testing.T) {
	file := newFile(t, "")
	c := exec.Command(testBinary(t), asProgram, "worker", "ignorer", file)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	waitForLine(t, file, "ignorer")
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait() // killed
	waitUntilAllEnded(t, file)
}

func TestProgram_Orphans(t *testing.T) {
	for _, child := range []string{"obedient", "ignorer"} {
		file := newFile(t, "")
		out, err := exec.Command(testBinary(t), asProgram, "adopter", "exiter", file, child, "0").CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", child, err, out)
		}
		assertAllEnded(t, file)
	}
}

func TestProgram_OpenFiles(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collected file would be closed
	files := func() int { return len(must(os.ReadDir("/proc/self/fd"))) }
	started, deleted := shell(t, ""), deletedProgram(t)
	result(t, started, orchestrator.Job{}) // the runtime opens files of its own
	before := files()
	result(t, started, orchestrator.Job{})
	_, _ = deleted.Analyze(t.Context(), orchestrator.Job{})
	if after := files(); after != before {
		t.Errorf("%d files are open, before %d", after, before)
	}
}
