package explore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/worker/taskqueue"
)

// kind is what a call asks for.
type kind int

const (
	load kind = iota
	swap
	book
)

func (k kind) String() string { return [...]string{"load", "swap", "book"}[k] }

// call is one call to the store or the queue, waiting for the explorer.
type call struct {
	kind  kind
	by    *party
	seq   int
	prev  lease.Cell[analysislock.Analysis]
	next  analysislock.Analysis
	task  taskqueue.Task
	asked time.Time
	reply chan answer
}

type answer struct {
	cell    lease.Cell[analysislock.Analysis]
	already bool
	err     error
}

var (
	errReplyLost = errors.New("explore: the reply was lost")
	errNotDone   = errors.New("explore: the call did not arrive")
)

// front is the store and the queue as the goroutines of one host see them.
type front struct {
	w  *world
	by *party // who calls the store; the queue is called by the party that acts
}

// Load implements lease.Store.
func (f front) Load(ctx context.Context, _ string) (lease.Cell[analysislock.Analysis], error) {
	a := f.w.ask(ctx, &call{kind: load, by: f.by})
	return a.cell, a.err
}

// Swap implements lease.Store.
func (f front) Swap(ctx context.Context, _ string, prev lease.Cell[analysislock.Analysis], next analysislock.Analysis) (lease.Cell[analysislock.Analysis], error) {
	a := f.w.ask(ctx, &call{kind: swap, by: f.by, prev: prev, next: next})
	return a.cell, a.err
}

// Book implements worker.Queue. Its context names no party: it is called in
// direct consequence of the explorer's last step.
func (f front) Book(ctx context.Context, t taskqueue.Task) (already bool, err error) {
	if f.w.acting == nil { // Recover
		return f.w.queue.book(t), nil
	}
	a := f.w.ask(ctx, &call{kind: book, by: f.w.acting, task: t})
	return a.already, a.err
}

// ask blocks until the explorer answers, ctx ends or the execution is over. A
// swap that is given up may still arrive.
func (w *world) ask(ctx context.Context, c *call) answer {
	c.asked, c.reply = time.Now(), make(chan answer, 1)
	if err := ctx.Err(); err != nil {
		return answer{err: err}
	}
	w.mu.Lock()
	if w.over {
		w.mu.Unlock()
		return answer{err: lease.ErrRefused}
	}
	p := c.by
	p.calls++
	c.seq, p.pending = p.calls, c
	p.between = false
	w.mu.Unlock()
	w.wake()
	select {
	case a := <-c.reply:
		return a
	case <-ctx.Done():
		w.giveUp(c)
		return answer{err: ctx.Err()}
	case <-w.closing:
		return answer{err: fmt.Errorf("%w: over", lease.ErrRefused)}
	}
}

func (w *world) giveUp(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := c.by
	if p.pending != c || p.host.crashed {
		return
	}
	p.pending, p.between = nil, true
	if c.kind == swap {
		w.late = append(w.late, c)
	}
}

// now is the store's time: an hour behind the workers' clocks.
func (w *world) now() time.Time { return time.Now().Add(-skew).Round(0) }

const skew = time.Hour

func (w *world) cell(c *call) lease.Cell[analysislock.Analysis] {
	return lease.Cell[analysislock.Analysis]{Doc: w.doc, Exists: true, Rev: w.rev, At: w.now(), Asked: c.asked}
}

// apply does a swap if the document is still what the caller has read.
func (w *world) apply(c *call) bool {
	if c.prev.Rev != w.rev && !w.lax {
		w.count(func(s *stats) {
			s.conflicts++
			if p := c.by; p.token > 0 && w.doc.Lock.Owner != p.owner {
				s.superseded++
			}
		})
		return false
	}
	w.checkSwap(c)
	w.doc, w.updated = c.next, w.now()
	w.rev++
	return true
}

// answer lets a pending call go on.
func (w *world) answer(c *call, a answer) {
	p := c.by
	p.pending = nil
	p.between = a.err != nil && c.kind != book
	p.answeredAt = time.Now()
	p.host.note(uint64(p.id), uint64(c.kind), w.digestAnswer(a), uint64(time.Since(w.start)))
	if c.kind == load && a.err == nil && p.broken {
		p.told = true
	}
	w.acting = p
	c.reply <- a
}

// grant does what c asks and answers it. A conflict commutes with what others
// do until the reading that follows it, so both are one step.
func (w *world) grant(c *call) {
	a := answer{}
	switch c.kind {
	case load:
		a.cell = w.cell(c)
	case swap:
		if !w.apply(c) {
			a.err = lease.ErrConflict
			break
		}
		a.cell = w.cell(c)
	case book:
		a.already = w.queue.book(c.task)
		w.count(func(s *stats) { s.booked++ })
	}
	w.answer(c, a)
	w.settle()
	if next := c.by.pending; a.err != nil && next != nil && next.kind == load {
		w.answer(next, answer{cell: w.cell(next)})
		w.settle()
	}
}
