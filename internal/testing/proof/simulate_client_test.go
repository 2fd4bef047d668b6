package proof

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// callTimeout bounds one call, as the real client's does.
const callTimeout = 5 * time.Second

// client is the store and the queue of a worker or an operator. All faults of calls
// happen here.
type client struct {
	*simulation
	slot *slot
	from *instance // nil: an operator's
}

// Load implements lease.Store.
func (c *client) Load(ctx context.Context, id string) (cell, error) {
	return c.call(ctx, "load", id, func(p *caller) (cell, error) {
		got := c.load(id)
		if p.operates == Resolve || p.operates == Requeue { // a worker's decision does not read it
			got.Doc.Effects = c.records[id].effects
		}
		return got, nil
	})
}

// Swap implements lease.Store.
func (c *client) Swap(ctx context.Context, id string, prev cell, next analysis) (cell, error) {
	var sent given
	c.locked(func() {
		c.learnOwner(callerOf(ctx), next)
		if r := c.records[id]; r != nil {
			sent = given{r.mark, r.effects}
		}
	})
	return c.call(ctx, "swap", id, func(p *caller) (cell, error) {
		got, err := c.swap(p, id, prev, next)
		if err == nil && next.Lock.Token != prev.Doc.Lock.Token {
			// The request for the work was sent with this one. It is served before it, or after
			// it, or not.
			got.Doc.Stored = pick(c.seed.of("work", p.name, c.since()), any(sent), any(given{c.records[id].mark, c.records[id].effects}), nil)
		}
		if err == nil && c.unbooked(p) && c.seed.of("dying", p.name).chance(c.p.dying) && !c.quiet() {
			c.going.Go(func() {
				time.Sleep(c.seed.of("death", p.name).between(0, 100*time.Millisecond))
				c.apply(incident{kind: "crash", slot: c.slot.n}, int(p.token))
			})
		}
		if err == nil && p.operates != "" && p.answered {
			c.landed[id] = c.since()
		}
		return got, err
	})
}

// given is what an attempt is given.
type given struct {
	mark    mark
	effects analysislock.Effects
}

// work returns the work that was read with the acquisition, or reads it.
func (c *client) work(ctx context.Context, d analysis) (analysislock.Work, error) {
	k, read := d.Stored.(given)
	if !read {
		_, err := c.call(ctx, "work", d.ID, func(*caller) (cell, error) {
			k = given{c.records[d.ID].mark, c.records[d.ID].effects}
			return cell{}, nil
		})
		if err != nil {
			return analysislock.Work{}, fmt.Errorf("%w: %w", lease.ErrUnavailable, err)
		}
	}
	w := workOf(d.ID, k.mark)
	w.Effects = k.effects
	return w, nil
}

// plan is what happens to one call.
type plan struct {
	fault     fault
	out, back time.Duration
	applied   bool
	err       error // instead of the store's reply, unless nil
	cut       bool  // the worker's later calls fail for a time
}

func (c *client) plan(p *caller, op, id string, n int) plan {
	if f := c.unreachable(); f != none {
		return plan{fault: f, out: callTimeout, back: callTimeout}
	}
	r := c.seed.of("call", p.name, op, id, n)
	most := 60 * time.Millisecond
	if r.chance(0.1) {
		most = 400 * time.Millisecond
	}
	k := plan{out: r.between(time.Millisecond, most), back: r.between(time.Millisecond, most), applied: true}
	if c.quiet() {
		return k
	}

	left := r.Float64()
	for _, f := range rpcFaults {
		if left -= c.p.rpc[f]; left < 0 {
			k.fault = f
			break
		}
	}

	switch k.fault {
	case dropBefore:
		k.applied, k.err = false, status.Error(codes.Unavailable, "dropped")
	case dropAfter:
		k.err = status.Error(codes.Unavailable, "dropped")
	case tooLate:
		k.out = r.between(callTimeout, 3*c.p.policy.TTL+callTimeout)
	case aborted:
		k.applied, k.err = false, fmt.Errorf("%w: %w", lease.ErrConflict, status.Error(codes.Aborted, "contention"))
	case abortedAfter:
		k.err = fmt.Errorf("%w: %w", lease.ErrConflict, status.Error(codes.FailedPrecondition, "sent twice"))
	case unavailable:
		k.applied, k.err = false, status.Error(codes.Unavailable, "unavailable")
	case exceeded:
		k.applied, k.err, k.back = r.chance(0.5), status.Error(codes.DeadlineExceeded, "too slow"), callTimeout
	case slowRequest:
		k.out += r.between(time.Second, callTimeout)
	case slowReply:
		k.back += r.between(time.Second, callTimeout)
		k.cut = r.chance(0.5)
	}
	return k
}

// unreachable returns the fault of every call at this time, or none.
func (c *client) unreachable() fault {
	for _, s := range c.p.down {
		if s.has(c.since()) {
			return storeDown
		}
	}
	if c.from != nil && c.slot.cut.has(c.since()) {
		return workerCut
	}
	return none
}

// call sends one call to the store and returns its reply. The caller stops waiting
// at its deadline; the call continues.
func (c *client) call(ctx context.Context, op, id string, do func(*caller) (cell, error)) (cell, error) {
	if err := ctx.Err(); err != nil { // nothing is sent
		return cell{}, err
	}
	asked, p := time.Now(), callerOf(ctx)

	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	n := 0
	c.locked(func() {
		p.calls++
		n = p.calls
	})
	if !c.alive(c.from, "calls", p.name, n) {
		<-ctx.Done()
		return cell{}, ctx.Err()
	}

	var k plan
	c.locked(func() {
		c.countCall(c.slot)
		if k = c.plan(p, op, id, n); k.fault != none {
			c.count(string(k.fault))
		}
		if k.cut && c.slot != nil {
			c.cutOff(c.slot, k.out, 2*c.p.policy.TTL)
		}
		c.underway++
	})

	replies := make(chan reply, 1)
	c.going.Go(func() {
		time.Sleep(k.out)
		var got reply
		c.locked(func() {
			if k.applied {
				got.cell, got.err = do(p)
			}
			c.underway--
			if c.traced {
				c.note("%s: %s #%d [%s] applied %v: %s %v", p, op, n, k.fault, k.applied, c.show(got.cell.Doc), got.err)
			}
		})
		if k.err != nil {
			got = reply{err: k.err}
		}
		time.Sleep(k.back)
		replies <- got
	})

	var got reply
	select {
	case got = <-replies:
	case <-ctx.Done():
		got.err = ctx.Err()
	}

	if !c.alive(c.from, "gets", p.name, n) {
		<-ctx.Done()
		return cell{}, ctx.Err()
	}
	got.cell.Asked = asked
	return got.cell, got.err
}

var errUnavailable = errors.New("queue unavailable")

// Book implements delivery.Queue. It tries until ctx ends, as the real client
// does.
func (c *client) Book(ctx context.Context, t taskqueue.Task) (already bool, err error) {
	p := callerOf(ctx)
	alias := alias(t, p)
	for n := 0; ; n++ {
		r := c.seed.of("booking", p.name, alias, n, c.since())
		if !c.alive(c.from, "books", alias, n) {
			<-ctx.Done()
			return false, ctx.Err()
		}
		time.Sleep(r.between(time.Millisecond, 50*time.Millisecond))

		switch bad := !c.quiet() && r.chance(2*c.p.booking); {
		case bad && r.chance(0.5):
			c.locked(func() { c.count("bookings unavailable") })
		case bad:
			c.locked(func() { c.count("booking replies lost") })
			c.add(t, p)
		default:
			if already = !c.add(t, p); already {
				c.locked(func() { c.count("names taken") })
			}
			time.Sleep(r.between(time.Millisecond, 50*time.Millisecond))
			if c.alive(c.from, "booked", alias, n) {
				return already, nil
			}
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("%w: %w", errUnavailable, ctx.Err())
		case <-time.After(r.between(50*time.Millisecond, 2*time.Second)):
		}
	}
}

// Find implements delivery.Queue.
func (c *client) Find(ctx context.Context, name string, _ time.Time) (found taskqueue.Presence, err error) {
	r := c.seed.of("asking", callerOf(ctx).name, c.since())
	time.Sleep(r.between(time.Millisecond, 50*time.Millisecond))
	c.locked(func() {
		if found = c.find(name); !c.quiet() && r.chance(2*c.p.booking) {
			found, err = taskqueue.Absent, errUnavailable
			c.count("asks unanswered")
		}
	})
	time.Sleep(r.between(time.Millisecond, 50*time.Millisecond))
	return found, err
}

// Orphaned implements delivery.OrphanFinder.
func (c *client) Orphaned(ctx context.Context, _ int) ([]cell, bool, error) {
	if _, err := c.Load(ctx, "none"); err != nil {
		return nil, false, err
	}
	return c.orphans(), false, nil
}

// MarkDue implements delivery.OrphanFinder.
func (c *client) MarkDue(ctx context.Context, read cell, task func(time.Time) string) (string, error) {
	var p *caller
	c.locked(func() {
		p = c.join(c.from, nil)
		p.name, p.operates, p.analysis = callerOf(ctx).name+"/"+read.Doc.ID, Mark, read.Doc.ID
	})
	return c.ledger(c).MarkDue(p.context(ctx), read, task)
}
