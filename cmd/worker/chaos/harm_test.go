package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
)

// place is where one worker is, and after its end the next.
type place struct {
	mu      sync.Mutex
	number  int
	process *process
}

func (p *place) address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process.address
}

// fill starts a worker.
func (c *chaos) fill(p *place) error {
	number, env, err := c.environment(
		"LOCK_TTL="+c.ttl.String(), "LOCK_HEARTBEAT="+(c.ttl*3/10).String(), "MAX_ATTEMPTS=100000")
	if err != nil {
		return err
	}
	next, err := start("worker", env...)
	if err != nil {
		return err
	}
	if p.process != nil {
		c.harvest(p.process)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.number
	p.number, p.process = number, next
	c.queue.front.replace(old, number, next.address)
	return nil
}

// harvest counts what a worker that has ended has said of the locks it lost:
// why, and of which analyses.
func (c *chaos) harvest(p *process) {
	for line := range bytes.Lines(p.output.Bytes()) {
		var entry struct {
			Outcome, Error string
			AnalysisID     string `json:"analysis_id"`
		}
		if json.Unmarshal(line, &entry) == nil && entry.Outcome == "lock_lost" {
			c.add("logged " + entry.Error)
			c.mu.Lock()
			c.losses[entry.AnalysisID]++
			c.counts["losses of the analysis that lost most"] = max(c.counts["losses of the analysis that lost most"], c.losses[entry.AnalysisID])
			c.mu.Unlock()
		}
	}
}

// end kills what is left.
func (c *chaos) end() {
	for _, p := range c.places {
		if p.process != nil {
			p.process.end()
		}
	}
}

// harmWorkers unlocks what they run, pauses, kills and stops workers, at least
// once each. It alone
// changes what is in its places.
func (c *chaos) harmWorkers(ctx context.Context, places []*place, r *rand.Rand) {
	harms := []func(context.Context, *place, run){c.unlock, c.pause, c.kill, c.stop}
	for round := 0; round == 0 || ctx.Err() == nil; round++ {
		for _, harm := range harms {
			wait(ctx, time.After(some(r, c.ttl/10, c.ttl)))
			p, victim := c.target(ctx, places, r)
			harm(context.WithoutCancel(ctx), p, victim)
		}
		r.Shuffle(len(harms), func(i, j int) { harms[i], harms[j] = harms[j], harms[i] })
	}
}

// target waits a while for a run in one of the places.
func (c *chaos) target(ctx context.Context, places []*place, r *rand.Rand) (*place, run) {
	for end := time.Now().Add(2 * c.ttl); time.Now().Before(end); wait(ctx, time.After(20*time.Millisecond)) {
		for _, i := range r.Perm(len(places)) {
			runs := c.analyzer.live(func(l run) bool {
				return l.worker == places[i].number && l.left() > c.ttl/10
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
	code := p.process.terminated()
	_ = p.process.stdin.Close()
	if code != 0 {
		c.check(fmt.Errorf("worker %d: exit %d after SIGTERM: %s", p.number, code, p.process.stderr.String()))
	}
	c.add("SIGTERM")
	c.check(c.fill(p))
}

// harmStore pauses Firestore, at least once, at times beyond the TTL.
func (c *chaos) harmStore(ctx context.Context, r *rand.Rand) {
	for round := 0; round == 0 || ctx.Err() == nil; round++ {
		wait(ctx, time.After(some(r, c.ttl, c.ttl*time.Duration(min(2+4*round, 6)))))
		c.check(c.store.signal(syscall.SIGSTOP))
		time.Sleep(some(r, c.ttl/5, c.ttl*time.Duration(min(1+round, 3))/2))
		c.check(c.store.signal(syscall.SIGCONT))
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
