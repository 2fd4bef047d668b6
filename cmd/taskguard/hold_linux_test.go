package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taskguard/internal/testing/must"
)

// terminal opens a new terminal of so many columns: our end, and the program's.
func terminal(t *testing.T, columns uint16) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("this machine has no terminals: ", err)
	}
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	must.OK(t, err)
	must.OK(t, unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0))
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("this machine has no /dev/pts: ", err)
	}
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	must.OK(t, unix.IoctlSetWinsize(int(theirs.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: columns}))
	return ours, theirs
}

// step is a line to wait for, and what is typed then.
type step struct{ line, typed string }

// onTerminal runs a script whose shell has a terminal of its own, and types. TASKGUARD is this program.
func onTerminal(t *testing.T, script string, steps ...step) {
	t.Helper()
	ours, theirs := terminal(t, 200)
	env := append(os.Environ(), "GOOGLE_CLOUD_PROJECT=", "FIRESTORE_EMULATOR_HOST=",
		"TASKGUARD="+must.Get(os.Executable())(t), "DIR="+t.TempDir())
	p := must.Get(os.StartProcess("/bin/sh", []string{"sh", "-c", script}, &os.ProcAttr{
		Files: []*os.File{theirs, theirs, theirs}, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: true}, Env: env,
	}))(t)
	t.Cleanup(func() { _ = p.Kill(); _, _ = p.Wait() }) // if it still lives
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(ours); in.Scan(); {
			lines <- strings.TrimSpace(in.Text())
		}
	}()
	for _, s := range steps {
		awaitLine(t, lines, s.line)
		must.Get(ours.WriteString(s.typed))(t)
	}
}

// awaitLine reads until a line ends with want. The terminal's echo may come before it.
func awaitLine(t *testing.T, lines <-chan string, want string) {
	t.Helper()
	for timeout := time.After(20 * time.Second); ; {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatalf("the terminal ended before %q", want)
			}
			if strings.HasSuffix(line, want) {
				return
			}
		case <-timeout:
			t.Fatalf("no line %q", want)
		}
	}
}

func TestHold_Terminal(t *testing.T) {
	t.Parallel()
	t.Run("its command has the terminal also where standard input is a pipe", func(t *testing.T) {
		t.Parallel()
		onTerminal(t, `echo data | "$TASKGUARD" hold --project p --dir "$DIR" -- sh -c '
			echo ask; read x </dev/tty; echo "got $x"; read y; echo "and $y"'
			echo "code $?"; read y; echo "back $y"`,
			step{"ask", "secret\n"}, step{"got secret", ""}, step{"and data", ""},
			step{"code 0", "again\n"}, step{"back again", ""})
	})
	// A shell without job control: hold and it are one group, as in a script. Ctrl-Z does
	// nothing. A line follows the interrupt: a shell that gets the signal just before it begins
	// to read handles it only when the read returns.
	t.Run("it takes the terminal back", func(t *testing.T) {
		t.Parallel()
		onTerminal(t, `"$TASKGUARD" hold --project p --dir "$DIR" -- sh -c '
			echo up; read x; echo "got $x"; trap "echo int; exit 6" INT; echo ready; while :; do read z; done'
			echo "code $?"; until [ "$y" = again ]; do read y; done; echo "back $y"`,
			step{"up", "hello\n"}, step{"got hello", ""}, step{"ready", "\x1a\n\x03\n"},
			step{"int", ""}, step{"code 6", "again\n"}, step{"back again", ""})
	})
}

// subreaper makes this program one that inherits orphans, as process 1 does.
const subreaper = "TASKGUARD_TEST_SUBREAPER"

func init() {
	if os.Getenv(subreaper) != "" && unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != nil {
		panic("no subreaper")
	}
}

func TestHold_Orphans(t *testing.T) {
	t.Setenv(subreaper, "1")
	orphan := filepath.Join(t.TempDir(), "pid")
	h := startHold(t, vars{}, "--dir", t.TempDir(), "--", "sh", "-c", `
		(setsid sh -c 'echo $$ >"$0"' "$0" &)
		until [ -s "$0" ]; do sleep 0.05; done
		for _ in $(seq 600); do [ -d "/proc/$(cat "$0")" ] || exit 6; sleep 0.05; done`, orphan)
	h.end(t, 6, "")
}
