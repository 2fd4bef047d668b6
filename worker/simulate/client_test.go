package simulate

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// callTimeout bounds one call, as the real client's does.
const callTimeout = 5 * time.Second

// client is a worker's way to the store: the only place where calls go wrong.
type client struct {
	w    *world
	from *instance // nil: an operator's
	by   *tag      // whose calls it carries
}

var _ lease.Store[analysislock.Analysis] = client{}

type cell = lease.Cell[analysislock.Analysis]

func (c client) Load(ctx context.Context, key string) (cell, error) {
	return c.call(ctx, "load", key, func() (cell, error) { return c.w.store.load(key) })
}

func (c client) Swap(ctx context.Context, key string, prev cell, next analysislock.Analysis) (cell, error) {
	by := c.by
	holds := by.owner != "" && prev.Doc.Lock.Owner == by.owner
	renewal := holds && next.Lock.Owner == by.owner
	kind := renew
	c.w.mu.Lock()
	switch {
	case renewal, by.owner == "":
	case holds && next.Lock.Finished:
		kind = finish
	case holds:
		kind = release
	case next.Lock.Owner == by.owner:
		by.meant = append(by.meant, next.Lock.ExpiresAt.UnixNano())
	case next.Lock.Token == prev.Doc.Lock.Token+1: // no attempt is left
		by.meant = append(by.meant, -1)
	}
	c.w.mu.Unlock()
	began := c.w.now()
	got, err := c.call(ctx, "swap", key, func() (cell, error) { return c.w.store.swap(key, prev, next, by) })
	if holds {
		c.w.wrote(key, by, kind, began, next.Lock.ExpiresAt, err)
	}
	return got, err
}

// course is what becomes of one call.
type course struct {
	fault     fault
	out, back time.Duration
	applied   bool
	err       error // instead of the store's answer
	last      bool  // for a while: then the worker is cut off
}

// course draws what becomes of a call.
func (c client) course(by *tag, op, key string, n int) course {
	r := c.w.dice.of("call", by.by, op, key, n)
	most := 60 * time.Millisecond
	if r.chance(0.1) {
		most = 400 * time.Millisecond
	}
	k := course{out: r.between(time.Millisecond, most), back: r.between(time.Millisecond, most), applied: true}
	if c.w.calm() {
		return k
	}
	left := r.Float64()
	for _, f := range rpcFaults {
		if left -= c.w.p.rpc[f]; left < 0 {
			k.fault = f
			break
		}
	}
	switch k.fault {
	case dropBefore:
		k.applied, k.err = false, status.Error(codes.Unavailable, "dropped")
	case dropAfter:
		k.err = status.Error(codes.Unavailable, "dropped")
	case late:
		k.out = r.between(callTimeout, 3*c.w.p.policy.TTL+callTimeout)
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
		k.last = r.chance(0.5)
	}
	return k
}

// dark reports whether nothing gets through at this time.
func (c client) dark() fault {
	at := c.w.now()
	for _, s := range c.w.p.dark {
		if s.has(at) {
			return storeDark
		}
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if c.from != nil && c.from.slot.cut.has(at) {
		return workerDark
	}
	return none
}

// call carries one call to the store and its answer back. The caller stops
// waiting at its deadline; the call goes its way.
func (c client) call(ctx context.Context, op, key string, do func() (cell, error)) (cell, error) {
	asked := time.Now()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	by := c.by
	c.w.mu.Lock()
	by.calls++
	n := by.calls
	c.w.mu.Unlock()
	if c.from != nil && !c.from.alive("calls", by.by, n) {
		<-ctx.Done()
		return cell{}, ctx.Err()
	}
	if c.from != nil {
		c.from.called()
	}
	k := c.course(by, op, key, n)
	if f := c.dark(); f != none {
		k = course{fault: f, out: callTimeout, back: callTimeout}
	}
	if k.fault != none {
		c.w.count(k.fault)
	}
	if k.last && c.from != nil {
		c.from.cutOff(k.out, 2*c.w.p.policy.TTL)
	}
	answer := make(chan reply, 1)
	c.w.sent()
	c.w.going.Go(func() { c.carry(k, by, op, key, n, do, answer) })
	var got reply
	select {
	case got = <-answer:
	case <-ctx.Done():
		got.err = ctx.Err()
	}
	if c.from != nil && !c.from.alive("hears", by.by, n) {
		<-ctx.Done()
		return cell{}, ctx.Err()
	}
	got.cell.Asked = asked
	if got.err == nil {
		c.w.mu.Lock()
		by.at = got.cell.At
		c.w.mu.Unlock()
	}
	return got.cell, got.err
}

type reply struct {
	cell cell
	err  error
}

func (c client) carry(k course, by *tag, op, key string, n int, do func() (cell, error), answer chan<- reply) {
	time.Sleep(k.out)
	var got reply
	if k.applied {
		got.cell, got.err = do()
	}
	c.w.mu.Lock()
	c.w.underway--
	c.w.tell("%s %s #%d %s [%s] applied %v: %s", by.by, op, n, key, k.fault, k.applied, described(got))
	c.w.mu.Unlock()
	if k.err != nil {
		got = reply{err: k.err}
	}
	time.Sleep(k.back)
	answer <- got
}

func described(r reply) string {
	if r.err != nil {
		return r.err.Error()
	}
	l := r.cell.Doc.Lock
	return fmt.Sprintf("%s owner %q token %d attempts %d expires %s", r.cell.Doc.Status, l.Owner, l.Token, l.Attempts, l.ExpiresAt.Format("15:04:05.000"))
}
