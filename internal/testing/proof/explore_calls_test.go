package proof

import (
	"context"
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
)

var (
	errReplyLost = errors.New("explore: the reply was lost")
	errNotDone   = errors.New("explore: the call did not arrive")
)

// ask blocks until the search replies, ctx ends or the execution is over. A swap whose caller gave
// up may still arrive. The work of an attempt and the orphans are read at once: the order of that
// and of the steps of others makes no difference, because only the holder writes a checkpoint.
func (x *execution) ask(ctx context.Context, c *call) reply {
	c.reply = make(chan reply, 1)
	x.mu.Lock()
	if x.over {
		x.mu.Unlock()
		return reply{err: lease.ErrRefused}
	}
	if c.kind == readWork || c.kind == list {
		defer x.mu.Unlock()
		return x.serve(c)
	}

	p := c.by
	if k := markOf(c.next.Checkpoint); c.kind == swap && k.token == p.token {
		p.sent = k
	}
	if c.kind == load || c.kind == swap {
		p.askedAt = c.asked
	}
	p.pending, p.retrying = c, false
	x.mu.Unlock()
	x.wake()

	return x.await(ctx, c, func() { x.giveUp(c) })
}

// await waits for the reply to c.
func (x *execution) await(ctx context.Context, c *call, giveUp func()) reply {
	select {
	case a := <-c.reply:
		return a
	case <-ctx.Done():
		giveUp()
		return reply{err: ctx.Err()}
	case <-x.closing:
		return reply{err: fmt.Errorf("%w: over", lease.ErrRefused)}
	}
}

func (x *execution) giveUp(c *call) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := c.by
	if p.pending != c || p.on.crashed {
		return
	}
	p.pending, p.retrying = nil, true
	x.delay(c)
}

// delay lets a swap that got no reply arrive later. A requeue's does not: the delivery that
// the operator then books could come before it.
func (x *execution) delay(c *call) {
	if c.kind == swap && c.by.operates != Requeue {
		x.late = append(x.late, c)
	}
}

// answer replies to a pending call.
func (x *execution) answer(c *call, a reply) {
	p := c.by
	p.pending = nil
	p.retrying = a.err != nil && (c.kind == load || c.kind == swap)
	p.repliedAt = time.Now()
	if read := c.kind == load && a.err == nil; read && p.broken != nil {
		p.readBreak = true
	}
	c.reply <- a
}

// grant executes c and replies. A conflict and the read after it are one step,
// because the steps of others between them make no difference.
func (x *execution) grant(c *call) {
	a := x.serve(c)
	x.answer(c, a)
	x.settle()
	if a.err == nil || c.by.pending == nil {
		return
	}
	if next := c.by.pending; next.kind == load {
		x.answer(next, x.serve(next))
		x.settle()
	}
}
