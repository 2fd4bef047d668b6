package operatorpool_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskguard/lease"
	"taskguard/lease/operatorpool"
)

// The test binary runs as another program, on the state file that childPath names,
// in the session that childSession names.
const (
	childEnv     = "OPERATORPOOL_TEST_PROGRAM"
	childPath    = "OPERATORPOOL_TEST_PATH"
	childSession = "OPERATORPOOL_TEST_SESSION"
)

func TestMain(m *testing.M) {
	programs := map[string]func(p *operatorpool.Pool) error{
		"assign": assignAny, "churn": churn, "read-only": readOnly,
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

func childPool() (*operatorpool.Pool, error) {
	path := os.Getenv(childPath)
	f, err := operatorpool.Open[string](path)
	if err != nil {
		return nil, err
	}
	session := os.Getenv(childSession)
	if session == "" {
		session = operatorpool.SessionID(func(string) string { return "" }, os.Getpid)
	}
	s, err := operatorpool.NewStorage(f, path, session, operatorpool.Options{})
	if err != nil {
		return nil, err
	}
	return operatorpool.New(s, six, nil)
}

// program starts the test binary as another program.
func program(t *testing.T, name, path, session string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+name, childPath+"="+path, childSession+"="+session)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewReader(out)
}

// release tries for as long as the disk is slow.
func release(p *operatorpool.Pool) error {
	for {
		if _, _, err := p.Release(context.Background()); !errors.Is(err, lease.ErrUnavailable) {
			return err
		}
	}
}

// assignAny takes any operator, prints its ID, and runs until it is killed.
func assignAny(p *operatorpool.Pool) error {
	a, err := p.Assign(context.Background(), "")
	if err != nil {
		return err
	}
	fmt.Println(a.Operator.ID)
	select {}
}

// alive reports whether a process exists.
func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

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

func TestTwoProcessesOfASessionShareItsOperator(t *testing.T) { // O4
	w := newFixture(t)
	var got [2]string
	for i := range got {
		cmd, out := program(t, "assign", w.path, "A")
		line, err := out.ReadString('\n')
		if err != nil {
			t.Error(err)
		}
		got[i] = line
		kill(t, cmd)
	}
	if got[0] != got[1] || len(w.written()) != 1 {
		t.Errorf("%q; want the same", got)
	}
}

func TestTheReservationOfAKilledProcessIsDropped(t *testing.T) { // O9
	w := newFixture(t)
	w.now, w.o.Alive = time.Now(), alive
	cmd, out := program(t, "assign", w.path, "")
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(line)
	w.wantBusy("A", id)
	kill(t, cmd)
	w.assign("A", id)
	w.wantWritten("A=" + id)
}

// churn changes the state in an endless loop.
func churn(p *operatorpool.Pool) error {
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
		cmd, out := program(t, "churn", w.path, "A")
		if _, err := out.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
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
