//go:build linux || darwin

package orchestrator

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// pollEvery is how often a group that is being ended is looked at: no system
// tells when a group has become empty.
const pollEvery = 5 * time.Millisecond

// group is the process group that a program leads. Its id cannot be used again
// as long as the leader has not been waited for, ended or not; all signals are
// sent before that.
type group struct {
	leader int // the leader's process id, which is the group's id
	exited <-chan struct{}
}

// end returns when no process of the group runs. It sends SIGTERM and, after
// grace, SIGKILL: if ctx has ended or ends meanwhile, that may come sooner (see
// killAfter). It waits as long as it takes for what SIGKILL does not end at
// once: a process inside the kernel, or one of another user.
func (g group) end(ctx context.Context, grace time.Duration) {
	if g.running() {
		g.signal(syscall.SIGTERM)
		g.await(ctx, grace)
	}
	// Also when nobody seemed to be left: a process that forks and exits can
	// escape the eye, but not a signal to the group.
	g.signal(syscall.SIGKILL)
	for g.running() {
		time.Sleep(pollEvery)
	}
	<-g.exited
}

// await waits until the group has ended or its time is over.
func (g group) await(ctx context.Context, grace time.Duration) {
	deadline := time.Now().Add(grace)
	over := time.NewTimer(grace)
	defer over.Stop()
	look := time.NewTicker(pollEvery)
	defer look.Stop()
	for cancelled := ctx.Done(); g.running(); {
		select {
		case <-look.C:
		case <-over.C:
			return
		case <-cancelled:
			cancelled = nil
			if soon, is := killAfter(ctx); is && time.Now().Add(soon).Before(deadline) {
				over.Reset(soon)
			}
		}
	}
}

// killAfter is how long what ignores the end of ctx may live on, if the
// context's cause has an opinion.
func killAfter(ctx context.Context) (after time.Duration, is bool) {
	var urgent interface{ KillAfter() time.Duration }
	if is = errors.As(context.Cause(ctx), &urgent); is {
		after = urgent.KillAfter()
	}
	return after, is
}

// signal reaches whoever is in the group. There is no one to tell of a failure,
// and nothing else to do: running says what came of it.
func (g group) signal(s syscall.Signal) { _ = syscall.Kill(-g.leader, s) }

func (g group) leaderExited() bool {
	select {
	case <-g.exited:
		return true
	default:
		return false
	}
}
