package explore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/worker"
)

// budget is what the explorer may still do in one execution.
type budget struct {
	deliveries, faults, crashes, ticks, unlocks, stops, failures, hasty, recovers int
}

// action is one step.
type action struct {
	name string
	do   func()
}

var (
	errForNow  = errors.New("explore: a failure for now")
	errForGood = &orchestrator.PermanentError{Code: "explored", Message: "a failure for good"}
)

// actions are the enabled steps, in an order that is the same in each
// execution: first what goes well.
func (w *world) actions() []action {
	var all []action
	only := (*call)(nil)
	for _, p := range w.parties {
		if c := p.pending; c != nil && c.kind == book && !p.host.crashed {
			only = c
		}
	}
	add := func(do func(), format string, args ...any) {
		a := action{do: do}
		if w.traced {
			a.name = fmt.Sprintf(format, args...)
		}
		all = append(all, a)
	}
	w.callActions(add, only)
	if only != nil { // a booking is made at once or fails at once: it commutes with the rest
		return all
	}
	w.runActions(add)
	w.lateActions(add)
	w.queueActions(add)
	w.tickActions(add)
	w.otherActions(add)
	return all
}

type adder func(do func(), format string, args ...any)

func (w *world) callActions(add adder, only *call) {
	for _, p := range w.parties {
		c := p.pending
		if c == nil || p.host.crashed || (only != nil && c != only) {
			continue
		}
		add(func() { w.grant(c) }, "%s: %s", p, c.kind)
		if w.left.faults == 0 {
			continue
		}
		fault := func(do func()) func() {
			return func() {
				w.left.faults--
				do()
				w.settle()
			}
		}
		switch c.kind {
		case load:
			add(fault(func() { w.answer(c, answer{err: errNotDone}) }), "%s: %s fails", p, c.kind)
		case swap:
			add(fault(func() { w.loseReply(c) }), "%s: swap, its reply lost", p)
			add(fault(func() {
				w.late = append(w.late, c)
				w.answer(c, answer{err: errNotDone})
			}), "%s: swap fails, and may arrive later", p)
		case book:
			add(fault(func() {
				w.queue.book(c.task)
				w.answer(c, answer{err: errReplyLost})
			}), "%s: book, its reply lost", p)
			add(fault(func() { w.answer(c, answer{err: errNotDone}) }), "%s: book fails", p)
		}
	}
}

func (w *world) loseReply(c *call) {
	if w.apply(c) {
		w.count(func(s *stats) { s.lost++ })
	}
	w.answer(c, answer{err: errReplyLost})
}

func (w *world) runActions(add adder) {
	for _, p := range w.parties {
		if p.host.crashed || !p.body.runs() {
			continue
		}
		add(func() { w.tell(p, 0, nil) }, "%s: the run succeeds", p)
		switch cause := context.Cause(p.body.ctx); {
		case errors.Is(cause, lease.ErrLost): // whatever it returns
		case cause != nil:
			add(func() { w.tell(p, 1, p.body.ctx.Err()) }, "%s: the run obeys its cancellation", p)
		case w.left.failures > 0:
			add(func() { w.left.failures--; w.tell(p, 2, errForNow) }, "%s: the run fails for now", p)
			add(func() { w.left.failures--; w.tell(p, 3, errForGood) }, "%s: the run fails for good", p)
		}
	}
}

// lateActions let a swap arrive that its caller has given up. One whose
// document has changed would be refused and nobody told: no step.
func (w *world) lateActions(add adder) {
	w.late = slices.DeleteFunc(w.late, func(c *call) bool { return c.prev.Rev != w.rev })
	slices.SortFunc(w.late, func(a, b *call) int { return (a.by.id-b.by.id)*1000 + a.seq - b.seq })
	for i, c := range w.late {
		add(func() {
			w.late = slices.Delete(w.late, i, i+1)
			if w.apply(c) {
				w.count(func(s *stats) { s.delayed++ })
			}
			w.settle()
		}, "%s: the swap %d given up arrives", c.by, c.seq)
	}
}

// queueActions dispatch a task, also one that is in flight or not yet due, to
// each busy worker and to one that is idle: those are alike, and one that has
// worked before is preferred, since it may remember something.
func (w *world) queueActions(add adder) {
	if w.left.deliveries == 0 {
		return
	}
	for _, t := range w.queue.tasks {
		early := w.now().Before(t.at)
		if t.gone || (early && w.left.hasty == 0) {
			continue
		}
		dispatch := func(h *host) {
			w.left.deliveries--
			if early {
				w.left.hasty--
			}
			if h == nil {
				h = w.newHost()
			}
			w.dispatch(t, h)
		}
		var idle *host
		var busy []*host
		for _, h := range w.hosts {
			switch {
			case h.crashed || h.stopping:
			case h.busy():
				busy = append(busy, h)
			default:
				idle = h
			}
		}
		add(func() { dispatch(idle) }, "task %.6s to one that is idle", t.name)
		for _, h := range busy {
			add(func() { dispatch(h) }, "task %.6s to w%d", t.name, h.index)
		}
	}
}

// tickActions let time pass to an instant at which something changes.
func (w *world) tickActions(add adder) {
	if w.left.ticks == 0 {
		return
	}
	tick := func(what string, to time.Time, due []*party) {
		if d := time.Until(to); d > 0 {
			add(func() {
				w.left.ticks--
				w.pass(d)
				w.settle()
				w.checkBeats(due)
				w.count(func(s *stats) { s.ticks[what]++ })
			}, "time passes: %s", what)
		}
	}
	if beat, due := w.nextBeat(); len(due) > 0 {
		tick("a heartbeat is due", beat, due)
	}
	if l := w.doc.Lock; l.Owner != "" {
		if slices.ContainsFunc(w.parties, (*party).live) {
			tick("trust ends", w.local(l.ExpiresAt).Add(-margin+time.Millisecond), nil)
		}
		tick("the lock expires", w.local(l.ExpiresAt), nil)
	}
	for _, t := range w.queue.tasks {
		if !t.gone && w.now().Before(t.at) && !t.at.Before(w.doc.Lock.ExpiresAt) {
			tick("a task is due", w.local(t.at), nil)
			break
		}
	}
}

// nextBeat is when the next heartbeat is due, and whose.
func (w *world) nextBeat() (at time.Time, whose []*party) {
	for _, p := range w.parties {
		if !p.live() || p.pending != nil {
			continue
		}
		due := p.answeredAt.Add(heartbeat)
		if whose == nil || due.Before(at) {
			at, whose = due, []*party{p}
		}
	}
	return at, whose
}

func (w *world) otherActions(add adder) {
	for _, h := range w.hosts {
		if h.crashed || !h.busy() {
			continue
		}
		if w.left.crashes > 0 {
			add(func() { w.left.crashes--; w.crash(h); w.settle() }, "w%d crashes", h.index)
		}
		if w.left.stops > 0 && !h.stopping {
			add(func() { w.left.stops--; w.terminate(h) }, "w%d gets SIGTERM", h.index)
		}
	}
	if w.left.unlocks > 0 && w.doc.Lock.Owner != "" {
		add(func() { w.left.unlocks--; w.unlock() }, "the operator unlocks")
	}
	if w.left.recovers > 0 && w.orphaned() {
		add(func() { w.left.recovers--; w.recover() }, "recovery")
	}
}

func (h *host) busy() bool {
	return slices.ContainsFunc(h.parties, func(p *party) bool { return !p.ended })
}

// crash: h's goroutines are never answered again; what they asked may arrive.
func (w *world) crash(h *host) {
	h.crashed = true
	h.note(300)
	for _, p := range h.parties {
		if p.ended {
			continue
		}
		p.task.flying--
		if c := p.pending; c != nil && c.kind == swap {
			w.late = append(w.late, c)
		}
	}
	w.count(func(s *stats) { s.crashes++ })
}

func (w *world) terminate(h *host) {
	h.stopping = true
	h.note(301, uint64(time.Since(w.start)))
	h.stop(worker.ErrStopping)
	w.count(func(s *stats) { s.stops++ })
	w.settle()
}

func (w *world) recover() {
	w.acting = nil
	r, err := (&worker.Guard{Queue: front{w: w}, Backlog: w}).Recover(context.Background())
	if err != nil {
		w.violated("recovery: %v", err)
	}
	w.count(func(s *stats) { s.recoveries += r.Booked })
	w.settle()
}
