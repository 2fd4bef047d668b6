package chaos

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"taskguard/repo"
)

// newOperator is another program than the workers, which comes through the
// proxy too: its unlocks belong to the history.
func newOperator(t *testing.T, s *stage) *repo.Analyses {
	t.Helper()
	host, err := s.proxy.listen(operator)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(host, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(owner{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	analyses, err := repo.Open(t.Context(), s.project, repo.Options{}, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	return analyses
}

// wake is how long after SIGCONT a worker may take to hang up.
func (c *chaos) wake() time.Duration { return c.ttl/10 + time.Second }

// held lets the run in which harm is done go on for longer than that may be
// excused, unless its worker hangs up.
func (c *chaos) held(victim run) bool {
	return victim.analysis != "" && c.analyzer.hold(victim, 8*c.ttl)
}

// superseded reports whether an analysis has been taken over since that run.
func (c *chaos) superseded(r run) bool {
	runs := c.analyzer.of(r.analysis)
	return runs[len(runs)-1].token > r.token
}

// pause stops a worker for longer than the TTL and, if it has a run, until that
// has been taken over: by one of the duplicates that come meanwhile. Then the
// worker is left alone until it has hung up.
func (c *chaos) pause(ctx context.Context, p *place, victim run) {
	held := c.held(victim)
	c.check(p.process.signal(syscall.SIGSTOP))
	from := time.Now()
	for over := false; !over || time.Since(from) < c.ttl*5/4; {
		if held {
			c.check(c.queue.deliver(ctx, victim.analysis, 0))
			c.add("duplicates")
		}
		wait(ctx, time.After(c.ttl/4))
		if over = !held || c.superseded(victim); !over && time.Since(from) > patience {
			c.check(fmt.Errorf("%s: the run of token %d was not taken over, with its worker paused for %v", victim.analysis, victim.token, patience))
			break
		}
	}
	c.check(p.process.signal(syscall.SIGCONT))
	c.add("SIGSTOP")
	c.mu.Lock()
	c.pauses[p.number] = append(c.pauses[p.number], interval{from, time.Now()})
	c.mu.Unlock()
	if held {
		c.add("SIGSTOP, and taken over")
		c.analyzer.over(victim, c.wake()+c.ttl)
	}
}

// unlock is an operator's, under a live run: which is to end although its trust
// has not, and to leave alone who comes next.
func (c *chaos) unlock(ctx context.Context, _ *place, victim run) {
	if !c.held(victim) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	was, err := c.operator.Unlock(ctx, victim.analysis, nil)
	c.check(err)
	c.mu.Lock()
	c.breaks[acquisition{victim.analysis, was.Lock.Token}] = time.Now()
	c.mu.Unlock()
	for range c.places {
		c.check(c.queue.deliver(ctx, victim.analysis, 0))
	}
	c.add("unlocked")
	c.analyzer.over(victim, 2*c.ttl)
}

// overlap takes two runs of an analysis, where older may have been live when
// newer began. A worker hangs up before its lock can be another's. What excuses
// it is that it was paused, or that its lock was broken by the operator; and
// what this machine may be late by is what the test was late by.
func (c *chaos) overlap(t *testing.T, older, newer run) {
	t.Helper()
	if !older.ended.After(newer.began) {
		return
	}
	what, since := "overlaps of a run that was not paused", newer.began
	excuse := func(name string, from, to time.Time) {
		if !from.After(since) && to.After(since) {
			what, since = name, to
		}
	}
	for _, p := range c.pauses[older.worker] {
		excuse("overlaps of a paused worker's run", p.from, p.to.Add(c.wake()))
	}
	if at, ok := c.breaks[acquisition{older.analysis, older.token}]; ok { // it was trusted for a TTL from then, at most
		excuse("overlaps of an unlocked run", older.began, at.Add(c.ttl))
	}
	c.counts[what]++
	late := older.ended.Sub(since)
	if late <= 0 {
		return
	}
	if stood := c.stood(newer.began.Add(-c.ttl), older.ended); late > notice+stood {
		t.Errorf("%s: the run of token %d was live for %v more, beside that of token %d; the machine stood still for %v",
			older.analysis, older.token, late, newer.token, stood)
	}
}

// notice is what the analyzer may take to hear that a worker has hung up.
const notice = 50 * time.Millisecond

// stood is for how long this machine stood still between two times.
func (c *chaos) stood(from, to time.Time) (sum time.Duration) {
	for _, s := range c.stalls {
		if s.from.Before(to) && from.Before(s.to) {
			sum += s.to.Sub(s.from)
		}
	}
	return sum
}
