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
	"taskguard/internal/testing/must"
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
	exe := must.Get(os.Executable())(t)
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
	h.out = bufio.NewReader(must.Get(h.StdoutPipe())(t))
	h.in = must.Get(h.StdinPipe())(t)
	must.OK(t, h.Start())
	t.Cleanup(func() { _ = h.Process.Kill(); _ = h.Wait() }) // if it still lives
	return h
}

// holding starts a command that holds the project until its standard input is closed.
func holding(t *testing.T, dir string) *held {
	t.Helper()
	h := startHold(t, vars{}, "--dir", dir, "--", "sh", "-c", "echo up; cat")
	h.wantLine(t, "up")
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

func (h *held) wantLine(t *testing.T, want string) {
	t.Helper()
	if got := h.line(t); got != want {
		t.Fatalf("the command printed %q, want %q", got, want)
	}
}

// end waits for the end. It fails unless the command has printed rest, and hold parts.
func (h *held) end(t *testing.T, code int, rest string, parts ...string) {
	t.Helper()
	got := string(must.Get(io.ReadAll(h.out))(t))
	_ = h.Wait() // the exit code is checked
	outcome{h.ProcessState.ExitCode(), "", h.errs.String()}.want(t, code, parts...)
	if got != rest {
		t.Errorf("the command printed %d bytes, %.100q; want %.100q", len(got), got, rest)
	}
}

func TestHold_ExitCode(t *testing.T) {
	t.Parallel()
	plain, broken := write(t, "plain", "x"), script(t, "")
	must.OK(t, os.WriteFile(broken, []byte("#!/no/such\n"), 0o700))
	for name, tc := range map[string]struct {
		command []string
		code    int
		named   string
	}{
		"success":        {[]string{"--", "true"}, 0, "GOOGLE_CLOUD_PROJECT is not set"},
		"a status":       {[]string{"sh", "-c", "exit 37"}, 37, ""},
		"a signal":       {[]string{"--", "sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		"not found":      {[]string{"--", "no-such-command"}, 127, "no-such-command"},
		"no such path":   {[]string{"--", "/no/such/command"}, 127, "/no/such/command"},
		"not executable": {[]string{"--", plain}, 126, "permission denied"},
		"no interpreter": {[]string{"--", broken}, 127, broken},
		"no directory":   {[]string{"--dir", plain, "true"}, 1, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			startHold(t, vars{}, append([]string{"--dir", t.TempDir()}, tc.command...)...).end(t, tc.code, "", tc.named)
		})
	}
}

func TestHold_Streams(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := startHold(t, vars{}, "--dir", dir, "--", "sh", "-c",
		`echo "$PROJECT_LOCK_STRATEGY $PROJECT_LOCK_ID $PROJECT_LOCK_TOKEN"; cat; echo err >&2`)
	line := h.line(t)
	var record struct {
		UUID  string
		Token int64
	}
	must.OK(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(dir, "project", ".lock")))(t), &record))
	if want := fmt.Sprint("file-lock ", record.UUID, " ", record.Token); line != want {
		t.Errorf("environment %q, want %q", line, want)
	}
	all := bytes.Repeat([]byte("\x00\xff\r\n"), 100_000)
	go func() {
		_, _ = h.in.Write(all) // the answer shows it
		_ = h.in.Close()
	}()
	h.end(t, 0, string(all), "err\n")
	if _, err := os.Stat(filepath.Join(dir, "project", ".lock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock file: %v, want none", err)
	}
}

func TestHold_Signals(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	} {
		t.Run("the whole group gets "+s.String(), func(t *testing.T) {
			t.Parallel()
			h := startHold(t, vars{}, "--dir", t.TempDir(), "--", "sh", "-c", `trap : INT TERM HUP QUIT USR1 USR2
				(trap 'echo got; exit 0' INT TERM HUP QUIT USR1 USR2; echo up; while :; do sleep 0.05; done); exit 5`)
			h.wantLine(t, "up")
			must.OK(t, h.Process.Signal(s))
			h.end(t, 5, "got\n") // by the child of sh
		})
	}
	t.Run("one ends the wait for the lock", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		first := holding(t, dir)
		second := startHold(t, vars{}, "--dir", dir, "--wait", "1h", "--telemetry", "--", "echo", "never")
		appears(t, dir, "project/autosave/lock-*.jsonl")
		must.OK(t, second.Process.Signal(syscall.SIGTERM))
		second.end(t, 128+15, "", "interrupted")
		_ = first.in.Close()
		first.end(t, 0, "")
	})
	t.Run("one that hold ignores is not forwarded", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		// The script does what nohup does. Without it the signal would end the command.
		script := fmt.Sprintf(`trap '' HUP
			exec %q hold --project p --dir %q -- sh -c 'echo up >"%[2]s/up"; sleep 1; echo end >"%[2]s/end"'`,
			must.Get(os.Executable())(t), dir)
		cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
		cmd.Env = append(os.Environ(), "GOOGLE_CLOUD_PROJECT=", "FIRESTORE_EMULATOR_HOST=")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		must.OK(t, cmd.Start())
		appears(t, dir, "up")
		must.OK(t, cmd.Process.Signal(syscall.SIGHUP))
		must.OK(t, cmd.Wait())
		appears(t, dir, "end")
	})
	t.Run("one before the start prevents it", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // as main does, where the signal comes before hold listens
		mark := filepath.Join(t.TempDir(), "ran")
		taskguardWith(ctx, vars{}, "", "hold", "--project", "p", "--dir", t.TempDir(), "--", "touch", mark).
			want(t, cli.ExitInterrupted)
		if _, err := os.Stat(mark); err == nil {
			t.Error("the command ran")
		}
	})
}

func TestHold_Locked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := holding(t, dir)
	second := startHold(t, vars{}, "--dir", dir, "--json", "--", "echo", "never")
	second.end(t, 1, "", "project/.lock", "--wait", "(fallback-conflict)", `"type":"lock:readonly-entered"`)
	third := startHold(t, vars{}, "--dir", dir, "--wait", "1m", "--telemetry", "--", "echo", "mine")
	_ = first.in.Close()
	first.end(t, 0, "")
	third.end(t, 0, "mine\n")
	appears(t, dir, "project/autosave/*.jsonl")
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
	guard := must.Get(os.OpenFile(filepath.Join(dir, "project", ".lock.guard"), os.O_RDWR, 0))(t)
	defer func() { _ = guard.Close() }()
	must.OK(t, errors.Join(syscall.Flock(int(guard.Fd()), syscall.LOCK_EX), do()))
}

// The command ends with the lock, and hold with the command, also where hold cannot write
// its messages.
func TestHold_BlockedOutput(t *testing.T) {
	t.Parallel()
	for name, blocked := range map[string]bool{"blocked": true, "closed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w, err := os.Pipe()
			must.OK(t, err)
			dir := t.TempDir()
			script := fmt.Sprintf(`exec 2>/dev/null; trap 'echo asked >"%[1]s/asked"; exit 9' TERM
				echo $$ >"%[1]s/up"; while :; do sleep 0.05; done`, dir)
			h := startHoldTo(t, w, vars{}, "--dir", dir, "--ttl", "6s", "--json", "--", "sh", "-c", script)
			pid := must.Get(strconv.Atoi(appears(t, dir, "up")))(t)
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
				t.Errorf("exit %d, want 1", got)
			}
			_ = r.Close()
			<-filled
			_ = w.Close()
		})
	}
}

// rooms opens the store that hold uses.
func rooms(t *testing.T, env vars) *repo.Rooms {
	t.Helper()
	o := repo.Options{Emulator: env["FIRESTORE_EMULATOR_HOST"]}
	r := must.Get(repo.OpenRooms(t.Context(), env["GOOGLE_CLOUD_PROJECT"], o))(t)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestHold_Stolen(t *testing.T) {
	t.Parallel()
	const up, loop = "echo $PROJECT_LOCK_STRATEGY; ", "while :; do sleep 0.05; done"
	for name, tc := range map[string]struct{ script, ended string }{
		"a command that ends":            {"trap 'echo asked; exit 9' TERM; " + up + loop, "exit status 9"},
		"a command that ignores SIGTERM": {"trap 'echo asked' TERM; " + up + loop, "killed"},
		"a command that is stopped":      {"trap 'echo asked; exit 9' TERM; " + up + "kill -STOP $$", "exit status 9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, dir := store(t), t.TempDir()
			locks := must.Get(document.New(rooms(t, env), 0))(t)
			h := startHold(t, env, "--dir", dir, "--ttl", "16s", "--wait", "17s", "--", "sh", "-c", tc.script)
			h.wantLine(t, "web-lock")
			if _, err := locks.Acquire(t.Context(), "p:project", "browser"); !errors.As(err, new(*document.HeldError)) {
				t.Errorf("the browser: %v, want the room held", err)
			}
			if broken := must.Get(locks.Unlock(t.Context(), "p:project"))(t); !broken {
				t.Fatal("the room was not locked")
			}
			must.Get(locks.Acquire(t.Context(), "p:project", "browser"))(t)
			h.end(t, 1, "asked\n", "lease-stale", tc.ended)
			denied := startHold(t, env, "--dir", dir, "--", "echo", "never")
			denied.end(t, 1, "", "room p:project", "(acquire-denied)")
			if _, err := locks.Release(t.Context(), "p:project", "browser"); err != nil {
				t.Errorf("the browser's lock was touched: %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "project")); err == nil {
				t.Error("the lock file was used in addition to Firestore")
			}
		})
	}
}

func TestHold_Expiry(t *testing.T) {
	t.Parallel()
	t.Run("what the command leaves running is ended before the release", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		lock := filepath.Join(dir, "project", ".lock")
		script := fmt.Sprintf(`(trap 'ls %q; exit' TERM; echo up; while :; do sleep 0.05; done) & read x; exit 4`, lock)
		h := startHold(t, vars{}, "--dir", dir, "--", "sh", "-c", script)
		h.wantLine(t, "up")
		must.Get(io.WriteString(h.in, "go\n"))(t)
		h.end(t, 4, lock+"\n", "left running") // the lock is still there when it is asked to end
	})
	t.Run("a hold that was stopped for longer than its lock ends its command", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		h := startHold(t, vars{}, "--dir", dir, "--ttl", "8s", "--json", "--", "sh", "-c", // it has 400 ms to end
			"trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done")
		h.wantLine(t, "up")
		guarded(t, dir, func() error { // stopped during a renewal, it would keep the guard
			err := h.Process.Signal(syscall.SIGSTOP)
			if err == nil {
				_, err = syscall.Wait4(h.Process.Pid, nil, syscall.WUNTRACED, nil)
			}
			return err
		})
		other := startHold(t, vars{}, "--dir", dir, "--wait", "20s", "--", "sh", "-c", "echo mine; cat")
		other.wantLine(t, "mine")
		must.OK(t, h.Process.Signal(syscall.SIGCONT))
		h.end(t, 1, "asked\n", "lease-stale")
		if n := strings.Count(h.errs.String(), "lock:readonly-entered"); n != 1 {
			t.Errorf("read-only was entered %d times, want once", n)
		}
		_ = other.in.Close()
		other.end(t, 0, "")
	})
	t.Run("the lock of a hold that was killed expires, and its command ends", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		h := startHold(t, vars{}, "--dir", dir, "--ttl", "1s", "--", "sh", "-c", "echo $$; exec sleep 1000")
		pid := must.Get(strconv.Atoi(h.line(t)))(t)
		must.OK(t, h.Process.Kill())
		_ = h.Wait() // killed
		l := must.Get(project.New(project.Config{Project: "p", Dir: dir}))(t)
		taken := must.Get(l.Acquire(context.Background(), project.AcquireOptions{Wait: 10 * time.Second}))(t)
		must.OK(t, l.Release(context.Background(), taken, project.ReleaseOptions{}))
		if runtime.GOOS == "linux" && alive(pid) {
			t.Error("the command outlives hold")
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
	})
}
