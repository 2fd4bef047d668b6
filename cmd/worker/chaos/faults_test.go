package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"taskguard/internal/testing/proof"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
	"taskguard/repo"
)

// injectFaults injects faults for the duration, and does beside them what is given, if anything. It returns when all
// faults have ended, and nothing is paused.
func (c *chaos) injectFaults(t *testing.T, beside func(ctx context.Context)) {
	t.Helper()
	during, over := context.WithTimeout(t.Context(), c.duration)
	defer over()
	c.proxy.script(c.faults())
	c.queue.proxy.script(c.bookings())
	var all sync.WaitGroup
	for i := 0; i+1 < len(c.slots); i += 2 {
		all.Go(func() { c.breakWorkers(during, c.slots[i:i+2], c.random(fmt.Sprint("workers ", i))) })
	}
	all.Go(func() { c.pauseStore(during, c.random("store")) })
	if beside != nil {
		all.Go(func() { beside(during) })
	}
	all.Wait()
	c.proxy.script(nil)
	c.queue.proxy.script(nil)
}

// breakWorkers pauses, kills and stops workers, at least once each.
func (c *chaos) breakWorkers(ctx context.Context, slots []*slot, r *rand.Rand) {
	faults := []func(context.Context, *process, run){c.pause, c.kill, c.stop}
	for round := 0; round == 0 || ctx.Err() == nil; round++ {
		for _, inject := range faults {
			if round > 0 && ctx.Err() != nil {
				return
			}
			pause(ctx, between(r, c.ttl/10, c.ttl))
			p, victim := c.target(slots, r)
			inject(context.WithoutCancel(ctx), p, victim)
		}
		r.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	}
}

// target waits for a run of a worker in one of the slots, at most two TTLs.
func (c *chaos) target(slots []*slot, r *rand.Rand) (p *process, victim run) {
	for end := time.Now().Add(2 * c.ttl); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, i := range r.Perm(len(slots)) {
			p = slots[i].worker()
			runs := c.matching(func(l *run) bool {
				return l.worker == p.number && l.live() && time.Until(l.due) > c.ttl/10
			})
			if len(runs) > 0 {
				return p, runs[r.IntN(len(runs))]
			}
		}
	}
	return p, run{}
}

func (c *chaos) kill(_ context.Context, p *process, _ run) {
	p.kill()
	c.add(leasetest.Crash)
}

func (c *chaos) stop(_ context.Context, p *process, _ run) {
	c.check(p.terminate())
	c.add(leasetest.Stop)
}

// takenOver counts the pauses in which another worker took the run over.
const takenOver = leasetest.Pause + ", and taken over"

// pause stops a worker for longer than the TTL and, if it has a run, until a duplicate
// delivery has taken the run over. Then it waits until the worker has hung up.
func (c *chaos) pause(ctx context.Context, p *process, victim run) {
	held, from := c.prolong(victim, 8*c.ttl), c.since()
	p.signal(syscall.SIGSTOP)

	superseded := func() bool {
		runs := c.of(victim.analysis)
		return !held || runs[len(runs)-1].token > victim.token
	}
	for !superseded() || c.since()-from < c.ttl*5/4 {
		if held {
			c.check(c.queue.deliver(ctx, victim.analysis, 0))
			c.add(leasetest.DeliveredTwice)
		}
		pause(ctx, c.ttl/4)
		if !superseded() && c.since()-from > waitLimit {
			c.check(fmt.Errorf("%s: token %d was not taken over during a pause", victim.analysis, victim.token))
			break
		}
	}

	p.signal(syscall.SIGCONT)
	c.add(leasetest.Pause)
	wake := c.ttl/10 + time.Second // the worker may take so long to hang up
	c.locked(func() {
		c.pauses[p.number] = append(c.pauses[p.number], proof.Span{From: from, Until: c.since() + wake})
	})
	if held {
		c.add(takenOver)
		pause(ctx, wake)
	}
}

// pauseStore pauses Firestore at least once, sometimes for longer than the TTL.
func (c *chaos) pauseStore(ctx context.Context, r *rand.Rand) {
	for round := 0; round == 0 || ctx.Err() == nil; round++ {
		pause(ctx, between(r, c.ttl, c.ttl*time.Duration(min(2+4*round, 6))))
		c.proxy.pause(between(r, c.ttl/5, c.ttl*time.Duration(min(1+round, 3))/2))
		c.add(leasetest.Unavailable)
	}
}

// faults returns the faults of calls to Firestore: one for every so many commits, of all kinds
// equally often, and at times one for a read.
func (c *chaos) faults() func(*call) fault {
	kinds := []fault{{name: leasetest.SentTwice, apply: twice}, {name: leasetest.SlowRequest, delay: c.ttl / 3}}
	for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded} {
		kinds = append(kinds,
			fault{name: leasetest.ReplyLost, code: code},
			fault{name: leasetest.RequestLost, apply: never, code: code},
			fault{name: leasetest.Late, apply: later, code: codes.DeadlineExceeded})
	}
	r := c.random("faults")
	used := 0
	return func(now *call) fault {
		switch {
		case now.commit == nil && r.IntN(50) == 0:
			return fault{name: leasetest.ReplyLost.At("load"), code: codes.Unavailable}
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

// bookings returns the faults of the calls that create a task: a call or a reply is lost, or its
// worker is killed while it waits for the reply. A call that asks for a task is refused at times.
func (c *chaos) bookings() func(*call) fault {
	r := c.random("bookings")
	return func(now *call) fault {
		kill := func() { c.killWorker(now.caller) }
		switch n := r.IntN(100); {
		case now.method == "GetTask" && n < 25:
			return fault{name: leasetest.Refuse.At("find"), apply: never, code: codes.PermissionDenied}
		case now.method != "CreateTask":
			return fault{}
		case n < 5:
			return fault{name: leasetest.RequestLost.At("book"), apply: never, code: codes.Unavailable}
		case n < 10:
			return fault{name: leasetest.ReplyLost.At("book"), code: codes.Unavailable}
		case n < 13:
			return fault{name: leasetest.CrashBefore.At("book"), apply: never, then: kill}
		case n < 16:
			return fault{name: leasetest.CrashAfter.At("book"), then: kill}
		}
		return fault{}
	}
}

// killWorker kills the worker with that number, if it still serves.
func (c *chaos) killWorker(number int) {
	for _, s := range c.slots {
		if p := s.worker(); p.number == number {
			p.kill()
		}
	}
}

// answerActs answers uncertain acts, as an operator does who asks the provider.
func (c *chaos) answerActs(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx, c.ttl/5) {
		all, err := c.operator.Uncertain(ctx, 100)
		if err != nil { // Firestore is paused, or the end
			continue
		}
		for i := range all {
			d := &all[i]
			if d.Status != analysislock.Failed {
				continue
			}
			answer := analysislock.Answer{}
			c.locked(func() {
				if c.charges[d.ID] > 0 {
					answer = analysislock.Answer{Done: true, Result: []byte("true")}
				} else {
					c.denied[d.ID]++
				}
			})
			seen := &analysislock.Seen{Status: d.Status, Grant: d.Lock.Grant()}
			_, err := c.operator.Resolve(ctx, d.ID, "", seen, "charge", answer, "")
			switch {
			case err == nil:
				c.add(map[bool]figure{true: "answered done", false: "answered not done"}[answer.Done])
				c.check(c.queue.deliver(context.WithoutCancel(ctx), d.ID, 0))
			case !errors.Is(err, lease.ErrUnavailable) && !errors.Is(err, lease.ErrConflict) && ctx.Err() == nil:
				c.check(err)
			}
		}
	}
}

// requeueCrashed requeues what is FAILED because the test has killed its worker too often, as an operator
// does.
func (c *chaos) requeueCrashed(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx, c.ttl) {
		crashed := repo.Filter{Status: analysislock.Failed, Code: analysislock.Crashed}
		all, _, _, err := c.operator.Page(ctx, crashed, "", 100)
		if err != nil { // Firestore is paused, or the end
			continue
		}
		for i := range all {
			d := &all[i]
			if d.Error.Code != analysislock.Crashed { // only its last error is
				continue
			}
			seen := &analysislock.Seen{Status: d.Status, Grant: d.Lock.Grant()}
			if _, err := c.operator.Requeue(ctx, d.ID, "", seen, false, ""); err == nil {
				c.add("requeued after crashes")
				c.check(c.queue.deliver(context.WithoutCancel(ctx), d.ID, 0))
			}
		}
	}
}
