//go:build unix

// Package hold runs a command under the lock of a project, as seed 001's withProjectLock does.
package hold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/lease"
	"taskguard/locks/project"
)

// Exit codes of shells.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the signal's number
)

// options are the flags of hold.
type options struct {
	project, dir string
	ttl, wait    time.Duration
	telemetry    bool
}

// Hold runs a command under the lock of a project.
//
// The command has this process's standard streams, a new process group, and the
// terminal if this process has it. Signals that this process does not ignore are
// forwarded to the group. When the lock is lost, the group gets SIGTERM, and SIGKILL
// before another can acquire the lock. Processes that the command leaves behind are ended
// before the lock is released. A process that leaves the group, by setsid or a shell's
// job control, is not ended, and may run on without the lock.
//
// Messages are written asynchronously: a blocked standard error delays nothing.
func Hold(lookup cli.Lookup) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use: "hold --project NAME [flags] -- COMMAND [ARG…]", GroupID: cli.Locks, ValidArgsFunction: cli.Files,
		Short: "Run a command under a project's lock",
		Long: "It exits as the command does. If the lock is lost, it ends the command's process group. " +
			"A process that has left the group (setsid, a shell's job control) keeps running. " +
			"If hold itself gets SIGKILL, Linux kills the command but not its children.",
		Example: "taskguard hold --project album -- ./publish.sh\n" +
			"taskguard hold --project album --wait 10m -- ./publish.sh --all",
		Annotations: cli.Reads("GOOGLE_CLOUD_PROJECT, FIRESTORE_EMULATOR_HOST, " + cli.RoomVariables +
			"; without a project, project/.lock alone"),
		RunE: func(cmd *cobra.Command, command []string) error {
			switch {
			case o.project == "":
				return cli.UsageError("--project must name one")
			case len(command) == 0:
				return cli.MissingArgument(cmd)
			case o.wait < 0 || o.ttl != 0 && o.ttl < time.Second:
				return cli.UsageError("--ttl must be at least 1s, and --wait no less than 0")
			}
			return run(cmd.Context(), cli.NewCall(cmd, lookup), o, command)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // a flag after COMMAND is COMMAND's
	flags.StringVar(&o.project, "project", "", "the project's name (required)")
	flags.StringVar(&o.dir, "dir", ".", "the directory with project/, which holds the lock file")
	flags.DurationVar(&o.ttl, "ttl", 0,
		"how long the lock outlives its last heartbeat (default 25s, or 30s of the lock file)")
	flags.DurationVar(&o.wait, "wait", 0, "how long to retry while another holds the lock, after three attempts")
	flags.BoolVar(&o.telemetry, "telemetry", false, "write project/autosave/lock-DATE.jsonl")
	cli.TakesJSON(cmd, "print the lock's events on standard error, a line of JSON each")
	_ = cmd.MarkFlagDirname("dir") // it is declared
	return cmd
}

// run runs the command with its messages and signals.
func run(ctx context.Context, c *cli.Call, o options, command []string) error {
	// Writing to a closed standard error must not end this process. An ignored signal
	// would be ignored by the command too, so SIGPIPE is received, in a separate channel:
	// many of them take no forwarded signal's place.
	broken, signals := make(chan os.Signal, 1), make(chan os.Signal, 8)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	if handled := forwarded(); len(handled) > 0 { // without an argument, Notify forwards every signal
		signal.Notify(signals, handled...)
	}
	defer signal.Stop(signals)

	w := newAsyncWriter(c.Err)
	defer w.close()
	c.Err = w
	err := ctx.Err() // set if a signal came before Notify
	if err == nil {
		err = hold(ctx, c, o, command, signals)
	}
	if code := cli.Report(ctx, w, c.Name, err); code != cli.ExitDone {
		return cli.ExitError{Code: code}
	}
	return nil
}

// forwarded returns the signals that are forwarded to the command. A signal that this process
// ignores, for example because of nohup, is ignored by the command too.
func forwarded() []os.Signal {
	all := []os.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	}
	return slices.DeleteFunc(all, signal.Ignored)
}

func hold(ctx context.Context, c *cli.Call, o options, command []string, signals <-chan os.Signal) error {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return notStarted(command[0], err)
	}
	cfg, err := configure(ctx, c, o)
	if err != nil {
		return err
	}
	l, err := project.New(cfg)
	if err != nil {
		return cli.UsageError(err.Error())
	}

	subscribe(c, l, o)
	r := &runner{Call: c, project: o.project, group: &processGroup{path: path, args: command}}
	return r.run(ctx, l, project.AcquireOptions{TTL: o.ttl, Wait: o.wait}, signals)
}

// configure opens the store of the environment's project, if one is named.
func configure(ctx context.Context, c *cli.Call, o options) (cfg project.Config, err error) {
	cfg.Project, cfg.Dir = o.project, o.dir
	if c.Value("GOOGLE_CLOUD_PROJECT") == "" && c.Value(cli.FirestoreEmulator) == "" {
		c.Notice("GOOGLE_CLOUD_PROJECT is not set: the lock is project/.lock, " +
			"which excludes programs on this machine, but none that holds the lock in Firestore")
		return cfg, nil
	}
	cfg.Remote, _, err = c.Rooms(ctx)
	return cfg, err
}

// subscribe reports the lock's events.
func subscribe(c *cli.Call, l *project.Locker, o options) {
	out := json.NewEncoder(c.Err)
	l.Subscribe(func(e project.Event) {
		switch {
		case c.JSON:
			_ = out.Encode(e) // an asyncWriter never fails
		case e.Type == project.FallbackEngaged && e.Reason != project.Unsupported:
			c.Notice("Firestore does not answer: the lock is project/.lock, which excludes programs on this machine, " +
				"but none that still reaches Firestore")
		}
	})
	if o.telemetry {
		l.Subscribe(project.NewTelemetry(o.dir, c.Log()).Record)
	}
}

// runner runs a command under the lock of a project.
type runner struct {
	*cli.Call
	project string
	group   *processGroup
	started bool
	status  syscall.WaitStatus
}

// run runs the command under l and returns its exit code as a cli.ExitError.
func (r *runner) run(ctx context.Context, l *project.Locker, o project.AcquireOptions, signals <-chan os.Signal) error {
	// From here on a signal is for the command, and does not end ctx.
	ctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	r.group.cancel = stop
	done := make(chan struct{})
	var forwarding sync.WaitGroup
	forwarding.Go(func() {
		for {
			select {
			case s := <-signals:
				if number, ok := s.(syscall.Signal); ok {
					r.group.signal(number)
				}
			case <-done:
				return
			}
		}
	})

	err := l.WithProjectLock(ctx, o, r.command)
	close(done)
	forwarding.Wait()
	return r.exit(ctx, err)
}

// signalError ends the wait for the lock.
type signalError syscall.Signal

func (e signalError) Error() string { return "interrupted: " + syscall.Signal(e).String() }

// command runs the command and returns when no process of its group runs.
func (r *runner) command(ctx context.Context, ls project.Lease) error {
	err := r.group.start(ctx, append(os.Environ(), "PROJECT_LOCK_ID="+ls.ID,
		"PROJECT_LOCK_TOKEN="+strconv.FormatInt(ls.Token, 10), "PROJECT_LOCK_STRATEGY="+string(ls.Strategy)))
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return notStarted(r.group.args[0], err)
	}

	r.started = true
	r.status = r.group.wait(ctx, func(message string) { r.Notice("%s", message) })
	return nil
}

// explain rewrites the error of an acquisition that another's lock prevents.
func (r *runner) explain(err error) error {
	var failed *project.Error
	var held *lease.HeldError
	if !errors.As(err, &failed) || !errors.As(err, &held) {
		return err
	}

	place, sooner := "in Firestore, room "+r.project+":project", ""
	if failed.Code == project.FallbackConflict {
		// The clock of its holder may be ahead.
		place, sooner = "file project/.lock", "; hold --wait takes a file that stays unchanged for its ttl sooner"
	}
	until := held.ExpiresAt.Local().Format("2006-01-02 15:04:05 MST")
	return fmt.Errorf("project %s is locked by another program or browser (%s) until %s, "+
		"or longer if its holder renews the lock%s: try again later, or wait with --wait 10m (%s)",
		r.project, place, until, sooner, failed.Code)
}

// exit returns the exit code for err and the command's end.
func (r *runner) exit(ctx context.Context, err error) error {
	var signalled signalError
	var coded cli.ExitError
	var locked *project.Error

	switch {
	case errors.As(err, &coded):
		return coded
	case !r.started && errors.As(context.Cause(ctx), &signalled):
		return cli.ExitError{Code: exitSignal + int(signalled), Err: signalled}
	case !r.started && err != nil:
		return r.explain(err)
	case errors.As(err, &locked) && locked.Code != project.ReleaseFailed:
		return fmt.Errorf("the lock was lost; the command ended with %s: %w", describe(r.status), err)
	case err != nil:
		r.Notice("%s", printable.Lines(err.Error()))
	}

	if r.status.Signaled() {
		return cli.ExitError{Code: exitSignal + int(r.status.Signal())}
	}
	return cli.ExitError{Code: r.status.ExitStatus()}
}

func describe(s syscall.WaitStatus) string {
	if s.Signaled() {
		return "signal " + s.Signal().String()
	}
	return fmt.Sprintf("exit status %d", s.ExitStatus())
}

// notStarted returns the error of a command that could not be started, with a shell's
// exit code.
func notStarted(name string, err error) error {
	code := exitNotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	return cli.ExitError{Code: code, Err: fmt.Errorf("%s: %w", printable.Line(name), err)}
}
