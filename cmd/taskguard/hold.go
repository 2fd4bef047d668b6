//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"taskguard/lease"
	"taskguard/lease/documentlock"
	"taskguard/lease/projectlock"
)

// As shells have it.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // and the signal's number
)

// holdOptions are hold's flags.
type holdOptions struct {
	project, dir string
	ttl, wait    time.Duration
	telemetry    bool
}

// hold runs a command under the lock of a project: seed 001's withProjectLock.
//
// The command has this process's own standard streams, a process group of its
// own, and the terminal if this process has it. The signals that this process does
// not ignore go to that group. When the lock is lost the group gets SIGTERM, and
// SIGKILL before another can have the lock, where time is what was lost. What the
// command leaves running is ended before the lock is released. What leaves the
// group, by setsid or a shell's job control, is out of reach: it is not ended, and
// may run on without the lock.
//
// What hold has to say is said beside all this: no reader of standard error
// delays it.
func hold(ctx context.Context, c *call) error {
	// Received and given to nobody: what writes to a closed standard error would
	// die of it. To ignore it would let the command inherit that.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	signals := make(chan os.Signal, 8)
	if wanted := forwarded(); len(wanted) > 0 {
		signal.Notify(signals, wanted...)
	}
	defer signal.Stop(signals)
	v := newVoice(c.err)
	defer v.close()
	c.err = v
	err := ctx.Err() // of a signal that came before this listened
	if err == nil {
		err = c.hold(ctx, signals)
	}
	if code := report(ctx, v, c.name, err); code != exitDone {
		return exitError{code, nil} // which has had its say
	}
	return nil
}

// forwarded are the signals for the command: an ignored one, as by nohup, is
// ignored by the command too.
func forwarded() (wanted []os.Signal) {
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
		if !signal.Ignored(s) {
			wanted = append(wanted, s)
		}
	}
	return wanted
}

func (c *call) hold(ctx context.Context, signals <-chan os.Signal) error {
	o, command, err := c.holdFlags()
	if err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return notStarted(command[0], err)
	}
	remote, closeRemote, err := c.openRooms(ctx)
	if err != nil {
		return err
	}
	defer closeRemote()
	l, err := projectlock.New(projectlock.Config{Project: o.project, Remote: remote, Dir: o.dir, Log: c.log()})
	if err != nil {
		return usageError(err.Error())
	}
	c.listen(l, o)
	h := &holding{call: c, run: &program{path: path, args: command}}
	return h.under(ctx, l, projectlock.AcquireOptions{TTL: o.ttl, Wait: o.wait}, signals)
}

// holdFlags are the flags, which end where the command begins.
func (c *call) holdFlags() (o holdOptions, command []string, _ error) {
	c.takesJSON("print what happens to the lock on standard error, a line of JSON each")
	c.flags.StringVar(&o.project, "project", "", "the project's name (required)")
	c.flags.StringVar(&o.dir, "dir", ".", "the directory that has project/ in it, for the lock file")
	c.flags.DurationVar(&o.ttl, "ttl", 0, "how long the lock outlives its last heartbeat (default 25s, or 30s of the lock file)")
	c.flags.DurationVar(&o.wait, "wait", 0, "how long to keep trying while another holds the lock, beyond three attempts")
	c.flags.BoolVar(&o.telemetry, "telemetry", false, "write project/autosave/lock-DATE.jsonl")
	err := c.flags.Parse(c.args)
	command = c.flags.Args()
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.help()
		printTo(c.out, "\nEnvironment: GOOGLE_CLOUD_PROJECT, FIRESTORE_DATABASE, FIRESTORE_EMULATOR_HOST, DOCUMENT_LOCKS_COLLECTION (documentLocks); without a project, project/.lock alone\n\n"+
			"When the lock is lost, the command's process group is ended. What leaves the group, by setsid or a shell's job control, is not.\n")
		return o, nil, err
	case err != nil:
		return o, nil, usageError(err.Error())
	case o.project == "":
		return o, nil, usageError("--project must name one")
	case len(command) == 0:
		return o, nil, usageError("missing argument: want " + c.arguments)
	case o.ttl < 0 || o.wait < 0 || o.ttl != 0 && o.ttl < time.Second:
		return o, nil, usageError("--ttl must be at least 1s, and --wait no less than 0")
	}
	return o, command, nil
}

// openRooms is the remote store, where the environment names one; else nil,
// which it says.
func (c *call) openRooms(ctx context.Context) (_ lease.Store[documentlock.Lock], closeAll func(), _ error) {
	if c.value("GOOGLE_CLOUD_PROJECT") == "" && c.value(firestoreEmulator) == "" {
		printTo(c.err, "taskguard hold: GOOGLE_CLOUD_PROJECT is not set: the lock is project/.lock, which keeps out programs on this machine, but none that holds the lock in Firestore\n")
		return nil, func() {}, nil
	}
	p, err := c.place()
	if err != nil {
		return nil, nil, err
	}
	rooms, err := c.rooms(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	return rooms, func() { _ = rooms.Close() }, nil // nothing is under way
}

// listen reports the lock's events.
func (c *call) listen(l *projectlock.Locker, o holdOptions) {
	out := json.NewEncoder(c.err)
	var mu sync.Mutex
	l.Subscribe(func(e projectlock.Event) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case c.json:
			_ = out.Encode(e) // a voice takes all
		case e.Type == projectlock.FallbackEngaged && e.Reason != projectlock.Unsupported:
			printTo(c.err, "taskguard hold: Firestore does not answer: the lock is project/.lock, which keeps out programs on this machine, but none that still reaches Firestore\n")
		}
	})
	if o.telemetry {
		l.Subscribe(projectlock.NewTelemetry(o.dir, c.log()).Record)
	}
}

// holding is a command under its lock.
type holding struct {
	*call
	run   *program
	ended syscall.WaitStatus
	began bool
}

// under runs the command under l, and answers its exit code as an exitError.
func (h *holding) under(ctx context.Context, l *projectlock.Locker, o projectlock.AcquireOptions, signals <-chan os.Signal) error {
	// From here on a signal is the command's, and no end of ctx.
	ctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	done := make(chan struct{})
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			select {
			case s := <-signals:
				if number, ok := s.(syscall.Signal); ok && !h.run.signal(number) {
					stop(signalError(number)) // there is no command yet
				}
			case <-done:
				return
			}
		}
	})
	err := l.WithProjectLock(ctx, o, h.body)
	close(done)
	passing.Wait()
	return h.outcome(ctx, err)
}

// signalError is the end of a wait for the lock.
type signalError syscall.Signal

func (e signalError) Error() string { return "interrupted: " + syscall.Signal(e).String() }

// body runs the command. It answers when nothing of it runs any more.
func (h *holding) body(ctx context.Context, ls projectlock.Lease) (err error) {
	env := append(os.Environ(), "PROJECT_LOCK_ID="+ls.ID,
		"PROJECT_LOCK_TOKEN="+strconv.FormatInt(ls.Token, 10), "PROJECT_LOCK_STRATEGY="+string(ls.Strategy))
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	err = h.run.start(env)
	if signalled := signalError(0); errors.As(err, &signalled) {
		return err
	}
	if err != nil {
		return notStarted(h.run.args[0], err)
	}
	h.began = true
	h.ended = h.run.wait(ctx, func(note string) { printTo(h.err, "taskguard hold: %s\n", note) })
	return nil
}

// outcome is the exit code that err and the command's end come to.
func (h *holding) outcome(ctx context.Context, err error) error {
	var signalled signalError
	var coded exitError
	var locked *projectlock.Error
	switch {
	case errors.As(err, &coded):
		return coded
	case !h.began && (errors.As(err, &signalled) || errors.As(context.Cause(ctx), &signalled)):
		return exitError{exitSignal + int(signalled), fmt.Errorf("taskguard hold: %s", signalled.Error())}
	case !h.began && err != nil:
		return err
	case errors.As(err, &locked) && locked.Code != projectlock.ReleaseFailed:
		return fmt.Errorf("the lock was lost; the command came to its end with %s: %w", describe(h.ended), err)
	case err != nil:
		printTo(h.err, "taskguard hold: %s\n", visibleLines(err.Error()))
	}
	return exitError{exitCode(h.ended), nil}
}

func exitCode(s syscall.WaitStatus) int {
	if s.Signaled() {
		return exitSignal + int(s.Signal())
	}
	return s.ExitStatus()
}

func describe(s syscall.WaitStatus) string {
	if s.Signaled() {
		return "signal " + s.Signal().String()
	}
	return fmt.Sprintf("exit status %d", s.ExitStatus())
}

// notStarted is why a command could not be started, with a shell's exit code.
func notStarted(name string, err error) error {
	code := exitNotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	return exitError{code, fmt.Errorf("taskguard hold: %s: %w", visible(name), err)}
}
