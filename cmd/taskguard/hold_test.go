//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/locks/document"
	"taskguard/locks/project"
	"taskguard/repo"
)

// held is a taskguard hold in a process of its own.
type held struct {
	*exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs bytes.Buffer
}

// startHold starts hold --project p FLAGS with the environment env added.
func startHold(t *testing.T, env vars, args ...string) *held {
	t.Helper()
	return startHoldTo(t, nil, env, args...)
}

// startHoldTo is startHold with a standard error; nil: h.errs.
func startHoldTo(t *testing.T, stderr *os.File, env vars, args ...string) *held {
	t.Helper()
	exe := must(os.Executable())(t)
	h := &held{Cmd: exec.Command(exe, append([]string{"hold", "--project", "p"}, args...)...)}
	h.Env = os.Environ()
	for _, name := range []string{"GOOGLE_CLOUD_PROJECT", "FIRESTORE_EMULATOR_HOST"} {
		h.Env = append(h.Env, name+"="+env[name])
	}
	h.Stderr = &h.errs
	if stderr != nil {
		h.Stderr = stderr
	}
	h.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that signals to it are to it alone
	out, err := h.StdoutPipe()
	check(t, err)
	if h.in, err = h.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	h.out = bufio.NewReader(out)
	check(t, h.Start())
	t.Cleanup(func() { _ = h.Process.Kill(); _ = h.Wait() }) // if it still lives
	return h
}

// line returns the next line of the command.
func (h *held) line(t *testing.T) string {
	t.Helper()
	line, err := h.out.ReadString('\n')
	if err != nil {
		_ = h.Wait()
		t.Fatalf("%q, %v; standard error: %s", line, err, h.errs.String())
	}
	return strings.TrimSuffix(line, "\n")
}

// end waits for the end, and returns the rest of the standard output.
func (h *held) end(t *testing.T, code int, parts ...string) string {
	t.Helper()
	rest, err := io.ReadAll(h.out)
	if err != nil {
		t.Error(err)
	}
	_ = h.Wait() // the exit code is checked
	if got := h.ProcessState.ExitCode(); got != code {
		t.Errorf("exit %d; want %d; standard error: %s", got, code, h.errs.String())
	}
	for _, part := range parts {
		if !strings.Contains(h.errs.String(), part) {
			t.Errorf("standard error: %s\nwant %q in it", h.errs.String(), part)
		}
	}
	return string(rest)
}

func TestHoldExitsAsItsCommandDoes(t *testing.T) {
	t.Parallel()
	plain := filepath.Join(t.TempDir(), "plain")
	script := filepath.Join(t.TempDir(), "script")
	check(t, errors.Join(os.WriteFile(plain, []byte("x"), 0o600), os.WriteFile(script, []byte("#!/no/such\n"), 0o700)))
	for name, c := range map[string]struct {
		args   []string
		code   int
		stderr string
	}{
		"success":        {[]string{"--", "true"}, 0, "GOOGLE_CLOUD_PROJECT is not set"},
		"a status":       {[]string{"sh", "-c", "exit 37"}, 37, ""},
		"a signal":       {[]string{"--", "sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		"not found":      {[]string{"--", "no-such-command"}, 127, "taskguard hold: no-such-command"},
		"no such path":   {[]string{"--", "/no/such/command"}, 127, "/no/such/command"},
		"not executable": {[]string{"--", plain}, 126, "permission denied"},
		"no interpreter": {[]string{"--", script}, 127, script},
		"no directory":   {[]string{"--dir", plain, "true"}, 1, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startHold(t, vars{}, append([]string{"--dir", t.TempDir()}, c.args...)...)
			if out := h.end(t, c.code, c.stderr); out != "" {
				t.Errorf("standard output: %q; want nothing", out)
			}
		})
	}
}

func TestHoldPassesStreamsAndEnvironmentThrough(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := startHold(t, vars{}, "--dir", dir, "--", "sh", "-c", `echo "$PROJECT_LOCK_STRATEGY $PROJECT_LOCK_ID $PROJECT_LOCK_TOKEN"; cat; echo err >&2`)
	words := strings.Fields(h.line(t))
	var record struct {
		UUID  string
		Token int64
	}
	data, err := os.ReadFile(filepath.Join(dir, "project", ".lock"))
	check(t, errors.Join(err, json.Unmarshal(data, &record)))
	if want := []string{"file-lock", record.UUID, strconv.FormatInt(record.Token, 10)}; strings.Join(words, " ") != strings.Join(want, " ") {
		t.Errorf("environment %q; want %q", words, want)
	}
	all := bytes.Repeat([]byte("\x00\xff\r\n"), 100_000)
	go func() {
		_, _ = h.in.Write(all) // the answer shows it
		_ = h.in.Close()
	}()
	if got := h.end(t, 0, "err\n"); got != string(all) {
		t.Errorf("%d bytes came back; want the %d sent", len(got), len(all))
	}
	if _, err := os.Stat(filepath.Join(dir, "project", ".lock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock file: %v; want none", err)
	}
}

func TestHoldForwardsSignalsToTheWholeGroup(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			// A child of sh answers, which shows that the signal reached the whole group.
			script := `trap : INT TERM HUP QUIT USR1 USR2; (trap 'echo got; exit 0' INT TERM HUP QUIT USR1 USR2; echo up; while :; do sleep 0.05; done); exit 5`
			h := startHold(t, vars{}, "--dir", t.TempDir(), "--", "sh", "-c", script)
			if got := h.line(t); got != "up" {
				t.Fatal(got)
			}
			check(t, h.Process.Signal(s))
			if got := h.end(t, 5); got != "got\n" {
				t.Errorf("the command printed %q; want got", got)
			}
		})
	}
}

func TestASignalEndsTheWaitForTheLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := startHold(t, vars{}, "--dir", dir, "--", "sh", "-c", "echo up; cat")
	first.line(t)
	second := startHold(t, vars{}, "--dir", dir, "--wait", "1h", "--json", "--telemetry", "--", "echo", "never")
	appears(t, dir, "project/autosave/lock-*.jsonl")
	check(t, second.Process.Signal(syscall.SIGTERM))
	if out := second.end(t, 128+15, "interrupted"); out != "" {
		t.Errorf("the command ran: %q", out)
	}
	_ = first.in.Close()
	first.end(t, 0)
}

func TestHoldOfALockedProjectExits1AfterThreeAttempts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := startHold(t, vars{}, "--dir", dir, "--", "sh", "-c", "echo up; cat")
	first.line(t)
	second := startHold(t, vars{}, "--dir", dir, "--json", "--", "echo", "never")
	if out := second.end(t, 1, "project p is locked by another program or browser (file project/.lock) until 2", "unchanged for its ttl", "(fallback-conflict)", `"type":"lock:readonly-entered"`); out != "" {
		t.Errorf("the command ran: %q", out)
	}
	if n := strings.Count(second.errs.String(), `"type":"lock:attempt"`); n != 1+3 {
		t.Errorf("%d attempts; want one remote and three for the file", n)
	}
	third := startHold(t, vars{}, "--dir", dir, "--wait", "1m", "--telemetry", "--", "echo", "mine")
	_ = first.in.Close()
	first.end(t, 0)
	if out := third.end(t, 0); out != "mine\n" {
		t.Errorf("%q; want it to have waited", out)
	}
	names, err := filepath.Glob(filepath.Join(dir, "project", "autosave", "*.jsonl"))
	if err != nil || len(names) == 0 { // two at midnight
		t.Errorf("%v, %v; want telemetry", names, err)
	}
}

// appears waits for a file in dir that matches pattern, and returns its text.
func appears(t *testing.T, dir, pattern string) string {
	t.Helper()
	var text string
	eventually(t, pattern, func() bool {
		names, err := fs.Glob(os.DirFS(dir), pattern)
		if err != nil || len(names) == 0 {
			return false
		}
		data, err := os.ReadFile(filepath.Join(dir, names[0]))
		text = string(data)
		return err == nil && strings.HasSuffix(text, "\n")
	})
	return strings.TrimSpace(text)
}

// guarded calls do while no hold renews its lock.
func guarded(t *testing.T, dir string, do func() error) {
	t.Helper()
	guard := must(os.OpenFile(filepath.Join(dir, "project", ".lock.guard"), os.O_RDWR, 0))(t)
	defer func() { _ = guard.Close() }()
	check(t, errors.Join(syscall.Flock(int(guard.Fd()), syscall.LOCK_EX), do()))
}

// The command ends with the lock, and hold with the command, also where hold cannot write
// its messages.
func TestHoldEndsItsCommandAlthoughItsStandardErrorIsBlockedOrClosed(t *testing.T) {
	t.Parallel()
	for name, blocked := range map[string]bool{"blocked": true, "closed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w, err := os.Pipe()
			check(t, err)
			dir := t.TempDir()
			script := fmt.Sprintf(`exec 2>/dev/null; trap 'echo asked >"%[1]s/asked"; exit 9' TERM; echo $$ >"%[1]s/up"; while :; do sleep 0.05; done`, dir)
			h := startHoldTo(t, w, vars{}, "--dir", dir, "--ttl", "6s", "--json", "--", "sh", "-c", script)
			pid := must(strconv.Atoi(appears(t, dir, "up")))(t)
			t.Cleanup(func() { _ = syscall.Kill(-pid, syscall.SIGKILL) }) // if it still lives
			filled := make(chan struct{})
			go func() { // fills the pipe, and then blocks
				defer close(filled)
				if blocked {
					_, _ = w.Write(make([]byte, 4<<20)) // ends when the other end is closed
				}
			}()
			if !blocked {
				_ = r.Close()
			}
			time.Sleep(200 * time.Millisecond) // until the pipe is full
			// A renewal in progress would write the file again.
			guarded(t, dir, func() error { return os.Remove(filepath.Join(dir, "project", ".lock")) })
			appears(t, dir, "asked")
			_ = h.Wait()
			if got := h.ProcessState.ExitCode(); got != 1 {
				t.Errorf("exit %d; want 1", got)
			}
			_ = r.Close()
			<-filled
			_ = w.Close()
		})
	}
}

func TestHoldForwardsNoSignalThatItIgnores(t *testing.T) {
	t.Parallel()
	exe := must(os.Executable())(t)
	dir := t.TempDir()
	// The script does what nohup does. Without it the signal would end the command.
	script := fmt.Sprintf(`trap '' HUP; exec %q hold --project p --dir %q -- sh -c 'echo up >"%[2]s/up"; sleep 1; echo end >"%[2]s/end"'`, exe, dir)
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(os.Environ(), "GOOGLE_CLOUD_PROJECT=", "FIRESTORE_EMULATOR_HOST=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	check(t, cmd.Start())
	appears(t, dir, "up")
	check(t, cmd.Process.Signal(syscall.SIGHUP))
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v; want the command to finish", err)
	}
	appears(t, dir, "end")
}

func TestASignalBeforeTheStartPreventsTheCommand(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // as main does, where the signal comes before hold listens
	mark := filepath.Join(dir, "ran")
	code := taskguardWith(ctx, vars{}, "", "hold", "--project", "p", "--dir", dir, "--", "touch", mark).code
	if _, err := os.Stat(mark); err == nil || code != cli.ExitInterrupted {
		t.Errorf("exit %d, %v; want 130, and no command", code, err)
	}
}

// rooms opens the store that hold uses.
func rooms(t *testing.T, env vars) *repo.Rooms {
	t.Helper()
	o := repo.Options{Emulator: env["FIRESTORE_EMULATOR_HOST"]}
	r := must(repo.OpenRooms(t.Context(), env["GOOGLE_CLOUD_PROJECT"], o))(t)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestHoldEndsItsCommandWhenAnotherTakesTheRoomByForce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ script, ended string }{
		"a command that ends":            {`trap 'echo asked; exit 9' TERM; echo $PROJECT_LOCK_STRATEGY; while :; do sleep 0.05; done`, "exit status 9"},
		"a command that ignores SIGTERM": {`trap 'echo asked' TERM; echo $PROJECT_LOCK_STRATEGY; while :; do sleep 0.05; done`, "killed"},
		"a command that is stopped":      {`trap 'echo asked; exit 9' TERM; echo $PROJECT_LOCK_STRATEGY; kill -STOP $$; exit 3`, "exit status 9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, dir := store(t), t.TempDir()
			locks := must(document.New(rooms(t, env), 0))(t)
			h := startHold(t, env, "--dir", dir, "--ttl", "16s", "--wait", "17s", "--", "sh", "-c", c.script)
			if got := h.line(t); got != "web-lock" {
				t.Fatal(got)
			}
			if _, err := locks.Acquire(t.Context(), "p:project", "browser"); !errors.As(err, new(*document.HeldError)) {
				t.Errorf("the browser: %v; want the room held", err)
			}
			if broken, err := locks.Unlock(t.Context(), "p:project"); err != nil || !broken {
				t.Fatalf("%t, %v", broken, err)
			}
			must(locks.Acquire(t.Context(), "p:project", "browser"))(t)
			if got := h.end(t, 1, "lease-stale", c.ended); got != "asked\n" {
				t.Errorf("the command printed %q; want asked", got)
			}
			if _, err := locks.Release(t.Context(), "p:project", "browser"); err != nil {
				t.Errorf("the browser's lock was touched: %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "project")); err == nil {
				t.Error("the lock file was used in addition to Firestore")
			}
		})
	}
}

func TestHoldIsDeniedWhileABrowserEdits(t *testing.T) {
	t.Parallel()
	env, dir := store(t), t.TempDir()
	locks := must(document.New(rooms(t, env), 0))(t)
	must(locks.Acquire(t.Context(), "p:project", "browser"))(t)
	h := startHold(t, env, "--dir", dir, "--", "echo", "never")
	if out := h.end(t, 1, "project p is locked by another program or browser (in Firestore, room p:project) until 2", "--wait 10m (acquire-denied)"); out != "" {
		t.Errorf("the command ran: %q", out)
	}
}

func TestProcessesThatTheCommandLeavesRunningAreEndedBeforeTheRelease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := fmt.Sprintf(`(trap 'ls %q; exit' TERM; echo up; while :; do sleep 0.05; done) & read x; exit 4`, filepath.Join(dir, "project", ".lock"))
	h := startHold(t, vars{}, "--dir", dir, "--", "sh", "-c", script)
	h.line(t)
	must(io.WriteString(h.in, "go\n"))(t)
	if out := h.end(t, 4, "left running"); !strings.HasSuffix(out, "/project/.lock\n") {
		t.Errorf("%q; want the lock still there when it was asked to end", out)
	}
}

func TestHoldThatWasStoppedForLongerThanItsLockEndsItsCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := startHold(t, vars{}, "--dir", dir, "--ttl", "8s", "--json", "--", "sh", "-c", "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done") // with 8 s, it has 400 ms to end
	h.line(t)
	guarded(t, dir, func() error { // stopped during a renewal, it would keep the guard
		err := h.Process.Signal(syscall.SIGSTOP)
		if err == nil {
			_, err = syscall.Wait4(h.Process.Pid, nil, syscall.WUNTRACED, nil)
		}
		return err
	})
	other := startHold(t, vars{}, "--dir", dir, "--wait", "20s", "--", "sh", "-c", "echo mine; cat")
	other.line(t)
	check(t, h.Process.Signal(syscall.SIGCONT))
	if got := h.end(t, 1, "lease-stale"); got != "asked\n" {
		t.Errorf("the command printed %q; want asked", got)
	}
	if n := strings.Count(h.errs.String(), "lock:readonly-entered"); n != 1 {
		t.Errorf("read-only was entered %d times; want once", n)
	}
	_ = other.in.Close()
	other.end(t, 0)
}

func TestAfterHoldWasKilledTheLockExpires(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := startHold(t, vars{}, "--dir", dir, "--ttl", "1s", "--", "sh", "-c", "echo up $$; exec sleep 1000")
	pid := must(strconv.Atoi(strings.TrimPrefix(h.line(t), "up ")))(t)
	check(t, h.Process.Kill())
	_ = h.Wait() // killed
	l := must(project.New(project.Config{Project: "p", Dir: dir}))(t)
	taken := must(l.Acquire(context.Background(), project.AcquireOptions{Wait: 10 * time.Second}))(t)
	check(t, l.Release(context.Background(), taken, project.ReleaseOptions{}))
	if runtime.GOOS == "linux" && alive(pid) {
		t.Error("the command outlives hold")
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}
