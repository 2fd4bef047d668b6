package operator_test

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
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskguard/lease"
	"taskguard/locks/operator"
)

// The test binary runs as another program, in the session A, on the state file that
// childPath names.
const (
	childEnv  = "OPERATOR_TEST_PROGRAM"
	childPath = "OPERATOR_TEST_PATH"
)

func TestMain(m *testing.M) {
	programs := map[string]func(p *operator.Pool) error{
		"churn": churn, "read-only": readOnly,
	}
	name := os.Getenv(childEnv)
	if name == "" {
		goleak.VerifyTestMain(m)
		return
	}
	p, err := childPool()
	if err == nil {
		err = programs[name](p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

func childPool() (*operator.Pool, error) {
	path := os.Getenv(childPath)
	f, err := operator.Open(path)
	if err != nil {
		return nil, err
	}
	return operator.New(f, path, "A", six, operator.Options{})
}

// program starts the test binary as another program.
func program(t *testing.T, name, path string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	exe := must(os.Executable())(t)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+name, childPath+"="+path)
	cmd.Stderr = t.Output()
	out := must(cmd.StdoutPipe())(t)
	check(t, cmd.Start())
	return cmd, bufio.NewReader(out)
}

// release tries for as long as the disk is slow.
func release(p *operator.Pool) error {
	for {
		if _, _, err := p.Release(context.Background()); !errors.Is(err, lease.ErrUnavailable) {
			return err
		}
	}
}

// kill ends a process and waits until it has gone.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it ended by itself")
	}
}

// churn changes the state in an endless loop.
func churn(p *operator.Pool) error {
	for {
		a, err := p.Assign(context.Background(), "")
		if err = errors.Join(err, release(p)); err != nil {
			return err
		}
		fmt.Println(a.Operator.ID)
	}
}

func TestAKillAtAnyTimeLeavesTheOldOrTheNewState(t *testing.T) { // O8
	w := newFixture(t)
	w.now = time.Now()
	w.assign("bystander", "tsukuyomi")
	for range 8 {
		cmd, out := program(t, "churn", w.path)
		must(out.ReadString('\n'))(t)
		time.Sleep(time.Duration(rand.IntN(8_000)) * time.Microsecond) // a real process, killed anywhere
		kill(t, cmd)
		values := w.written() // fails unless it is sound
		delete(values, "A")
		if len(values) != 1 || values["bystander"] != "tsukuyomi" {
			t.Fatalf("%v; want the bystander's", values)
		}
	}
	w.assign("A", "kana")
	if _, err := os.Stat(w.path + ".corrupt"); err == nil {
		t.Error("some state was found corrupt")
	}
}

// readOnly writes without permission.
func readOnly(p *operator.Pool) error {
	if os.Getuid() == 0 {
		if err := syscall.Setuid(65534); err != nil {
			return err
		}
	}
	_, err := p.Assign(context.Background(), "kana")
	if !errors.Is(err, lease.ErrRefused) || !errors.Is(err, syscall.EACCES) {
		return fmt.Errorf("%w; want %w and %w", err, lease.ErrRefused, syscall.EACCES)
	}
	fmt.Println(err)
	return nil
}

func TestMissingPermissionIsAClearError(t *testing.T) { // O8
	w := newFixture(t)
	w.assign("bystander", "tsukuyomi")
	dir := filepath.Dir(w.path)
	for path, mode := range map[string]os.FileMode{dir: 0o555, filepath.Dir(dir): 0o755} { // the user "nobody" can reach it
		check(t, os.Chmod(path, mode))
	}
	t.Cleanup(func() {
		if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // so that it can be removed
			t.Error(err)
		}
	})
	for _, mode := range []os.FileMode{0o600, 0o644} { // may not even read; may not write
		check(t, os.Chmod(w.path, mode))
		cmd, out := program(t, "read-only", w.path)
		text, err := io.ReadAll(out)
		if err := errors.Join(err, cmd.Wait()); err != nil || !strings.Contains(string(text), "permission denied") {
			t.Errorf("mode %v: it printed %q, %v", mode, text, err)
		}
	}
	w.wantWritten("bystander=tsukuyomi")
}
