package proof

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"time"

	"taskguard/internal/delivery"
	"taskguard/lease"
	"taskguard/lease/leasetest"
	"taskguard/orchestrator"
)

// budget is how many steps of each kind the search may still take in one execution.
type budget struct {
	deliveries, faults, crashes, ticks, unlocks, stops, failures, early, recovers int
	reports, cancels, requeues                                                    int

	others int // dispatches to a worker that does other work
}

// step is one step that is possible now.
type step struct {
	name string
	do   func()
}

type adder func(do func(), format string, args ...any)

var (
	errForNow  = errors.New("a failure for now")
	errForGood = &orchestrator.PermanentError{Code: "explored", Message: "a failure for good"}
)

// steps returns the possible steps, in an order that is the same in each execution.
// The first is the one without a fault.
func (x *execution) steps() []step {
	var all []step
	add := func(do func(), format string, args ...any) {
		s := step{do: do}
		if x.traced {
			s.name = fmt.Sprintf(format, args...)
		}
		all = append(all, s)
	}
	for _, p := range x.callers { // a booking is the only step: its order with other steps makes no difference
		if c := p.booking(); c != nil {
			if x.callSteps(add, c); x.left.crashes > 0 && p.operates == "" {
				add(func() { x.left.crashes--; x.crash(p.on); x.settle() }, "%s crashes", p.on.name)
			}
			return all
		}
	}
	for _, p := range x.callers {
		if p.pending != nil && !p.on.crashed {
			x.callSteps(add, p.pending)
		}
	}
	x.runSteps(add)
	x.lateSteps(add)
	x.queueSteps(add)
	x.timeSteps(add)
	x.otherSteps(add)
	return all
}

// booking returns the booking that the caller waits for; nil: none.
func (p *caller) booking() *call {
	c := p.pending
	if c == nil || p.on.crashed {
		return nil
	}
	if c.kind != book {
		return nil
	}
	return c
}

func (x *execution) callSteps(add adder, c *call) {
	add(func() { x.grant(c) }, "%s: %s", c.by, c.kind)
	fault := func(f leasetest.Fault, do func()) {
		if x.left.faults > 0 {
			add(func() {
				x.left.faults--
				do()
				x.settle()
			}, "%s: %s, %s", c.by, c.kind, f)
		}
	}
	if c.kind == swap || c.kind == book {
		fault(leasetest.ReplyLost, func() {
			if x.serve(c).err == nil {
				x.count(leasetest.ReplyLost)
			}
			x.answer(c, reply{err: errReplyLost})
		})
	}
	fault(leasetest.RequestLost, func() { // a swap may arrive later
		x.delay(c)
		x.answer(c, reply{err: errNotDone})
	})
}

func (x *execution) runSteps(add adder) {
	for _, p := range x.callers {
		if working := p.running() && !p.on.crashed; !working || p.run.blocked {
			continue
		}
		add(func() { x.endRun(p, nil) }, "%s: the run succeeds", p)
		switch cause := context.Cause(p.run.ctx); {
		case errors.Is(cause, lease.ErrLost): // its result has no effect
		case cause != nil:
			add(func() { x.endRun(p, p.run.ctx.Err()) }, "%s: the run obeys its cancellation", p)
		case x.left.failures > 0:
			add(func() { x.left.failures--; x.endRun(p, errForNow) }, "%s: the run fails for now", p)
			add(func() { x.left.failures--; x.endRun(p, errForGood) }, "%s: the run fails for good", p)
		}
		if x.left.reports > 0 {
			add(func() { x.left.reports--; x.report(p, false) }, "%s: the run reports", p)
			add(func() { x.left.reports--; x.report(p, true) }, "%s: the run checkpoints", p)
		}
	}
}

// lateSteps adds the arrival of swaps whose callers gave up. A swap of a record that
// has changed is no step: it would be refused without effect.
func (x *execution) lateSteps(add adder) {
	x.late = slices.DeleteFunc(x.late, func(c *call) bool { return !x.rec.current(c.prev) })
	slices.SortFunc(x.late, func(a, b *call) int { return cmp.Or(a.by.n-b.by.n, a.asked.Compare(b.asked)) })
	for i, c := range x.late {
		add(func() {
			x.late = slices.Delete(x.late, i, i+1)
			if x.serve(c).err == nil {
				x.count(leasetest.Late)
			}
			x.settle()
		}, "%s: a late swap arrives", c.by)
	}
}

// queueSteps adds the dispatch of each task, also of one in flight or not yet due, to
// each busy worker and to one idle worker. One idle worker is enough; one that has
// worked before is preferred, because it may have kept state.
func (x *execution) queueSteps(add adder) {
	if x.left.deliveries == 0 {
		return
	}
	for _, t := range x.tasks {
		early := x.now().Before(x.due(t))
		if waits := early && x.left.early == 0; t.done || waits {
			continue
		}
		dispatch := func(i *instance) {
			x.left.deliveries--
			if early {
				x.left.early--
			}
			x.dispatch(t, i)
		}

		var idle *instance
		var busy []*instance
		for _, i := range x.instances {
			switch {
			case i.crashed || i.stopping || i.other != nil:
			case i.busy():
				busy = append(busy, i)
			default:
				idle = i
			}
		}

		add(func() { dispatch(idle) }, "task %.6s to an idle worker", t.Name)
		for _, i := range busy {
			add(func() { dispatch(i) }, "task %.6s to %s", t.Name, i.name)
		}
		if x.left.others > 0 {
			add(func() { x.left.others--; dispatch(x.occupied()) }, "task %.6s to a worker with other work", t.Name)
		}
	}
}

// timeSteps adds the passing of time until something changes.
func (x *execution) timeSteps(add adder) {
	if x.left.ticks == 0 {
		return
	}
	tick := func(what string, to time.Time, due []*caller) {
		if d := time.Until(to); d > 0 {
			add(func() {
				x.left.ticks--
				x.pass(d)
				x.settle()
				x.judgeBeats(due)
				x.count(figure(what))
			}, "time passes: %s", what)
		}
	}

	if beat, due := x.nextBeat(); len(due) > 0 {
		tick("a heartbeat is due", beat, due)
	}
	for _, p := range x.callers {
		if p.run == nil || !p.live() {
			continue
		}
		if at := x.begun.Add(p.run.begun + x.runTimeout); at.Before(x.trust(x.rec.doc.Lock)) {
			tick("a run reaches its deadline", at, nil)
		}
	}

	for _, p := range x.callers {
		if p.waits() {
			wait := placesTime
			if lastOf(x.rec.doc).Delays >= 10 {
				wait = x.runTimeout
			}
			tick("a wait for places ends", p.repliedAt.Add(wait), nil)
		}
	}

	l := x.rec.doc.Lock
	if l.Owner != "" {
		if slices.ContainsFunc(x.callers, (*caller).live) {
			tick("trust ends", x.trust(l).Add(time.Millisecond), nil)
		}
		tick("the lock expires", x.local(l.ExpiresAt), nil)
	}
	r := x.rec
	if free := l.Owner == "" && !l.Finished; free && x.left.recovers > 0 {
		late := r.updated.Add(x.policy.TTL)
		if next := r.doc.NextAttemptAt.Add(x.policy.TTL); next.After(late) {
			late = next
		}
		tick("recovery is due", x.local(late), nil)
	}
	for _, t := range x.tasks {
		due := x.due(t)
		if waits := !t.done && x.now().Before(due); waits && !due.Before(l.ExpiresAt) {
			tick("a task is due", x.local(due), nil)
			break
		}
	}
}

// nextBeat returns when the next heartbeat is due, and from which callers.
func (x *execution) nextBeat() (at time.Time, whose []*caller) {
	for _, p := range x.callers {
		if !p.live() || p.pending != nil {
			continue
		}
		due := x.nextCommit(p)
		if whose == nil || due.Before(at) {
			at, whose = due, []*caller{p}
		}
	}
	return at, whose
}

func (x *execution) otherSteps(add adder) {
	for _, i := range x.instances {
		if i.other != nil && !i.crashed {
			add(func() { x.endOther(i); x.settle() }, "the other work of %s ends", i.name)
		}
		if i.crashed || !i.busy() {
			continue
		}
		if x.left.crashes > 0 {
			add(func() { x.left.crashes--; x.crash(i); x.settle() }, "%s crashes", i.name)
		}
		if x.left.stops > 0 && !i.stopping {
			add(func() { x.left.stops--; x.terminate(i) }, "%s gets SIGTERM", i.name)
		}
	}
	unlockable := x.rec.doc.Lock.Owner != "" || !x.rec.doc.NextAttemptAt.IsZero()
	if unlockable && x.left.unlocks > 0 {
		add(func() { x.left.unlocks--; x.operate(Unlock, false) }, "the operator unlocks")
	}
	if x.left.cancels > 0 && !x.rec.doc.Lock.Finished {
		add(func() { x.left.cancels--; x.operate(Cancel, false) }, "the operator cancels")
	}
	if closed := x.rec.doc.Lock.Finished && !x.requeuing; closed && x.left.requeues > 0 {
		add(func() { x.left.requeues--; x.operate(Requeue, false) }, "the operator requeues")
		add(func() { x.left.requeues--; x.operate(Requeue, true) }, "the operator requeues anew")
	}
	if x.left.recovers > 0 && x.orphaned(x.rec) {
		add(func() { x.left.recovers--; x.recover() }, "recovery")
	}
}

// placesTime is how long a suspect waits for the places of its worker, unless it was delayed ten times.
const placesTime = 10 * time.Second

// waits reports whether the caller waits for the places of its worker.
func (p *caller) waits() bool {
	return p.operates == "" && !p.ended && !p.on.crashed && p.pending == nil && !p.retrying && p.run == nil
}

// occupied starts a worker that does other work in one of its places.
func (x *execution) occupied() *instance {
	i := x.start()
	i.other, _ = i.places.Enter() // all are free
	return i
}

func (x *execution) endOther(i *instance) {
	i.other.Leave()
	i.other = nil
}

func (i *instance) busy() bool {
	return slices.ContainsFunc(i.callers, func(p *caller) bool { return !p.ended })
}

// crash makes a worker crash: its goroutines get no more replies. Their last swaps
// may still arrive.
func (x *execution) crash(i *instance) {
	i.crashed = true
	for _, p := range i.callers {
		if p.ended {
			continue
		}
		p.task.inFlight--
		if x.unbooked(p) {
			x.count(leasetest.CrashBefore.At(book))
		}
		if p.pending != nil {
			x.delay(p.pending)
		}
	}
	x.count(leasetest.Crash)
}

func (x *execution) terminate(i *instance) {
	i.stopping = true
	i.stop(delivery.ErrStopping)
	x.count(leasetest.Stop)
	x.settle()
}

// recover starts a recovery, up to its mark.
func (x *execution) recover() {
	p := x.join(&caller{name: "recovery", on: x.operator, operates: Mark, answered: true}, x.rec)
	x.launch(p, func() {
		g := &delivery.Runner{Queue: x.client, Orphans: x.client, Log: slog.New(slog.DiscardHandler)}
		if r, err := g.Recover(p.context(context.Background())); err == nil && r.Booked > 0 {
			x.locked(func() { x.count("recoveries") })
		}
	})
}

// starts are sequences of steps before a search that do not count for its depth, deviations and
// budget: they lead to situations that need many steps. Each step is a pattern of path.Match.
var starts = func() map[string][]string {
	booked := []string{
		"task first to an idle worker", "delivery 0 at w0: swap",
		"task first to an idle worker", "delivery 1 at w1: book",
	}
	reported := []string{
		"task first to an idle worker", "delivery 0 at w0: swap",
		"delivery 0 at w0: the run checkpoints", "delivery 0 at w0: swap", "delivery 0 at w0: the run reports",
	}
	expired := []string{
		"task first to an idle worker", "delivery 0 at w0: swap",
		"time passes: a heartbeat is due", "delivery 0 at w0: swap", "time passes: a run reaches its deadline",
	}
	crash := func(n int, calls ...string) (steps []string) { // the first task is still in the queue
		steps = append(steps, "task first to an idle worker")
		for _, call := range append(calls, "swap") {
			steps = append(steps, fmt.Sprintf("delivery %d at w%d: %s", n, n, call))
		}
		return append(steps, fmt.Sprintf("w%d crashes", n), "time passes: the lock expires")
	}
	suspected := slices.Concat(crash(0), crash(1))
	occupied := slices.Concat(suspected, []string{"task first to a worker with other work"})
	delaying := slices.Concat(occupied, []string{"time passes: a wait for places ends", "delivery 2 at w2: load"})
	return map[string][]string{
		"booked": booked,
		"stopped": slices.Concat(booked, []string{
			"w0 gets SIGTERM", "delivery 0 at w0: the run obeys its cancellation",
			"delivery 0 at w0: swap", "delivery 0 at w0: book",
		}),
		"overtaken": slices.Concat(booked, []string{
			"the operator unlocks", "the operator: swap", "task * to an idle worker", "delivery 3 at w1: swap",
			"w1 gets SIGTERM", "delivery 3 at w1: the run obeys its cancellation",
			"delivery 3 at w1: swap", "delivery 3 at w1: book",
		}),
		"reported":  reported,
		"cancelled": slices.Concat(reported, []string{"the operator cancels", "the operator: swap"}),
		"releasing": slices.Concat(reported, []string{
			"w0 gets SIGTERM", "delivery 0 at w0: the run obeys its cancellation", "time passes: the lock expires",
		}),
		"expired": expired,
		"flushing": slices.Concat(expired, []string{
			"delivery 0 at w0: the run reports", "delivery 0 at w0: the run reports",
			"delivery 0 at w0: the run obeys its cancellation",
		}),
		"failed": {
			"task first to an idle worker", "task first to an idle worker", "delivery 0 at w0: swap",
			"delivery 0 at w0: the run fails for now", "delivery 0 at w0: swap",
		},
		"recovering": {
			"task first to an idle worker", "delivery 0 at w0: swap", "delivery 0 at w0: the run fails for now",
			"time passes: the lock expires", "recovery",
		},
		"marked": {
			"task first to an idle worker", "delivery 0 at w0: swap", "time passes: a heartbeat is due",
			"time passes: the lock expires", "recovery", "recovery: swap",
		},
		"delayed":   {"time passes: recovery is due", "recovery"},
		"suspected": suspected,
		"occupied":  occupied,
		"delaying":  delaying,
		"emptying": slices.Concat(delaying, []string{
			"delivery 2 at w2: swap", "delivery 2 at w2: book", tenDelays, "time passes: a task is due",
			"task * to a worker with other work",
		}),
		"overdue": slices.Concat(crash(0), []string{ // the run still has its place
			"task first to an idle worker", "delivery 1 at w1: swap", "time passes: the lock expires",
		}),
		"killing": slices.Concat(suspected, crash(2, "load"), crash(3, "load")),
	}
}()

// tenDelays makes the one delay of the analysis ten.
const tenDelays = "ten delays"

// begin takes the steps of a start, each the first possible step that matches.
func (x *execution) begin(start []string) {
	left, traced := x.left, x.traced
	x.left = budget{
		deliveries: 4, unlocks: 1, stops: 1, early: 1, ticks: 4, reports: 4, cancels: 1, failures: 1, recovers: 1,
		crashes: 4, others: 2,
	}
	x.traced = true // so that steps have names
	for _, pattern := range start {
		if pattern == tenDelays {
			x.rec.doc.History[1].Delays = 10
			continue
		}
		all := x.steps()
		n := slices.IndexFunc(all, func(s step) bool {
			ok, err := path.Match(pattern, s.name)
			return ok && err == nil
		})
		if n < 0 {
			x.fail("no step %q", pattern)
			break
		}
		x.note("(%s)", all[n].name)
		all[n].do()
	}
	if x.left, x.traced = left, traced; !traced {
		x.trace = nil
	}
}
