package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"

	"taskguard/worker/proof"
)

// place is where one worker is, and after its end the next.
type place struct {
	n       int
	mu      sync.Mutex
	number  int // of the worker
	process *process
}

func (p *place) address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process.address
}

// fill starts a worker.
func (c *chaos) fill(p *place) error {
	number, next, err := c.startWorker("LOCK_TTL="+c.ttl.String(), "LOCK_HEARTBEAT="+(c.ttl*3/10).String(), "MAX_ATTEMPTS=100000")
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number, p.process = number, next
	c.queue.put(p.n, next.address)
	return nil
}

// rage returns when all who do harm have ended, and nothing is paused.
func (c *chaos) rage(ctx context.Context) {
	var all sync.WaitGroup
	for i := 0; i+1 < len(c.places); i += 2 {
		places := c.places[i : i+2]
		all.Go(func() { c.harmWorkers(ctx, places, c.random(fmt.Sprint("workers ", i))) })
	}
	all.Go(func() { c.harmStore(ctx, c.random("store")) })
	all.Wait()
}

// harmWorkers unlocks what they run, pauses, kills and stops workers, at least
// once each. It alone changes what is in its places.
func (c *chaos) harmWorkers(ctx context.Context, places []*place, r *rand.Rand) {
	harms := []func(context.Context, *place, run){c.unlock, c.pause, c.kill, c.stop}
	for round := 0; round == 0 || ctx.Err() == nil; round++ {
		for _, harm := range harms {
			pause(ctx, some(r, c.ttl/10, c.ttl))
			p, victim := c.target(ctx, places, r)
			harm(context.WithoutCancel(ctx), p, victim)
		}
		r.Shuffle(len(harms), func(i, j int) { harms[i], harms[j] = harms[j], harms[i] })
	}
}

// target waits a while for a run in one of the places.
func (c *chaos) target(ctx context.Context, places []*place, r *rand.Rand) (*place, run) {
	for end := time.Now().Add(2 * c.ttl); time.Now().Before(end); pause(ctx, 20*time.Millisecond) {
		for _, i := range r.Perm(len(places)) {
			runs := c.analyzer.where(func(l *run) bool {
				return l.worker == places[i].number && l.ended.IsZero() && l.left() > c.ttl/10
			})
			if len(runs) > 0 {
				return places[i], runs[r.IntN(len(runs))]
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	return places[r.IntN(len(places))], run{}
}

func (c *chaos) kill(_ context.Context, p *place, _ run) {
	p.process.end()
	c.add("kill -9")
	c.check(c.fill(p))
}

func (c *chaos) stop(_ context.Context, p *place, _ run) {
	c.check(p.process.terminate())
	c.add("SIGTERM")
	c.check(c.fill(p))
}

// held lets the run that is harmed go on for longer than that may be excused,
// unless its worker hangs up.
func (c *chaos) held(victim run) bool {
	return victim.analysis != "" && c.analyzer.hold(victim, 8*c.ttl)
}

// pause stops a worker for longer than the TTL and, if it has a run, until that
// has been taken over by one of the duplicates that come meanwhile. Then the
// worker is left alone until it has hung up.
func (c *chaos) pause(ctx context.Context, p *place, victim run) {
	held, from := c.held(victim), c.since()
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
		if !superseded() && c.since()-from > patience {
			c.check(fmt.Errorf("%s: the run of token %d was not taken over, with its worker paused for %v", victim.analysis, victim.token, patience))
			break
		}
	}
	c.check(p.process.signal(syscall.SIGCONT))
	c.add("SIGSTOP")
	wake := c.ttl/10 + time.Second // what the worker may take to hang up
	c.locked(func() {
		c.pauses[p.number] = append(c.pauses[p.number], proof.Span{From: from, Until: c.since() + wake})
	})
	if held {
		c.add("SIGSTOP, and taken over")
		c.analyzer.over(victim, wake+c.ttl)
	}
}

// unlock is an operator's, under a live run. The run has to end although its
// trust has not, and to leave alone who comes next.
func (c *chaos) unlock(ctx context.Context, _ *place, victim run) {
	if !c.held(victim) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	was, err := c.operator.Unlock(ctx, victim.analysis, nil)
	c.check(err)
	c.locked(func() {
		c.breaks[acquisition{victim.analysis, was.Lock.Token}] = proof.Span{Until: c.since() + c.ttl}
	})
	for range c.places {
		c.check(c.queue.deliver(ctx, victim.analysis, 0))
	}
	c.add("unlocked")
	c.analyzer.over(victim, 2*c.ttl)
}

// harmStore pauses Firestore, at least once, at times beyond the TTL.
func (c *chaos) harmStore(ctx context.Context, r *rand.Rand) {
	for round := 0; round == 0 || ctx.Err() == nil; round++ {
		pause(ctx, some(r, c.ttl, c.ttl*time.Duration(min(2+4*round, 6))))
		c.check(c.signalStore(syscall.SIGSTOP))
		time.Sleep(some(r, c.ttl/5, c.ttl*time.Duration(min(1+round, 3))/2))
		c.check(c.signalStore(syscall.SIGCONT))
		c.add("Firestore paused")
	}
}

// faults deals one to every so many commits, of all kinds equally often, and
// slows down or drops a reading now and then.
func (c *chaos) faults() func(*call) fault {
	deck := []fault{
		{name: "reply lost", code: codes.Unavailable}, {name: "reply lost", code: codes.DeadlineExceeded},
		{name: "commit dropped", apply: never, code: codes.Unavailable}, {name: "commit dropped", apply: never, code: codes.DeadlineExceeded},
		{name: "commit applied late", apply: later, code: codes.DeadlineExceeded}, {name: "commit applied late", apply: later, code: codes.DeadlineExceeded},
		{name: "commit sent twice", apply: twice},
		{name: "commit slow", delay: c.ttl / 3},
	}
	r := c.random("faults")
	dealt := 0
	return func(now *call) fault {
		switch {
		case now.commit == nil && r.IntN(50) == 0:
			return fault{name: "reading lost", code: codes.Unavailable}
		case now.commit == nil || r.IntN(c.every) != 0:
			return fault{}
		}
		if dealt%len(deck) == 0 {
			r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		dealt++
		return deck[dealt%len(deck)]
	}
}
