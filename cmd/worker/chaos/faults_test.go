package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"

	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/proof"
	"taskguard/lease/iso8601"
)

// slot holds one worker, and after its end the next.
type slot struct {
	n       int
	mu      sync.Mutex
	number  int // of the worker
	process *process
}

func (p *slot) address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process.address
}

// startIn starts a worker in a slot.
func (c *chaos) startIn(p *slot) error {
	number, next, err := c.startWorker("LOCK_TTL="+c.ttl.String(), "LOCK_HEARTBEAT="+(c.ttl*2/5).String(), "MAX_ATTEMPTS=100000", "MAX_RUNS=40",
		"RUN_TIMEOUT="+c.runTimeout.String(), "CHECKPOINT_INTERVAL="+checkpointInterval.String(),
		"RETRY_MIN="+c.retryMin.String(), "RETRY_MAX="+c.retryMax.String())
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number, p.process = number, next
	c.queue.put(p.n, next.address)
	return nil
}

// injectFaults returns when all faults have ended, and nothing is paused.
func (c *chaos) injectFaults(ctx context.Context) {
	var all sync.WaitGroup
	for i := 0; i+1 < len(c.slots); i += 2 {
		slots := c.slots[i : i+2]
		all.Go(func() { c.breakWorkers(ctx, slots, c.random(fmt.Sprint("workers ", i))) })
	}
	all.Go(func() { c.pauseStore(ctx, c.random("store")) })
	all.Wait()
}

// breakWorkers kills workers at a booking, unlocks their runs, pauses, kills and stops
// them, at least once each. Only it changes its slots.
func (c *chaos) breakWorkers(ctx context.Context, slots []*slot, r *rand.Rand) {
	faults := []func(context.Context, *slot, run){c.unlock, c.pause, c.killBeforeBooking, c.killAfterBooking, c.kill, c.stop}
	for round := 0; round == 0 || ctx.Err() == nil; round++ {
		for _, inject := range faults {
			if round > 0 && ctx.Err() != nil {
				return
			}
			pause(ctx, between(r, c.ttl/10, c.ttl))
			p, victim := c.target(ctx, slots, r)
			inject(context.WithoutCancel(ctx), p, victim)
		}
		r.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	}
}

// target waits for a run in one of the slots, at most two TTLs.
func (c *chaos) target(ctx context.Context, slots []*slot, r *rand.Rand) (*slot, run) {
	for end := time.Now().Add(2 * c.ttl); time.Now().Before(end); pause(ctx, 20*time.Millisecond) {
		for _, i := range r.Perm(len(slots)) {
			runs := c.analyzer.matching(func(l *run) bool {
				return l.worker == slots[i].number && l.ended.IsZero() && l.left() > c.ttl/10
			})
			if len(runs) > 0 {
				return slots[i], runs[r.IntN(len(runs))]
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	return slots[r.IntN(len(slots))], run{}
}

// ends records that a worker is about to end.
func (c *chaos) end(p *slot, killed bool) {
	c.locked(func() { c.ends[p.number] = ending{killed, c.since()} })
}

func (c *chaos) kill(_ context.Context, p *slot, _ run) {
	c.end(p, true)
	p.process.end()
	c.add("kill -9")
	c.check(c.startIn(p))
}

// trap is for the booking of a next attempt by one worker.
type trap struct {
	fault
	worker int
}

// bookings returns the faults of the calls that create a task: a trap that is set for it, and at
// times a lost call or reply. A call that asks for a task is refused at times.
func (c *chaos) bookings() func(*call) fault {
	r := c.random("bookings")
	return func(now *call) (f fault) {
		switch n := r.IntN(20); {
		case now.method == "GetTask" && n < 5:
			return fault{name: "asked without an answer", apply: never, code: codes.PermissionDenied}
		case now.method == "GetTask":
			c.add("asked")
			return fault{}
		case now.task == "": // it creates no task
			return fault{}
		case n == 0:
			f = fault{name: "booking lost", apply: never, code: codes.Unavailable}
		case n == 1:
			f = fault{name: "reply to a booking lost", code: codes.Unavailable}
		}
		c.locked(func() {
			for key, t := range c.traps {
				if now.caller == t.worker && now.doc == key.analysis && now.task == c.proxy.nextTask(key) {
					f = t.fault
					delete(c.traps, key)
				}
			}
		})
		return f
	}
}

// nextTask returns the name of the task of the attempt after a.
func (p *proxy) nextTask(a acquisition) string {
	applied, _ := p.history(a.analysis)
	for i := range slices.Backward(applied) {
		if at := applied[i].next; at != nil {
			return taskqueue.Name("next", a.analysis, strconv.FormatInt(a.token, 10), iso8601.Format(*at))
		}
	}
	return ""
}

func (c *chaos) killBeforeBooking(ctx context.Context, p *slot, victim run) {
	if c.killAtBooking(ctx, p, victim, fault{apply: never, code: codes.Unavailable}) {
		c.add("kill -9 between commit and booking")
	}
}

func (c *chaos) killAfterBooking(ctx context.Context, p *slot, victim run) {
	if c.killAtBooking(ctx, p, victim, fault{code: codes.Unavailable}) {
		c.add("kill -9 between booking and answer")
	}
}

// killAtBooking makes a run fail, and kills its worker while the worker waits for the answer
// to the booking of the next attempt. A duplicate comes during the backoff.
func (c *chaos) killAtBooking(ctx context.Context, p *slot, victim run, f fault) (killed bool) {
	waits, end := make(chan struct{}), make(chan struct{})
	defer close(end)
	f.then = func() {
		close(waits)
		<-end
	}
	key := acquisition{victim.analysis, victim.token}
	c.locked(func() { c.traps[key] = trap{f, p.number} })
	defer c.locked(func() { delete(c.traps, key) })
	if !c.analyzer.fail(victim) {
		return false
	}

	select {
	case <-waits:
	case <-time.After(4 * c.ttl): // the lock was lost before the release
		return false
	}

	began := time.Now()
	c.end(p, true)
	p.process.end()
	killed = time.Since(began) < time.Second // later the worker may have given up the booking
	c.check(c.queue.deliver(ctx, victim.analysis, 0))
	c.add("duplicates")
	c.check(c.startIn(p))
	return killed
}

func (c *chaos) stop(_ context.Context, p *slot, _ run) {
	c.end(p, false)
	c.check(p.process.terminate())
	c.add("SIGTERM")
	c.check(c.startIn(p))
}

// prolong makes the run continue for longer than an excuse lasts, unless its worker
// hangs up.
func (c *chaos) prolong(victim run) bool {
	return victim.analysis != "" && c.analyzer.prolong(victim, 8*c.ttl)
}

// pause stops a worker for longer than the TTL and, if it has a run, until a duplicate
// delivery has taken the run over. Then it waits until the worker has hung up.
func (c *chaos) pause(ctx context.Context, p *slot, victim run) {
	held, from := c.prolong(victim), c.since()
	c.check(p.process.signal(syscall.SIGSTOP))

	superseded := func() bool {
		runs := c.analyzer.of(victim.analysis)
		return !held || runs[len(runs)-1].token > victim.token
	}
	for !superseded() || c.since()-from < c.ttl*5/4 {
		if held {
			c.check(c.queue.deliver(ctx, victim.analysis, 0))
			c.add("duplicates")
		}
		pause(ctx, c.ttl/4)
		if !superseded() && c.since()-from > waitLimit {
			c.check(fmt.Errorf("%s: the run of token %d was not taken over while its worker was paused for %v", victim.analysis, victim.token, waitLimit))
			break
		}
	}

	c.check(p.process.signal(syscall.SIGCONT))
	c.add("SIGSTOP")
	wake := c.ttl/10 + time.Second // the worker may take so long to hang up
	c.locked(func() {
		c.pauses[p.number] = append(c.pauses[p.number], proof.Span{From: from, Until: c.since() + wake})
	})
	if held {
		c.add("SIGSTOP, and taken over")
		c.analyzer.awaitEnd(victim, wake+c.ttl)
	}
}

// unlock unlocks a live run as an operator does. The run must end before its trust
// does, and must not write after the next acquisition.
func (c *chaos) unlock(ctx context.Context, _ *slot, victim run) {
	if !c.prolong(victim) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	was, err := c.operator.Unlock(ctx, victim.analysis, nil, "")
	c.check(err)
	c.locked(func() {
		c.breaks[acquisition{victim.analysis, was.Lock.Token}] = proof.Span{Until: c.since() + c.ttl}
	})
	for range c.slots {
		c.check(c.queue.deliver(ctx, victim.analysis, 0))
	}
	c.add("unlocked")
	c.analyzer.awaitEnd(victim, 2*c.ttl)
}

// pauseStore pauses Firestore at least once, sometimes for longer than the TTL.
func (c *chaos) pauseStore(ctx context.Context, r *rand.Rand) {
	for round := 0; round == 0 || ctx.Err() == nil; round++ {
		pause(ctx, between(r, c.ttl, c.ttl*time.Duration(min(2+4*round, 6))))
		c.check(c.signalStore(syscall.SIGSTOP))
		time.Sleep(between(r, c.ttl/5, c.ttl*time.Duration(min(1+round, 3))/2))
		c.check(c.signalStore(syscall.SIGCONT))
		c.add("Firestore paused")
	}
}

// faults returns the faults of calls: one for every so many commits, of all kinds
// equally often, and at times one for a read.
func (c *chaos) faults() func(*call) fault {
	kinds := []fault{
		{name: "reply lost", code: codes.Unavailable}, {name: "reply lost", code: codes.DeadlineExceeded},
		{name: "commit dropped", apply: never, code: codes.Unavailable}, {name: "commit dropped", apply: never, code: codes.DeadlineExceeded},
		{name: "commit applied late", apply: later, code: codes.DeadlineExceeded}, {name: "commit applied late", apply: later, code: codes.DeadlineExceeded},
		{name: "commit sent twice", apply: twice},
		{name: "commit slow", delay: c.ttl / 3},
	}
	r := c.random("faults")
	used := 0
	return func(now *call) fault {
		switch {
		case now.commit == nil && r.IntN(50) == 0:
			return fault{name: "reading lost", code: codes.Unavailable}
		case now.commit == nil || r.IntN(c.every) != 0:
			return fault{}
		}
		if used%len(kinds) == 0 {
			r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		}
		used++
		return kinds[used%len(kinds)]
	}
}
