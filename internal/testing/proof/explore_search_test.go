package proof

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// walk goes through all executions, depth first.
type walk struct {
	taken      []choice // by the last execution, then the choices with which the next begins
	left       int      // deviations in this execution
	executions int
	figures    figures
	wrong      []string // the violations of the last execution
}

// choice is the number of the step that was taken, and of how many possible steps.
type choice struct{ chosen, of int }

// choose returns which of the possible steps an execution takes as its n-th. After the taken ones it is the first.
func (w *walk) choose(n, possible int) int {
	if n == len(w.taken) {
		w.taken = append(w.taken, choice{of: possible})
	}
	c := &w.taken[n]
	if w.left == 0 {
		c.of = 1
	}
	if c.chosen > 0 {
		w.left--
	}
	return c.chosen
}

// next sets taken to the choices of the next execution. It reports false after the last.
func (w *walk) next() bool {
	for last := len(w.taken) - 1; last >= 0; last-- {
		w.taken = w.taken[:last+1]
		if c := &w.taken[last]; c.chosen+1 < c.of {
			c.chosen++
			return true
		}
	}
	return false
}

// run explores everything, until the first violation.
func (w *walk) run(execute func(traced bool) *model) {
	w.figures = figures{}
	for more := true; more; more = w.wrong == nil && w.next() {
		m := execute(false)
		w.figures.add(m.figures)
		w.executions++
		w.wrong = m.wrong
	}
}

// report fails the test if there was a violation: then it repeats the execution, with its trace.
func (w *walk) report(t *testing.T, execute func(traced bool) *model) {
	t.Helper()
	if w.wrong == nil {
		return
	}
	for _, l := range execute(true).trace {
		t.Logf("%9.3fs  %s", l.at.Seconds(), l.text)
	}
	t.Fatal(w.wrong)
}

// search is one exploration of one analysis, each execution from the start.
type search struct {
	walk
	budget        budget
	from          string        // the name of the start of each execution; empty: the beginning
	runTimeout    time.Duration // zero: a day
	attempts      int           // MAX_ATTEMPTS; zero: 3
	skipRevisions bool          // the store does not compare revisions
	depth         int           // the number of steps after the start
	deviations    int           // how many of them may be another than the first possible step
}

// execute returns what runs one execution: the choices in taken, then always the first possible step, until
// the depth is reached or no step is possible.
func (s *search) execute(t *testing.T) func(traced bool) *model {
	return func(traced bool) (m *model) {
		synctest.Test(t, func(*testing.T) {
			x := newExecution(s.budget, s.runTimeout)
			x.policy.MaxAttempts = cmp.Or(s.attempts, x.policy.MaxAttempts)
			x.traced, x.skipRevisions = traced, s.skipRevisions
			x.begin(starts[s.from])
			s.follow(x)
			x.close()
			m = x.model
		})
		return m
	}
}

func (s *search) follow(x *execution) {
	s.left = s.deviations
	prefix := len(s.taken)
	for n := 0; len(x.wrong) == 0; n++ {
		all := x.steps()
		if n >= s.depth || len(all) == 0 {
			x.drain()
			return
		}
		chosen := s.choose(n, len(all))
		x.repeats = n < prefix-1
		x.take(all, chosen)
	}
}

// take takes one of the possible steps.
func (x *execution) take(all []step, chosen int) {
	if chosen >= len(all) {
		x.fail("choice %d of %d: executions do not repeat", chosen, len(all))
		return
	}
	x.note("%s", all[chosen].name)
	all[chosen].do()
}

// reach is the number of steps of a search with few deviations.
const reach = 30

// searches returns all searches.
func searches(t *testing.T) []*search {
	t.Helper()
	const deadline = 150 * time.Second
	depth, onward := number(t, "EXPLORE_DEPTH", 4), number(t, "EXPLORE_ONWARD", 2)
	further := max(2, onward-1)
	all := budget{
		deliveries: 4, faults: 2, crashes: 1, ticks: 3, unlocks: 1, stops: 1, failures: 1, early: 1, recovers: 1,
	}
	calm := budget{deliveries: 3, ticks: 2, unlocks: 1, stops: 1, early: 1}
	rough := calm
	rough.faults, rough.crashes = 1, 1
	working := budget{deliveries: 3, ticks: 2, stops: 1, early: 1, reports: 2, cancels: 1, requeues: 1}
	faulty := working
	faulty.faults, faulty.crashes, faulty.failures, faulty.requeues = 1, 1, 1, 0
	after := budget{deliveries: 2, ticks: 1, early: 1, reports: 1, cancels: 1} // the run has ended
	reopened := budget{deliveries: 3, ticks: 1, reports: 1, requeues: 1}
	failing := budget{deliveries: 4, faults: 1, crashes: 1, ticks: 2, unlocks: 1, failures: 1, early: 1, recovers: 1}
	suspected := budget{deliveries: 3, faults: 1, crashes: 1, ticks: 1, stops: 1}
	waiting := budget{deliveries: 3, faults: 1, crashes: 1, ticks: 2, stops: 1, unlocks: 1, cancels: 1}
	delaying := waiting
	delaying.deliveries, delaying.faults, delaying.early, delaying.recovers = 4, 2, 1, 1
	killing := budget{deliveries: 3, faults: 1, ticks: 2, requeues: 1}
	return []*search{
		{budget: all, depth: depth, deviations: depth},
		{budget: all, depth: reach, deviations: number(t, "EXPLORE_DEVIATIONS", 2)},
		{budget: calm, from: "booked", depth: reach, deviations: onward},
		{budget: rough, from: "booked", depth: reach, deviations: onward - 1},
		{budget: calm, from: "stopped", depth: reach, deviations: further},
		{budget: rough, from: "stopped", depth: reach, deviations: further - 1},
		{budget: calm, from: "overtaken", depth: reach, deviations: further},
		{budget: rough, from: "overtaken", depth: reach, deviations: further - 1},
		{budget: working, depth: reach, deviations: further},
		{budget: faulty, from: "reported", depth: reach, deviations: further},
		{budget: reopened, from: "cancelled", depth: reach, deviations: further},
		{budget: after, from: "releasing", depth: reach, deviations: further},
		{budget: faulty, from: "expired", runTimeout: deadline, depth: reach, deviations: further},
		{budget: after, from: "flushing", runTimeout: deadline, depth: reach, deviations: further},
		{budget: failing, from: "failed", depth: reach, deviations: further},
		{budget: failing, from: "recovering", depth: reach, deviations: further},
		{budget: failing, from: "marked", depth: reach, deviations: further},
		{budget: failing, from: "delayed", depth: reach, deviations: further},
		{budget: suspected, from: "suspected", attempts: 10, depth: reach, deviations: onward - 1},
		{budget: waiting, from: "occupied", attempts: 10, depth: reach, deviations: onward - 1},
		{budget: delaying, from: "delaying", attempts: 10, depth: reach, deviations: onward - 1},
		{budget: suspected, from: "emptying", attempts: 10, depth: reach, deviations: onward - 1},
		{budget: waiting, from: "overdue", attempts: 10, depth: reach, deviations: onward - 1},
		{budget: killing, from: "killing", attempts: 10, depth: reach, deviations: onward - 1},
	}
}

// expectedSteps are the figures that must not be zero: without them the searches
// prove nothing.
var expectedSteps = []figure{
	leasetest.ReplyLost, leasetest.Late, leasetest.Crash, leasetest.CrashBefore.At(book),
	"steals", "superseded writes refused", "a heartbeat is due",
	"trust ends", "the lock expires", "late wake-ups", "unlock", "cancel", "requeue", "stopped runs refunded",
	"a run reaches its deadline", "continued runs refunded", "ended cancelled cancelled", "ended retry run_timeout",
	"checkpoints committed", "checkpoints awaited", "checkpoints handed out", "recoveries", "settled locked",
	"unsettled locked", "settled retry", "unsettled retry", "settled waiting", "unsettled waiting",
	"marks of those that wait in the queue", "marks refused",
	"booked again after a crash", "booked attempts delivered early", "crashes found", "a wait for places ends", "delay",
	"suspects that emptied their worker", "suspects that ran beside others", "unsettled stopped",
	"settled suspect", "unsettled suspect", "unsettled busy", "given up after crashes alone",
}

// The searches: every sequence of a few steps; every sequence of many steps with a
// few deviations from the first possible step; and the same from each of the starts,
// with smaller budgets and more deviations.
func TestSearch(t *testing.T) {
	all, sum := searches(t), figures{}
	var running sync.WaitGroup
	for _, s := range all {
		running.Go(func() { s.run(s.execute(t)) })
	}
	running.Wait()

	for _, s := range all {
		t.Logf("from %q, %d steps, at most %d deviations: %d executions", s.from, s.depth, s.deviations, s.executions)
		sum.add(s.figures)
		s.report(t, s.execute(t))
	}
	t.Logf("\n%s", sum)
	sum.expect(t, expectedSteps)
}

func TestSearch_PlantedFaults(t *testing.T) {
	t.Run("a store that does not compare revisions", func(t *testing.T) {
		s := &search{depth: 4, deviations: 4, skipRevisions: true, budget: searches(t)[0].budget}
		if s.run(s.execute(t)); s.wrong == nil {
			t.Errorf("%d executions, and no violation", s.executions)
		}
	})
	for name, s := range map[string]*keySearch{
		"nobody looks after parking":       {analyses: 2, slots: 1, deviations: 3, noSecondLook: true},
		"nobody looks after freeing":       {analyses: 2, slots: 1, deviations: 3, noNextLook: true},
		"nobody looks, with a second slot": {analyses: 3, slots: 2, deviations: 3, noSecondLook: true},
	} {
		t.Run(name, func(t *testing.T) {
			if s.run(s.execute(t)); s.wrong == nil {
				t.Errorf("%d executions, and no violation", s.executions)
			}
		})
	}
}

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
