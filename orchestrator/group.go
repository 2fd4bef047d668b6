//go:build linux || darwin

package orchestrator

import (
	"context"
	"errors"
	"syscall"
	"time"
)

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
