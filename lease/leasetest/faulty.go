package leasetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"taskguard/lease"
)

// Op is a kind of call to a store.
type Op string

// The calls of a lease.Store.
const (
	Load Op = "load"
	Swap Op = "swap"
)

// Call is one call, as a Plan sees it.
type Call struct {
	Op Op  // which kind
	N  int // counts the calls of this Op under this plan, from 1
}

// Deliver is no fault: it applies the Late calls after this call, before its reply.
const Deliver Fault = "deliver"

// Plan chooses the fault of each call. It is called once a call, by one
// goroutine at a time.
type Plan func(Call) Fault

// On makes the Nth call of op, from 1, fail in the Nth way listed; later calls
// succeed.
func On(op Op, faults ...Fault) Plan {
	return func(c Call) Fault {
		if c.Op == op && c.N <= len(faults) {
			return faults[c.N-1]
		}
		return None
	}
}

// Every makes each call of op fail.
func Every(op Op, f Fault) Plan {
	return func(c Call) Fault {
		if c.Op == op {
			return f
		}
		return None
	}
}

// Always makes every call fail.
func Always(f Fault) Plan { return func(Call) Fault { return f } }

// Any combines plans: the first that names a fault counts.
func Any(plans ...Plan) Plan {
	return func(c Call) Fault {
		for _, p := range plans {
			if f := p(c); f != None {
				return f
			}
		}
		return None
	}
}

// ErrDropped is returned by a call whose outcome is unknown: one with RequestLost, ReplyLost, Late or SlowFailure.
var ErrDropped = errors.New("leasetest: connection dropped")

// Faulty is a Store whose calls fail by a Plan. Make it with NewFaulty. Refuse and RefuseAfter return
// lease.ErrRefused, Conflict lease.ErrConflict, and Unavailable the context's error when the context ends. A slow
// call does not end with its context. Late and SentTwice are for writes: a Late one is applied by Deliver.
type Faulty[D any] struct {
	// Delay is how long slow calls take; time.Second if zero. Set it before any call.
	Delay time.Duration

	store lease.Store[D]

	mu     sync.Mutex
	plan   Plan
	calls  map[Op]int
	faults map[Fault]int
	late   []func()
}

// NewFaulty wraps s. The result is no Excluder, whatever s is. With a nil plan no call
// fails.
func NewFaulty[D any](s lease.Store[D], plan Plan) *Faulty[D] {
	return &Faulty[D]{store: s, plan: plan, calls: map[Op]int{}, faults: map[Fault]int{}}
}

// SetPlan replaces the plan and resets the counts of calls and faults. Late calls
// stay late.
func (f *Faulty[D]) SetPlan(p Plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = p
	clear(f.calls)
	clear(f.faults)
}

// Calls counts the calls of op under this plan.
func (f *Faulty[D]) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Faults counts the calls that failed in each way under this plan. A test of
// faults proves something only if each fault that it means to test is in it.
func (f *Faulty[D]) Faults() map[Fault]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.faults)
}

// Deliver applies the late calls.
func (f *Faulty[D]) Deliver() {
	f.mu.Lock()
	late := f.late
	f.late = nil
	f.mu.Unlock()
	for _, apply := range late {
		apply()
	}
}

// Load fails by the plan.
func (f *Faulty[D]) Load(ctx context.Context, key string, want lease.Want) (lease.Cell[D], error) {
	return f.call(ctx, Load, func(ctx context.Context) (lease.Cell[D], error) { return f.store.Load(ctx, key, want) })
}

// Swap fails by the plan.
func (f *Faulty[D]) Swap(ctx context.Context, key string, prev lease.Cell[D], next D) (lease.Cell[D], error) {
	return f.call(ctx, Swap, func(ctx context.Context) (lease.Cell[D], error) {
		return f.store.Swap(ctx, key, prev, next)
	})
}

// next counts a call of op, and returns its fault.
func (f *Faulty[D]) next(op Op) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[op]++
	if f.plan == nil {
		return None
	}
	fault := f.plan(Call{Op: op, N: f.calls[op]})
	if fault != None {
		f.faults[fault]++
	}
	return fault
}

func (f *Faulty[D]) call(ctx context.Context, op Op,
	do func(context.Context) (lease.Cell[D], error),
) (lease.Cell[D], error) {
	asked, delay := time.Now(), cmp.Or(f.Delay, time.Second)
	fault := f.next(op)

	switch fault {
	case RequestLost, Refuse, Conflict:
		return lease.Cell[D]{}, failure(op, fault)
	case Unavailable:
		<-ctx.Done()
		return lease.Cell[D]{}, ctx.Err()
	case SlowFailure:
		time.Sleep(delay)
		return lease.Cell[D]{}, failure(op, fault)
	case Late:
		f.mu.Lock()
		defer f.mu.Unlock()
		f.late = append(f.late, func() { _, _ = do(context.WithoutCancel(ctx)) })
		return lease.Cell[D]{}, failure(op, fault)
	case SlowRequest:
		time.Sleep(delay)
		ctx = context.WithoutCancel(ctx)
	case SentTwice:
		_, _ = do(ctx)
	}

	c, err := do(ctx)
	switch fault {
	case ReplyLost, RefuseAfter:
		return lease.Cell[D]{}, failure(op, fault)
	case Deliver:
		f.Deliver()
	case SlowReply:
		time.Sleep(delay)
	}
	if again := fault == SlowRequest || fault == SentTwice; again && err == nil {
		c.Asked = asked // the caller's start, not the wrapped store's
	}
	return c, err
}

func failure(op Op, fault Fault) error {
	err := ErrDropped
	switch fault {
	case Refuse, RefuseAfter:
		err = lease.ErrRefused
	case Conflict:
		err = lease.ErrConflict
	}
	return fmt.Errorf("%s: %s: %w", op, fault, err)
}
