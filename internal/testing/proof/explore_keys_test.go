package proof

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

// keySearch explores two or three analyses of one key. Each call of a delivery is a step, so deliveries
// interleave between any two calls.
type keySearch struct {
	walk
	analyses, slots          int
	crashes, faults          int // in one execution
	deviations               int
	noSecondLook, noNextLook bool // mutants: after parking, or after freeing a slot, nobody is seen
}

// keyExecution is one execution of a keySearch.
type keyExecution struct {
	*execution
	search  *keySearch
	pend    []*call
	stopped bool // a recovery may be needed
}

func (s *keySearch) execute(t *testing.T) func(traced bool) *model {
	return func(traced bool) (m *model) {
		synctest.Test(t, func(*testing.T) {
			m = newModel(lease.Policy{TTL: 300 * time.Second, MaxAttempts: 5})
			m.limits, m.begun, m.traced = perfect().limits, time.Now(), traced
			m.keySlots, m.keyOf, m.places = s.slots, func(string) string { return "tenant" }, 0
			left := budget{crashes: s.crashes, faults: s.faults}
			x := &keyExecution{execution: &execution{model: m, left: left, closing: make(chan struct{})}, search: s}
			x.client = &client{model: m, send: x.ask}
			for _, id := range x.ids() {
				m.create(id)
				m.book(taskqueue.Task{Name: "first " + id, AnalysisID: id}, nil)
				time.Sleep(time.Millisecond) // of the creation
			}
			x.follow()
			x.close()
		})
		return m
	}
}

// follow takes the steps in taken, and then the first possible one until the end.
func (x *keyExecution) follow() {
	x.search.left = x.search.deviations
	for n := 0; len(x.wrong) == 0 && n < 500; {
		var all []step
		x.locked(func() { all = x.steps() })
		if len(all) == 0 {
			if x.idle() {
				return
			}
			continue
		}
		x.locked(func() { x.take(all, x.search.choose(n, len(all))) })
		n++
		synctest.Wait()
		x.judgeSlots()
	}
}

// idle lets time pass if not all is finished: callers pause before they try again, and after a crash recovery is
// due. It reports whether the execution is over.
func (x *keyExecution) idle() bool {
	waiting := 0
	for range 300 { // a pause after a conflict is short
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if x.locked(func() { waiting = len(x.pend) }); waiting > 0 {
			return false
		}
	}
	var unfinished []string
	x.locked(func() {
		unfinished = slices.DeleteFunc(x.ids(), func(id string) bool { return x.records[id].doc.Lock.Finished })
	})
	switch {
	case len(unfinished) == 0:
		x.count("executions brought to their end")
		return true
	case !x.stopped:
		x.fail("lost: %q, %+v", unfinished, x.keys)
		return true
	case x.since() > 3*time.Hour:
		x.fail("lost after a crash: %q, %+v", unfinished, x.keys)
		return true
	}
	time.Sleep(x.policy.TTL/2 + 30*time.Second)
	synctest.Wait()
	x.recover()
	return false
}

func (x *keyExecution) ids() (all []string) {
	for n := range x.search.analyses {
		all = append(all, string(rune('a'+n)))
	}
	return all
}

func (x *keyExecution) steps() (all []step) {
	add := func(do func(), format string, args ...any) { all = append(all, step{fmt.Sprintf(format, args...), do}) }
	for _, c := range x.pend {
		add(func() { x.grant(c, nil) }, "%v: %s", c.by, c.kind)
	}
	for _, p := range x.callers {
		if p.running() && !p.on.crashed {
			add(func() { p.run.ended = x.since(); p.run.result <- nil }, "%v: the run ends", p)
		}
	}
	for _, t := range x.tasks {
		ready := !t.done && t.inFlight == 0 && !t.At.After(time.Now())
		if ready && t.tried.Add(time.Minute).Before(x.now()) {
			add(func() { x.dispatch(t) }, "task %s of %s", t.alias[:5], t.AnalysisID)
		}
	}
	for _, c := range x.pend {
		writes := c.kind == swap || c.kind == swapKey || c.kind == book
		if writes && x.left.faults > 0 {
			add(func() { x.left.faults--; x.grant(c, errReplyLost) }, "%v: %s, %s", c.by, c.kind, leasetest.ReplyLost)
		}
		if x.left.crashes > 0 && c.by.operates == "" {
			add(func() { x.left.crashes--; x.crash(c.by) }, "%v: %s, %s", c.by, c.kind, leasetest.CrashBefore)
		}
	}
	return all
}

// grant serves a call. With an err the reply is lost.
func (x *keyExecution) grant(c *call, err error) {
	a := x.serve(c)
	x.pend = slices.DeleteFunc(x.pend, func(other *call) bool { return other == c })
	if err != nil {
		a = reply{err: err}
		x.count(leasetest.ReplyLost)
	}
	parkedNow := len(x.records[cmp.Or(c.by.analysis, "a")].parkings) > 0 && c.by.parked
	c.by.parked = c.by.parked || c.kind == swap && !c.next.ParkedAt.IsZero()
	switch {
	case x.search.noSecondLook && c.kind == loadKey && parkedNow:
		slot := analysislock.Slotted{Lease: lease.Lease{Owner: "?", Token: 1, ExpiresAt: x.now().Add(time.Hour)}}
		a.key = lease.Cell[analysislock.Key]{At: x.now(), Asked: c.asked, Exists: true, Doc: analysislock.Key{
			Value: "tenant", Waiting: true, Slots: map[string]analysislock.Slotted{"?": slot},
		}}
	case x.search.noNextLook && c.kind == parked:
		a.parked = nil
	}
	c.reply <- a
}

// crash ends the process of p. Its swap may have been on its way.
func (x *keyExecution) crash(p *caller) {
	p.on.crashed, x.stopped = true, true
	x.pend = slices.DeleteFunc(x.pend, func(c *call) bool { return c.by.on == p.on })
	p.task.inFlight--
	x.count(leasetest.Crash)
}

func (x *keyExecution) dispatch(t *task) {
	i := x.start()
	p := &caller{name: "delivery of " + t.AnalysisID + " at " + i.name, on: i, task: t}
	x.join(p, x.records[t.AnalysisID])
	t.inFlight++
	t.tried = x.now()
	x.going.Go(func() {
		r := i.deliver(p)
		x.locked(func() {
			if !p.on.crashed && !x.over {
				t.inFlight--
				x.judgeAnswer(p, r, true)
			}
		})
	})
}

func (x *keyExecution) recover() {
	p := &caller{n: len(x.callers), name: "recovery", on: &instance{}, operates: Mark}
	r := &delivery.Runner{Queue: x.client, Orphans: x.client, Log: slog.New(slog.DiscardHandler)}
	r.Keys = keyLedger{x.client.ledger(), x.client}
	x.going.Go(func() { _, _ = r.Recover(p.context(context.Background())) })
	synctest.Wait()
	x.count("recoveries")
}

// ask blocks until the search replies, but for calls whose order makes no difference.
func (x *keyExecution) ask(ctx context.Context, c *call) reply {
	c.reply = make(chan reply, 1)
	x.mu.Lock()
	switch {
	case x.over:
		x.mu.Unlock()
		return reply{err: lease.ErrRefused}
	case c.kind == readWork || c.kind == list || c.kind == find:
		defer x.mu.Unlock()
		return x.serve(c)
	}
	if !c.by.on.crashed {
		x.pend = append(x.pend, c)
		slices.SortStableFunc(x.pend, func(a, b *call) int {
			return cmp.Or(cmp.Compare(a.by.n, b.by.n), cmp.Compare(a.kind, b.kind), cmp.Compare(a.id, b.id))
		})
	}
	x.mu.Unlock()
	return x.await(ctx, c, func() {
		x.locked(func() { x.pend = slices.DeleteFunc(x.pend, func(other *call) bool { return other == c }) })
	})
}

// judgeSlots checks that no more runs are in effect than there are slots.
func (x *keyExecution) judgeSlots() {
	x.mu.Lock()
	defer x.mu.Unlock()
	running := 0
	for _, p := range x.callers {
		if p.live() {
			running++
		}
	}
	if running > x.keySlots {
		x.fail("%d runs of one key", running)
	}
}

// EXPLORE_KEYS is how many steps of each execution may be another than the first possible one, or more.
func TestSearch_Keys(t *testing.T) {
	d := number(t, "EXPLORE_KEYS", 2)
	for name, s := range map[string]*keySearch{
		"two, one slot":                {analyses: 2, slots: 1, deviations: d + 2},
		"three, one slot":              {analyses: 3, slots: 1, deviations: d},
		"three, two slots":             {analyses: 3, slots: 2, deviations: d},
		"two, with a crash":            {analyses: 2, slots: 1, crashes: 1, deviations: d},
		"two, with a lost reply":       {analyses: 2, slots: 1, faults: 1, deviations: d + 1},
		"three, a crash, a lost reply": {analyses: 3, slots: 1, crashes: 1, faults: 1, deviations: d},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.run(s.execute(t))
			t.Logf("%d executions\n%s", s.executions, s.figures)
			s.report(t, s.execute(t))
			s.figures.expect(t, []figure{"park", "settled key_busy"})
		})
	}
}
