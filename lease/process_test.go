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
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// childEnv makes the test binary run as another program, on the directory that
// childDir names.
const (
	childEnv = "LEASE_TEST_PROGRAM"
	childDir = "LEASE_TEST_DIR"
)

func TestMain(m *testing.M) {
	programs := map[string]func(f *lease.File[job]) error{
		"count":     func(f *lease.File[job]) error { return count(f, 25) },
		"freeze":    freeze,
		"read-only": readOnly,
		"full":      full,
		"frugal":    frugal,
	}
	name := os.Getenv(childEnv)
	if name == "" {
		goleak.VerifyTestMain(m)
		return
	}
	f, err := lease.NewFile[job](os.Getenv(childDir))
	if err == nil {
		err = programs[name](f)
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
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+name, childDir+"="+dir)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

// count adds one to the number in the note, n times, each under the lease of an
// acquisition of its own. Reading and writing are apart, so that only the lease
// keeps two programs from losing a number.
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

// freeze counts five times and then stops for ever between the temporary file
// of a release and its renaming.
func freeze(f *lease.File[job]) error {
	writes := 0
	f.OnRename(func() error {
		if writes++; writes == 12 { // two a count; the sixth acquisition is the eleventh
			fmt.Println("frozen")
			select {}
		}
		return nil
	})
	return count(f, 6)
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
			if err := cmd.Wait(); err != nil {
				t.Errorf("count: %v", err)
			}
		})
	}
	if err := frozen.Process.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := frozen.Wait(); err == nil {
		t.Error("the frozen program ended by itself")
	}
	if _, err := os.Lstat(path + ".tmp"); err != nil {
		t.Errorf("killed elsewhere than between write and rename: %v", err)
	}
	wg.Wait()
	const counted = 3*25 + 5
	got := loadFile(t, f).Doc
	want := job{Note: strconv.Itoa(counted), Lease: lease.Lease{Token: counted + 1, Attempts: counted + 1}}
	if got != want {
		t.Errorf("%+v; want %+v", got, want)
	}
}

func TestADirectoryThatMayNotBeWrittenIsARefusal(t *testing.T) { fails(t, "read-only") }

func TestAFullDiskChangesNothing(t *testing.T) { fails(t, "full") }

// fails runs a program whose writes fail, and looks whether the record is as it
// was.
func fails(t *testing.T, name string) {
	t.Helper()
	parent := t.TempDir()
	if os.Getuid() == 0 { // the program may be nobody, and gets through to the directory wherever TMPDIR is
		parent = leasetest.Reachable(t)
	}
	f, path := newFileIn(t, parent)
	before := loadFile(t, f)
	for path, mode := range map[string]os.FileMode{path: 0o644, filepath.Dir(path): 0o555} {
		if name == "read-only" {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(func() {
		if err := os.Chmod(filepath.Dir(path), 0o700); err != nil { //nolint:gosec // so that it can be removed
			t.Error(err)
		}
	})
	cmd, out := program(t, name, filepath.Dir(path))
	said, err := io.ReadAll(out)
	if err := errors.Join(err, cmd.Wait()); err != nil || strings.TrimSpace(string(said)) != "refused" {
		t.Errorf("it said %q, %v", said, err)
	}
	if got := loadFile(t, f); got.Rev != before.Rev {
		t.Errorf("%+v; want it as it was", got)
	}
	if _, err := os.Lstat(path + ".tmp"); err == nil {
		t.Error("the temporary file is still there")
	}
}

func TestNoCallLeavesAFileOpen(t *testing.T) {
	_, path := newFile(t)
	cmd, out := program(t, "frugal", filepath.Dir(path))
	said, err := io.ReadAll(out)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		t.Errorf("%v: %s", err, said)
	}
}

// frugal loads and swaps where only a few files can be open at once, and none is
// closed by the garbage collector.
func frugal(f *lease.File[job]) error {
	debug.SetGCPercent(-1)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 32, Max: 32}); err != nil {
		return err
	}
	for range 100 {
		c, err := f.Load(context.Background(), "a")
		if err != nil {
			return err
		}
		if _, err := f.Swap(context.Background(), "a", c, job{Note: "again"}); err != nil {
			return err
		}
	}
	return nil
}

// readOnly writes as somebody who may not.
func readOnly(f *lease.File[job]) error {
	if os.Getuid() == 0 {
		if err := syscall.Setuid(65534); err != nil {
			return err
		}
	}
	return write(f, lease.ErrRefused)
}

// full writes where no file may be larger than 64 bytes, which fails in the
// way of a full disk.
func full(f *lease.File[job]) error {
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 64, Max: 64}); err != nil {
		return err
	}
	return write(f, syscall.EFBIG)
}

func write(f *lease.File[job], want error) error {
	c, err := f.Load(context.Background(), "a")
	if err != nil {
		return err
	}
	if _, err = f.Swap(context.Background(), "a", c, job{Note: "second"}); !errors.Is(err, want) {
		return fmt.Errorf("swap: %w; want %w", err, want)
	}
	fmt.Println("refused")
	return nil
}
