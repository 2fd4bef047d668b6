package proof

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

// keySearch explores two or three analyses of one key. Each call of a delivery is a step, so deliveries
// interleave between any two calls.
type keySearch struct {
	analyses, slots          int
	crashes, faults          int // in one execution
	deviations               int
	noSecondLook, noNextLook bool // mutants: after parking, or after freeing a slot, nobody is seen

	taken      []choice
	executions int
	sum        figures
}

// keyExecution is one execution of a keySearch.
type keyExecution struct {
	*model
	keySearch
	client    *client
	callers   []*caller
	instances []*instance
	pend      []*call
	over      bool
	closing   chan struct{}
	going     sync.WaitGroup
	stopped   bool // a recovery may be needed
}

func (s *keySearch) execute(t *testing.T, traced bool) (x *keyExecution) {
	synctest.Test(t, func(*testing.T) {
		m := newModel(lease.Policy{TTL: 300 * time.Second, MaxAttempts: 5})
		m.limits, m.begun, m.traced = perfect().limits, time.Now(), traced
		m.keySlots, m.keyOf, m.places = s.slots, func(string) string { return "tenant" }, 0
		x = &keyExecution{model: m, keySearch: *s, closing: make(chan struct{})}
		x.client = &client{model: m, send: x.ask}
		for n := range s.analyses {
			id := string(rune('a' + n))
			m.create(id)
			m.book(taskqueue.Task{Name: "first " + id, AnalysisID: id}, nil)
			time.Sleep(time.Millisecond) // of the creation
		}
		x.follow(s)
		x.close()
	})
	return x
}

// follow takes the steps in taken, and then the first possible one until the end.
func (x *keyExecution) follow(s *keySearch) {
	deviations := s.deviations
	for at := 0; len(x.wrong) == 0 && at < 500; {
		var all []step
		x.locked(func() { all = x.steps() })
		if len(all) == 0 {
			if x.idle() {
				return
			}
			continue
		}
		if at >= len(s.taken) {
			s.taken = append(s.taken, choice{of: len(all)})
		}
		c := &s.taken[at]
		at++
		if c.chosen >= len(all) {
			x.fail("choice %d of %d: executions do not repeat", c.chosen, len(all))
			return
		}
		if deviations == 0 {
			c.of = 1
		}
		if c.chosen > 0 {
			deviations--
		}
		x.locked(func() {
			x.note("%s", all[c.chosen].name)
			all[c.chosen].do()
		})
		synctest.Wait()
		x.judgeSlots()
	}
}

// idle lets time pass if not all is finished: callers pause before they try again, and after a crash recovery is
// due. It reports whether the execution is over.
func (x *keyExecution) idle() bool {
	for range 300 { // a pause after a conflict is short
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if x.waiting() > 0 {
			return false
		}
	}
	x.mu.Lock()
	unfinished := slices.DeleteFunc(x.ids(), func(id string) bool { return x.records[id].doc.Lock.Finished })
	x.mu.Unlock()
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

func (x *keyExecution) waiting() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.pend)
}

func (x *keyExecution) ids() (all []string) {
	for n := range x.analyses {
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
		if !t.done && t.inFlight == 0 && !t.At.After(time.Now()) && t.tried.Add(time.Minute).Before(x.now()) {
			add(func() { x.dispatch(t) }, "task %s of %s", t.alias[:5], t.AnalysisID)
		}
	}
	for _, c := range x.pend {
		if x.faults > 0 && (c.kind == swap || c.kind == swapKey || c.kind == book) {
			add(func() { x.faults--; x.grant(c, errReplyLost) }, "%v: %s is done, its reply lost", c.by, c.kind)
		}
		if x.crashes > 0 && c.by.operates == "" {
			add(func() { x.crashes--; x.crash(c.by) }, "%v crashes before its %s", c.by, c.kind)
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
		x.count("replies lost")
	}
	parkedNow := len(x.records[cmp.Or(c.by.analysis, "a")].parkings) > 0 && c.by.parked
	c.by.parked = c.by.parked || c.kind == swap && !c.next.ParkedAt.IsZero()
	switch {
	case x.noSecondLook && c.kind == loadKey && parkedNow:
		slot := analysislock.Slotted{Lease: lease.Lease{Owner: "?", Token: 1, ExpiresAt: x.now().Add(time.Hour)}}
		a.key = lease.Cell[analysislock.Key]{At: x.now(), Asked: c.asked, Exists: true, Doc: analysislock.Key{
			Value: "tenant", Waiting: true, Slots: map[string]analysislock.Slotted{"?": slot},
		}}
	case x.noNextLook && c.kind == parked:
		a.parked = nil
	}
	c.reply <- a
}

// crash ends the process of p. Its swap may have been on its way.
func (x *keyExecution) crash(p *caller) {
	p.on.crashed, x.stopped = true, true
	x.pend = slices.DeleteFunc(x.pend, func(c *call) bool { return c.by.on == p.on })
	p.task.inFlight--
	x.count("crashes")
}

func (x *keyExecution) dispatch(t *task) {
	i := x.client.start(fmt.Sprint("w", len(x.instances)), x.analyze)
	x.instances = append(x.instances, i)
	p := &caller{n: len(x.callers), name: "delivery of " + t.AnalysisID + " at " + i.name, on: i, task: t,
		analysis: t.AnalysisID, since: len(x.records[t.AnalysisID].states)}
	x.callers = append(x.callers, p)
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
	r := &delivery.Runner{
		Queue: x.client, Orphans: x.client, Keys: keyLedger{x.client.ledger(), x.client}, Log: slog.New(slog.DiscardHandler),
	}
	x.going.Go(func() { _, _ = r.Recover(p.context(context.Background())) })
	synctest.Wait()
	x.count("recoveries")
}

func (x *keyExecution) analyze(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
	p := callerOf(ctx)
	r := &run{ctx: ctx, begun: x.since(), ended: -1, result: make(chan error)}
	x.locked(func() { p.run = r })
	select {
	case err := <-r.result:
		return result(job.AnalysisID, job.LockToken), err
	case <-x.closing:
		return nil, errors.New("over")
	}
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
	select {
	case a := <-c.reply:
		return a
	case <-ctx.Done():
		x.locked(func() { x.pend = slices.DeleteFunc(x.pend, func(other *call) bool { return other == c }) })
		return reply{err: ctx.Err()}
	case <-x.closing:
		return reply{err: fmt.Errorf("%w: over", lease.ErrRefused)}
	}
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
	if running == x.keySlots && running > 1 {
		x.count("all slots in use")
	}
}

func (x *keyExecution) close() {
	x.locked(func() { x.over = true })
	close(x.closing)
	for _, i := range x.instances {
		i.stop(delivery.ErrStopping)
	}
	x.going.Wait()
}

// run explores all executions, until a violation, which it returns with its trace.
func (s *keySearch) run(t *testing.T) (wrong []string, trace []line) {
	s.sum = figures{}
	next := &search{}
	for more := true; more; more = next.next() {
		s.taken = next.taken
		x := s.execute(t, false)
		s.executions++
		s.sum.add(x.figures)
		if next.taken = s.taken; len(x.wrong) > 0 {
			return x.wrong, s.execute(t, true).trace
		}
	}
	return nil, nil
}

// EXPLORE_KEYS is how many steps of each execution may be another than the first possible one, or more.
func TestNoInterleavingOfOneKeyLosesAWakeUpOrTakesASlotTooMany(t *testing.T) {
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
			wrong, trace := s.run(t)
			for _, l := range trace {
				t.Logf("%9.3fs  %s", l.at.Seconds(), l.text)
			}
			if wrong != nil {
				t.Error(wrong)
			}
			t.Logf("%d executions\n%s", s.executions, s.sum)
			if s.sum["park"] == 0 || s.sum["settled key_busy"] == 0 {
				t.Errorf("nothing was parked, so the search proves nothing")
			}
		})
	}
}

func TestASearchFindsALostWakeUp(t *testing.T) {
	for name, s := range map[string]*keySearch{
		"nobody looks after parking":       {analyses: 2, slots: 1, deviations: 3, noSecondLook: true},
		"nobody looks after freeing":       {analyses: 2, slots: 1, deviations: 3, noNextLook: true},
		"nobody looks, with a second slot": {analyses: 3, slots: 2, deviations: 3, noSecondLook: true},
	} {
		if wrong, _ := s.run(t); wrong == nil {
			t.Errorf("%s: %d executions, and no violation", name, s.executions)
		}
	}
}
