//go:build linux || darwin

package orchestrator

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"taskguard/internal/children"
)

// child is one running program with its pipes. Only the goroutine that started it
// calls its methods.
type child struct {
	cmd    *exec.Cmd
	group  group
	exited chan struct{} // closed when the program has exited; cmd.ProcessState is set then
	full   chan struct{} // closed when the program has printed more than MaxOutputBytes
	out    output
	errors tail // the end of standard error

	stdin                   *os.File
	stdout, stderr, reports pipe
	reported                *reports
	replies                 *replies
	writing                 sync.WaitGroup // the goroutines that write the input and the replies
}

// start starts the program. The caller ends its group, and then calls close.
func (p *program) start(ctx context.Context, job Job, input []byte) (*child, error) {
	c := &child{cmd: p.command(ctx, job), exited: make(chan struct{}), full: make(chan struct{})}
	c.out.wantJSON, c.replies = p.wantJSON, newReplies(ctx, job)
	c.reported = job.reports(c.replies)

	childEnds, err := c.connect()
	if err == nil {
		err = c.launch()
	}
	closeAll(childEnds...)
	if err != nil {
		closeAll(c.stdin, c.stdout.file, c.stderr.file, c.reports.file)
		c.replies.close()
		return nil, err
	}
	c.group = group{leader: c.cmd.Process.Pid, exited: c.exited}

	c.stdout.read(func(b []byte) {
		if !c.out.tooLarge && !c.out.add(b) {
			close(c.full)
		}
	})
	c.stderr.read(func(b []byte) {
		c.errors.add(b)
		if job.Stderr != nil {
			_, _ = job.Stderr.Write(b)
		}
	})
	c.reports.ended = c.reported.end
	c.reports.read(c.reported.add)
	c.writing.Go(c.replies.serve)
	c.writing.Go(func() {
		// A program need not read its input, so a broken pipe is not an error.
		_, _ = c.stdin.Write(input)
		closeAll(c.stdin)
	})
	return c, nil
}

// command returns the program's command without its pipes.
func (p *program) command(ctx context.Context, job Job) *exec.Cmd {
	cmd := exec.Command(p.path, p.args[1:]...)
	cmd.Args[0], cmd.SysProcAttr = p.args[0], attributes()
	cmd.Env = append(slices.DeleteFunc(os.Environ(), p.withholds),
		"ANALYSIS_ID="+job.AnalysisID,
		"LOCK_TOKEN="+strconv.FormatInt(job.LockToken, 10),
		"ATTEMPT="+strconv.Itoa(job.Attempt),
		"REPORT_FD=3", "REPLY_FD=4") // ExtraFiles
	for name, value := range traceHeaders(ctx) {
		cmd.Env = append(cmd.Env, strings.ToUpper(name)+"="+value)
	}
	return cmd
}

// withholds reports whether the program does not get a variable of this process. It gets the
// listed variables, but not the trace in which this process itself was started.
func (p *program) withholds(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	listed := slices.ContainsFunc(p.env, func(pattern string) bool {
		prefix, isPrefix := strings.CutSuffix(pattern, "*")
		return name == pattern || isPrefix && strings.HasPrefix(name, prefix)
	})
	return !listed || name == "TRACEPARENT" || name == "TRACESTATE"
}

// connect makes the pipes and returns the child's ends. With the pipes of package exec,
// Wait would wait for every process that has inherited them, or drop their contents.
func (c *child) connect() (childEnds []*os.File, err error) {
	var in, out, errs, reports, replies *os.File
	for _, pipe := range []struct{ reader, writer **os.File }{
		{&in, &c.stdin}, {&c.stdout.file, &out}, {&c.stderr.file, &errs},
		{&c.reports.file, &reports}, {&replies, &c.replies.file},
	} {
		if *pipe.reader, *pipe.writer, err = os.Pipe(); err != nil {
			break
		}
	}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr, c.cmd.ExtraFiles = in, out, errs, []*os.File{reports, replies}
	return []*os.File{in, out, errs, reports, replies}, err
}

// launch starts the program on a thread that lives until the program has exited: on
// Linux the kernel kills the child when its parent thread ends.
func (c *child) launch() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := children.Start(c.cmd)
		started <- err
		if err == nil {
			_ = children.Wait(c.cmd) // ProcessState says as much as the error
			close(c.exited)
		}
	}()
	return <-started
}

// collect reads the rest of what the program wrote, before it exited or its group ended. Later
// output of its children is read and dropped, so that they do not block. A program that has
// exited reads no replies, and its last report may lack the newline.
func (c *child) collect() {
	c.stdout.collect()
	c.stderr.collect()
	c.replies.close()
	c.reports.collect()
	c.reported.end()
}

// awaitActs waits, after a stop, until the program has no act under way. It waits only if the stop's cause has a
// method TermAfter, and no longer than that returns. lasting ends if the lock is lost meanwhile.
func (c *child) awaitActs(ctx, lasting context.Context) {
	var stop interface{ TermAfter() time.Duration }
	if !errors.As(context.Cause(ctx), &stop) {
		return
	}
	term := time.Now().Add(stop.TermAfter())
	for c.replies.acting.Load() > 0 && lasting.Err() == nil && !c.group.leaderExited() && time.Now().Before(term) {
		time.Sleep(pollInterval)
	}
}

// close releases the child's resources. Its group must have ended.
func (c *child) close() {
	closeAll(c.stdin)
	c.writing.Wait()
	c.stdout.close()
	c.stderr.close()
	c.reports.close()
}

// closeAll closes files, which may be nil or closed already.
func closeAll(files ...*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// pollInterval is how often end checks whether the group has ended: no system
// notifies of an empty group.
const pollInterval = 5 * time.Millisecond

// group is the process group that a program leads. Its id is free for other processes when
// the leader has exited and the group is empty; end sends no signal much later than that.
type group struct {
	leader int             // the leader's process id, which is the group's id
	exited <-chan struct{} // closed when the leader has exited
}

// end sends SIGTERM to the group and, after grace, SIGKILL. The cause of ctx's end may
// shorten grace (see killAfter). It returns when no process of the group runs. That may
// take long, as SIGKILL does not end a process inside the kernel at once.
func (g group) end(ctx context.Context, grace time.Duration) {
	g.signal(syscall.SIGTERM)
	deadline := time.Now().Add(grace)
	for done := ctx.Done(); g.runs() && time.Now().Before(deadline); {
		select {
		case <-time.After(min(pollInterval, time.Until(deadline))):
		case <-done:
			done = nil
			deadline = time.Now().Add(min(time.Until(deadline), killAfter(ctx, grace)))
		}
	}

	// Send it also if no process runs: runs may miss a process that forks and exits
	// at the same time, but a signal to the group does not.
	g.signal(syscall.SIGKILL)
	for g.runs() {
		time.Sleep(pollInterval)
	}
}

// killAfter returns how long the group may run after the end of ctx: the limit of the
// cause of that end, or else grace.
func killAfter(ctx context.Context, grace time.Duration) time.Duration {
	var urgent interface{ KillAfter() time.Duration }
	if errors.As(context.Cause(ctx), &urgent) {
		return urgent.KillAfter()
	}
	return grace
}

// signal ignores the error: runs shows the effect.
func (g group) signal(s syscall.Signal) { _ = syscall.Kill(-g.leader, s) }

// runs reports whether a process of the group runs. Zombies do not count.
func (g group) runs() bool { return !g.leaderExited() || g.othersRun() }

func (g group) leaderExited() bool {
	select {
	case <-g.exited:
		return true
	default:
		return false
	}
}
