package proof

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// callTimeout bounds one call, as the real client's does.
const callTimeout = 5 * time.Second

// fault is the fault of one call to the store.
type fault struct {
	name    leasetest.Fault
	applied bool
	err     error // instead of the store's reply, unless nil
	// The request and the reply take longer by up to these times.
	out, back time.Duration
}

// faults returns the faults of calls, of which late is the longest delay.
func faults(late time.Duration) []fault {
	lost := status.Error(codes.Unavailable, "lost")
	conflict := fmt.Errorf("%w: %w", lease.ErrConflict, status.Error(codes.FailedPrecondition, "sent twice"))
	return []fault{
		{name: leasetest.RequestLost, err: lost},
		{name: leasetest.ReplyLost, applied: true, err: lost},
		{name: leasetest.Conflict, err: conflict},
		{name: leasetest.SentTwice, applied: true, err: conflict},
		{name: leasetest.Late, applied: true, out: late},
		{name: leasetest.SlowRequest, applied: true, out: callTimeout},
		{name: leasetest.SlowReply, applied: true, back: callTimeout},
	}
}

// rpcFaults are their names.
var rpcFaults = []figure{leasetest.RequestLost, leasetest.ReplyLost, leasetest.Conflict, leasetest.SentTwice,
	leasetest.Late, leasetest.SlowRequest, leasetest.SlowReply}

// connection connects a worker or an operator to the store and the queue. All faults of calls
// happen here.
type connection struct {
	*simulation
	from *instance // nil: an operator's
}

// connect returns a client of the store and of the queue.
func (w *simulation) connect() (*client, *connection) {
	c := &connection{simulation: w}
	return &client{model: w.model, send: c.send}, c
}

func (c *connection) send(ctx context.Context, k *call) reply {
	switch k.kind {
	case book:
		return c.book(ctx, k)
	case find:
		return c.find(k)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if !c.alive(c.from, "calls", k.by.name, k.kind, k.id) {
		<-ctx.Done()
		return reply{err: ctx.Err()}
	}

	var f fault
	r := c.seed.of("call", k.by.name, k.kind, k.id, c.since())
	c.locked(func() {
		if f = c.plan(r); c.from != nil {
			c.countCall(c.from.slot)
		}
		c.underway++
	})
	replies := make(chan reply, 1)
	c.going.Go(func() {
		time.Sleep(f.out)
		var a reply
		c.locked(func() {
			if f.applied {
				a = c.serve(k)
				c.afterwards(k, &a, r)
			}
			c.underway--
			if c.traced {
				doc := c.show(a.cell.Doc)
				c.note("%s: %s %s [%s] applied %v: %s %v", k.by, k.kind, k.id, f.name, f.applied, doc, a.err)
			}
		})
		if f.err != nil {
			a = reply{err: f.err}
		}
		time.Sleep(f.back)
		replies <- a
	})

	var a reply
	select {
	case a = <-replies:
	case <-ctx.Done():
		a.err = ctx.Err()
	}
	if !c.alive(c.from, "gets", k.by.name, k.kind, k.id) {
		<-ctx.Done()
		return reply{err: ctx.Err()}
	}
	return a
}

// plan returns what happens to a call, and how long its request and its reply take.
func (c *connection) plan(r *draws) fault {
	most := 60 * time.Millisecond
	if r.chance(0.1) {
		most = 400 * time.Millisecond
	}
	f := fault{applied: true}
	if c.from != nil && c.from.slot.cut.has(c.since()) {
		c.count(leasetest.Unavailable)
		return fault{out: callTimeout, back: callTimeout}
	}
	if left := r.Float64(); !c.quiet() {
		for _, next := range faults(3 * c.p.policy.TTL) {
			if left -= c.p.rpc[next.name]; left < 0 {
				f = next
				break
			}
		}
	}
	for _, d := range []*time.Duration{&f.out, &f.back} {
		*d = r.between(time.Millisecond, max(*d, most))
	}
	if f.name != "" {
		c.count(f.name)
	}
	return f
}

// afterwards makes what follows from a call that the store has served.
func (c *connection) afterwards(k *call, a *reply, r *draws) {
	switch p := k.by; {
	case k.kind != swap || a.err != nil:
	case k.next.Lock.Token != k.prev.Doc.Lock.Token && r.chance(0.5):
		a.cell.Rev = revision{number: a.cell.Rev.(revision).number} // the work is too large to be read with the lock
	case c.unbooked(p) && r.chance(c.p.dying) && !c.quiet():
		c.going.Go(func() {
			time.Sleep(c.seed.of("death", p.name).between(0, 100*time.Millisecond))
			c.apply(incident{kind: leasetest.Crash, slot: c.from.slot.n}, int(p.token))
		})
	case p.operates != "" && p.answered:
		c.landed[k.id] = c.since()
	}
}

// book tries until ctx ends, as the real client does.
func (c *connection) book(ctx context.Context, k *call) (a reply) {
	alias := alias(k.task, k.by)
	for n := 0; ; n++ {
		r := c.seed.of("booking", k.by.name, alias, n, c.since())
		if !c.alive(c.from, "books", alias, n) {
			<-ctx.Done()
			return reply{err: ctx.Err()}
		}
		time.Sleep(r.between(time.Millisecond, 50*time.Millisecond))

		lost := !c.quiet() && r.chance(2*c.p.booking)
		c.locked(func() {
			switch {
			case lost && r.chance(0.5):
				c.count(leasetest.RequestLost.At(book))
				return
			case lost:
				c.count(leasetest.ReplyLost.At(book))
			}
			if a = c.serve(k); a.already {
				c.count("names taken")
			}
		})
		time.Sleep(r.between(time.Millisecond, 50*time.Millisecond))
		if !lost && c.alive(c.from, "booked", alias, n) {
			return a
		}
		select {
		case <-ctx.Done():
			return reply{err: ctx.Err()}
		case <-time.After(r.between(50*time.Millisecond, 2*time.Second)):
		}
	}
}

// find asks the queue, which does not answer at times.
func (c *connection) find(k *call) (a reply) {
	r := c.seed.of("asking", k.by.name, c.since())
	time.Sleep(r.between(time.Millisecond, 50*time.Millisecond))
	c.locked(func() {
		if a = c.serve(k); !c.quiet() && r.chance(2*c.p.booking) {
			a = reply{err: status.Error(codes.PermissionDenied, "refused")}
			c.count(leasetest.Refuse.At(find))
		}
	})
	time.Sleep(r.between(time.Millisecond, 50*time.Millisecond))
	return a
}
