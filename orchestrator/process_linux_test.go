package orchestrator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// Programs for what only Linux does.
func init() {
	programs["worker"] = worker
	programs["adopter"] = adopter
	programs["headless"] = headless
}

// worker SPEC… runs an analysis, as the process around the package does.
func worker(args []string) {
	spec := "exec:" + os.Args[0] + " " + asProgram
	for _, arg := range args {
		spec += " " + arg
	}
	a := must(orchestrator.New(spec, orchestrator.Options{Grace: 20 * time.Millisecond}))
	must(orchestrator.Run(context.Background(), a, orchestrator.Job{}))
}

// adopter SPEC… becomes the parent of its orphaned descendants, as process 1 of
// a container is, and fails if one is left when the analysis is done.
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

// headless FILE is polite without its first thread.
func headless(args []string) {
	runtime.LockOSThread()
	if syscall.Gettid() != syscall.Getpid() {
		panic("not on the first thread")
	}
	go func() {
		polite(args)
		os.Exit(0)
	}()
	_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
}

// It shows as a zombie, and yet it runs.
func TestProcessWithoutItsFirstThreadIsAskedToStop(t *testing.T) {
	file := lifeFile(t)
	got, err := orchestrator.Run(t.Context(), program(t, never, "leaver", file, "headless", "0"), orchestrator.Job{})
	nobodyLives(t, file)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got, map[string]any{"left": "behind"})
	if text := alive(t, file, "polite"); !strings.Contains(text, "asked to stop") {
		t.Error("it was not asked to stop")
	}
}

// 200 groups that end at once would read the state of 200 programs each. Reading is
// what this process counts; no test runs beside this one.
func TestTheEndOfAGroupReadsTheStateOfNoOther(t *testing.T) {
	const others = 100
	for range others {
		c := exec.Command("sleep", "1000")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait() // killed
		})
	}
	before := reads(t)
	if _, err := orchestrator.Run(t.Context(), program(t, never, "cat"), orchestrator.Job{}); err != nil {
		t.Fatal(err)
	}
	if n := reads(t) - before; n >= others {
		t.Errorf("%d reads beside %d other programs", n, others)
	}
}

// reads is how many reads this process has asked the kernel for.
func reads(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "syscr: %d", &n); err == nil {
			return n
		}
	}
	t.Fatalf("no syscr in %q", text)
	return 0
}

// waitForTheDead returns when nobody that was alive in file is any more.
func waitForTheDead(t *testing.T, file string) {
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

func TestProgramDiesWithAWorkerThatIsKilled(t *testing.T) {
	file := lifeFile(t)
	c := exec.Command(testBinary(t), asProgram, "worker", "stubborn", file)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	alive(t, file, "stubborn")
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait() // killed
	waitForTheDead(t, file)
}

func TestOrphansThatTheWorkerAdoptsDoNotStayAsZombies(t *testing.T) {
	for _, child := range []string{"polite", "stubborn"} {
		file := lifeFile(t)
		out, err := exec.Command(testBinary(t), asProgram, "adopter", "leaver", file, child, "0").CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", child, err, out)
		}
		nobodyLives(t, file)
	}
}
