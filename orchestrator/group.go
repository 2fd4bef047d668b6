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
	g.signal(syscall.SIGTERM)
	deadline := time.Now().Add(grace)
	for done := ctx.Done(); g.running() && time.Now().Before(deadline); {
		select {
		case <-time.After(min(pollEvery, time.Until(deadline))):
		case <-done:
			done = nil
			deadline = time.Now().Add(min(time.Until(deadline), killAfter(ctx, grace)))
		}
	}

	// Also when no process was found: one that forks and exits at the same time may be
	// missed by running, but not by a signal to the group.
	g.signal(syscall.SIGKILL)
	for g.running() {
		time.Sleep(pollEvery)
	}
}

// killAfter returns how long the group may run after the end of ctx: grace, unless the
// cause of that end has another limit.
func killAfter(ctx context.Context, grace time.Duration) time.Duration {
	var urgent interface{ KillAfter() time.Duration }
	if errors.As(context.Cause(ctx), &urgent) {
		return urgent.KillAfter()
	}
	return grace
}

// signal ignores the error: running shows the effect.
func (g group) signal(s syscall.Signal) { _ = syscall.Kill(-g.leader, s) }

// running reports whether a process of the group runs. Zombies do not count.
func (g group) running() bool { return !g.leaderExited() || g.othersRun() }

func (g group) leaderExited() bool {
	select {
	case <-g.exited:
		return true
	default:
		return false
	}
}
