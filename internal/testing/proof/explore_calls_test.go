package proof

import (
	"context"
	"errors"
	"fmt"
	"time"

	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// callKind is the kind of a call.
type callKind int

const (
	load callKind = iota
	swap
	book
	find
)

func (k callKind) String() string { return [...]string{"load", "swap", "book", "find"}[k] }

// call is one call to the store or the queue that waits until the search replies.
type call struct {
	kind  callKind
	by    *caller
	seq   int
	prev  cell
	next  analysis
	task  taskqueue.Task // of find, only its name
	asked time.Time
	reply chan reply
}

type reply struct {
	cell    cell
	already bool
	found   taskqueue.Presence
	err     error
}

var (
	errReplyLost = errors.New("explore: the reply was lost")
	errNotDone   = errors.New("explore: the call did not arrive")
)

// Load implements lease.Store.
func (x *execution) Load(ctx context.Context, _ string) (cell, error) {
	a := x.ask(ctx, &call{kind: load})
	return a.cell, a.err
}

// Swap implements lease.Store.
func (x *execution) Swap(ctx context.Context, _ string, prev cell, next analysis) (cell, error) {
	a := x.ask(ctx, &call{kind: swap, prev: prev, next: next})
	return a.cell, a.err
}

// Book implements delivery.Queue.
func (x *execution) Book(ctx context.Context, t taskqueue.Task) (already bool, err error) {
	a := x.ask(ctx, &call{kind: book, task: t})
	return a.already, a.err
}

// Find implements delivery.Queue.
func (x *execution) Find(ctx context.Context, name string, _ time.Time) (taskqueue.Presence, error) {
	a := x.ask(ctx, &call{kind: find, task: taskqueue.Task{Name: name}})
	return a.found, a.err
}

// Orphaned implements delivery.OrphanFinder.
func (x *execution) Orphaned(context.Context, int) ([]cell, bool, error) {
	return x.orphans(), false, nil
}

// MarkDue implements delivery.OrphanFinder.
func (x *execution) MarkDue(ctx context.Context, read cell, task func(time.Time) string) (string, error) {
	return x.ledger(x).MarkDue(ctx, read, task)
}

// work returns the work at once: its order with the steps of others makes no difference,
// because only the holder writes a checkpoint. With earlyWork it is that of the delivery's
// first reading.
func (x *execution) work(ctx context.Context, d analysis) (analysislock.Work, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.earlyWork {
		return workOf(d.ID, callerOf(ctx).first), nil
	}
	return workOf(d.ID, x.rec.mark), nil
}

// ask blocks until the search replies, ctx ends or the execution is over. A swap
// whose caller gave up may still arrive.
func (x *execution) ask(ctx context.Context, c *call) reply {
	c.by, c.asked, c.reply = callerOf(ctx), time.Now(), make(chan reply, 1)
	if err := ctx.Err(); err != nil {
		return reply{err: err}
	}

	x.mu.Lock()
	if x.over {
		x.mu.Unlock()
		return reply{err: lease.ErrRefused}
	}

	p := c.by
	if c.kind == swap {
		x.learnOwner(p, c.next)
		if k := markOf(c.next.Checkpoint); k.token == p.token {
			p.sent = k
		}
	}
	if c.kind < book {
		p.askedAt = c.asked
	}
	p.calls++
	c.seq, p.pending = p.calls, c
	p.retrying = false
	x.mu.Unlock()
	x.wake()

	select {
	case a := <-c.reply:
		return a
	case <-ctx.Done():
		x.giveUp(c)
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

// apply does a swap and reports whether it was applied.
func (x *execution) apply(c *call) (reply, bool) {
	got, err := x.swap(c.by, x.rec.doc.ID, c.prev, c.next)
	if err != nil {
		err = lease.ErrConflict // without its text, which is part of the state
	}
	got.Asked = c.asked
	return reply{cell: got, err: err}, err == nil
}

func (x *execution) read(c *call) reply {
	got := x.load(x.rec.doc.ID)
	if got.Asked = c.asked; c.seq == 1 {
		c.by.first = x.rec.mark
	}
	return reply{cell: got}
}

// answer replies to a pending call.
func (x *execution) answer(c *call, a reply) {
	p := c.by
	p.pending = nil
	p.retrying = a.err != nil && c.kind < book
	p.repliedAt = time.Now()
	p.on.receive(p.n, c.kind, x.digestReply(a), x.since())
	if c.kind == load && a.err == nil && p.broken != nil {
		p.readBreak = true
	}
	c.reply <- a
}

// grant executes c and replies. A conflict and the read after it are one step,
// because the steps of others between them make no difference.
func (x *execution) grant(c *call) {
	var a reply
	switch c.kind {
	case load:
		a = x.read(c)
	case swap:
		a, _ = x.apply(c)
	case book:
		a.already = x.book(c.task, c.by) == nil
		x.count("deliveries booked")
	case find:
		a.found = x.find(c.task.Name)
	}
	x.answer(c, a)
	x.settle()
	if next := c.by.pending; a.err != nil && next != nil && next.kind == load {
		x.answer(next, x.read(next))
		x.settle()
	}
}
