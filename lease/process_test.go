//go:build unix

package lease_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskguard/lease"
)

// With these variables set, the test binary runs as another program on a directory.
const (
	childEnv = "LEASE_TEST_PROGRAM"
	childDir = "LEASE_TEST_DIR"
)

// counts is how often each program counts.
const counts = 10

func TestMain(m *testing.M) {
	name, dir := os.Getenv(childEnv), os.Getenv(childDir)
	var err error
	switch name {
	case "":
		goleak.VerifyTestMain(m)
		return
	case "count":
		err = count(lease.NewFile(dir, "guard", jsonFormat{}), counts)
	case "freeze":
		err = count(lease.NewFile[job](dir, "guard", &freezing{}), counts)
	case "full":
		err = full(lease.NewFile(dir, "guard", jsonFormat{}))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// program starts the test binary as another program.
func program(t *testing.T, name, dir string) (*exec.Cmd, io.Reader) {
	t.Helper()
	exe, err := os.Executable()
	fatal(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+name, childDir+"="+dir)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	fatal(t, err)
	fatal(t, cmd.Start())
	return cmd, out
}

// count adds one to the number in the note, n times, each with a lease of its own.
// It reads and writes in two steps, so that only the lease keeps two programs from
// losing a number.
func count(f *lease.File[job], n int) error {
	l, err := lease.NewLessor(f, of, lease.Policy{TTL: 3 * time.Second})
	if err != nil {
		return err
	}
	for i := 0; i < n; {
		h, j, err := l.Acquire(context.Background(), "a", fmt.Sprintf("%d/%d", os.Getpid(), i), nil)
		if errors.As(err, new(*lease.HeldError)) {
			time.Sleep(2 * time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		was, err := strconv.Atoi(j.Note)
		if err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
		if err := h.Release(context.Background(), note(strconv.Itoa(was+1)), false); err != nil {
			return err
		}
		i++
	}
	return nil
}

// freezing is a jsonFormat that stops for ever in the third acquisition, while the
// directory is locked.
type freezing struct {
	jsonFormat
	writes int
}

func (f *freezing) Encode(key string, j job, at time.Time) ([]byte, error) {
	if f.writes++; f.writes == 5 { // two writes a count
		fmt.Println("frozen")
		select {}
	}
	return f.jsonFormat.Encode(key, j, at)
}

func TestFourProgramsLoseNoCountAlthoughOneIsKilled(t *testing.T) {
	f, path := newFile(t)
	if _, err := f.Swap(t.Context(), "a", loadFile(t, f), job{Note: "0"}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(path)
	frozen, out := program(t, "freeze", dir)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "frozen\n" {
		t.Fatalf("%q, %v", line, err)
	}
	var wg sync.WaitGroup
	for range 3 {
		cmd, _ := program(t, "count", dir)
		wg.Go(func() {
			check(t, cmd.Wait())
		})
	}
	check(t, frozen.Process.Signal(syscall.SIGKILL))
	if err := frozen.Wait(); err == nil {
		t.Error("the frozen program ended by itself")
	}
	wg.Wait()
	const counted = 3*counts + 2
	got := loadFile(t, f).Doc
	want := job{Note: strconv.Itoa(counted), Lease: lease.Lease{Token: counted, Attempts: counted}}
	if got != want {
		t.Errorf("%+v; want %+v", got, want)
	}
}

func TestAFullDiskChangesNothing(t *testing.T) {
	f, path := newFile(t)
	before := loadFile(t, f)
	cmd, _ := program(t, "full", filepath.Dir(path))
	check(t, cmd.Wait())
	if got := loadFile(t, f); got.Rev != before.Rev {
		t.Errorf("%+v; want it as it was", got)
	}
	if _, err := os.Lstat(path + ".tmp"); err == nil {
		t.Error("the temporary file is still there")
	}
}

// full writes where no file may be larger than 64 bytes, which fails as a full disk
// does.
func full(f *lease.File[job]) error {
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 64, Max: 64}); err != nil {
		return err
	}
	c, err := f.Load(context.Background(), "a")
	if err != nil {
		return err
	}
	if _, err = f.Swap(context.Background(), "a", c, job{Note: "second"}); !errors.Is(err, syscall.EFBIG) || errors.Is(err, lease.ErrRefused) {
		return fmt.Errorf("swap: %w; want %w", err, syscall.EFBIG)
	}
	return nil
}
