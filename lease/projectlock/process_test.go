package projectlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskguard/lease/projectlock"
)

// programEnv makes the test binary run as another program, on the project in
// the directory that programDir names.
const (
	programEnv = "PROJECTLOCK_TEST_PROGRAM"
	programDir = "PROJECTLOCK_TEST_DIR"
)

func TestMain(m *testing.M) {
	programs := map[string]func(l *projectlock.Locker, dir string) error{
		"race": race, "churn": churn,
	}
	name := os.Getenv(programEnv)
	if name == "" {
		goleak.VerifyTestMain(m)
		return
	}
	dir := os.Getenv(programDir)
	l, err := projectlock.New(projectlock.Config{Project: "p", Dir: dir})
	if err == nil {
		err = programs[name](l, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// program starts the test binary as another program.
func program(t *testing.T, name, dir string) (*exec.Cmd, *bufio.Reader, io.Writer) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), programEnv+"="+name, programDir+"="+dir)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // if it still lives
	return cmd, bufio.NewReader(out), in
}

// said is the next line that a program says.
func said(t *testing.T, out *bufio.Reader) string {
	t.Helper()
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	return strings.TrimSpace(line)
}

func once(ttl time.Duration) projectlock.AcquireOptions {
	return projectlock.AcquireOptions{RetryLimit: 1, TTL: ttl}
}

// race tries once for each line that it reads, and says what came of it; the
// winner releases with the next line.
func race(l *projectlock.Locker, _ string) error {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		ls, err := l.Acquire(context.Background(), once(0))
		var refused *projectlock.Error
		switch {
		case err == nil:
			fmt.Println("won")
		case errors.As(err, &refused) && refused.Code == projectlock.FallbackConflict:
			fmt.Println("held")
		default:
			return err
		}
		if !in.Scan() {
			return in.Err()
		}
		if l.Reset() {
			fmt.Println("reset")
			continue
		}
		if err := l.Release(context.Background(), ls, projectlock.ReleaseOptions{}); err != nil {
			return err
		}
		fmt.Println("released")
	}
	return in.Err()
}

func TestOfTwoProgramsThatRaceForTheFile50TimesOneGetsItEachTime(t *testing.T) {
	dir := t.TempDir()
	_, outA, inA := program(t, "race", dir)
	_, outB, inB := program(t, "race", dir)
	next := func(n int) {
		for i, w := range []io.Writer{inA, inB} {
			if _, err := fmt.Fprintln(w, n, i); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n := range 50 {
		next(n)
		a, b := said(t, outA), said(t, outB)
		if a == b {
			t.Fatalf("race %d: %s and %s; want one to win", n, a, b)
		}
		next(n)
		said(t, outA)
		said(t, outB)
	}
}

// churn takes and releases the lock without end, and adds to a number under it,
// reading and writing apart.
func churn(l *projectlock.Locker, dir string) error {
	fmt.Println("going")
	for {
		ls, err := l.Acquire(context.Background(), projectlock.AcquireOptions{TTL: time.Second, Wait: time.Minute, Backoff: time.Millisecond})
		if err != nil {
			return err
		}
		if err := add(dir); err != nil {
			return err
		}
		if err := l.Release(context.Background(), ls, projectlock.ReleaseOptions{}); err != nil {
			return err
		}
	}
}

func add(dir string) error {
	path := filepath.Join(dir, "number")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(data))
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(path+".next", []byte(strconv.Itoa(n+1)), 0o600), os.Rename(path+".next", path))
}

// Wherever a program is killed, in the middle of a write too, the file is whole
// and the lock can be taken within a TTL.
func TestAProgramThatIsKilledAnywhereLeavesALockThatExpires(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "number"), []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		cmd, out, _ := program(t, "churn", dir)
		said(t, out)
		time.Sleep(time.Duration(rand.IntN(40_000)) * time.Microsecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		l, err := projectlock.New(projectlock.Config{Project: "p", Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		ls, err := l.Acquire(t.Context(), projectlock.AcquireOptions{TTL: time.Second, Wait: 10 * time.Second, Backoff: 20 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context(), ls, projectlock.ReleaseOptions{}); err != nil {
			t.Fatal(err)
		}
		if entries, err := os.ReadDir(filepath.Join(dir, "project")); err != nil || len(entries) != 1 || entries[0].Name() != ".lock.guard" {
			t.Fatalf("%v, %v; want the guard alone", entries, err)
		}
	}
}
