//go:build linux || darwin

package orchestrator

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// pollEvery is how often end looks whether the group has ended: no system
// notifies of an empty group.
const pollEvery = 5 * time.Millisecond

// group is the process group that a program leads. Its id cannot be reused before
// the leader has been waited for, and all signals are sent before that.
type group struct {
	leader int // the leader's process id, which is the group's id
	exited <-chan struct{}
}

// end sends SIGTERM to the group and, after grace, SIGKILL, or sooner if the cause of
// ctx's end demands it (see killAfter). It returns when no process of the group runs,
// however long that takes: SIGKILL does not end a process inside the kernel at once.
func (g group) end(ctx context.Context, grace time.Duration) {
	if g.running() {
		g.signal(syscall.SIGTERM)
		g.await(ctx, grace)
	}
	// Also when no process was found: one that forks and exits at the same time may be
	// missed by running, but not by a signal to the group.
	g.signal(syscall.SIGKILL)
	for g.running() {
		time.Sleep(pollEvery)
	}
	<-g.exited
}

// await waits until the group has ended or grace has passed.
func (g group) await(ctx context.Context, grace time.Duration) {
	deadline := time.Now().Add(grace)
	expired := time.NewTimer(grace)
	defer expired.Stop()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for done := ctx.Done(); g.running(); {
		select {
		case <-poll.C:
		case <-expired.C:
			return
		case <-done:
			done = nil
			if after, ok := killAfter(ctx); ok && time.Now().Add(after).Before(deadline) {
				expired.Reset(after)
			}
		}
	}
}

// killAfter returns how long the group may run after the end of ctx, if the cause
// of that limits it.
func killAfter(ctx context.Context) (after time.Duration, ok bool) {
	var urgent interface{ KillAfter() time.Duration }
	if ok = errors.As(context.Cause(ctx), &urgent); ok {
		after = urgent.KillAfter()
	}
	return after, ok
}

// signal ignores the error: running shows the effect.
func (g group) signal(s syscall.Signal) { _ = syscall.Kill(-g.leader, s) }

func (g group) leaderExited() bool {
	select {
	case <-g.exited:
		return true
	default:
		return false
	}
}
