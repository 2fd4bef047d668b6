package leasetest

import (
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

// The calls of a lease.Store and of a lease.Excluder.
const (
	Load    Op = "load"
	Swap    Op = "swap"
	Exclude Op = "exclude"
)

// Call is one call, as a Plan sees it.
type Call struct {
	Op  Op
	N   int // the how many-eth of its Op under this plan, from 1
	Key string
}

// Fault is what goes wrong with a call.
type Fault string

// The faults. Where a Load knows no such fault (those of replies to writes),
// it is like DropAfter for it.
const (
	None         Fault = ""
	DropBefore   Fault = "drop before"   // never applied; ErrDropped
	DropAfter    Fault = "drop after"    // applied, the reply lost; ErrDropped
	Late         Fault = "late"          // a Swap is held back until Deliver; ErrDropped
	Deliver      Fault = "deliver"       // what was held back is applied after this call, before its reply
	DeliverFirst Fault = "deliver first" // what was held back is applied before this call
	Dark         Fault = "dark"          // never applied; answers when the context ends, with its error
	Deaf         Fault = "deaf"          // never applied; ErrDropped after Delay, whatever the context
	SlowRequest  Fault = "slow request"  // applied after Delay, whatever the context
	SlowReply    Fault = "slow reply"    // applied at once, answered after Delay, whatever the context
	Duplicate    Fault = "duplicate"     // a Swap is sent twice; the second reply is the answer
	Refuse       Fault = "refuse"        // never applied; ErrRefused
	RefuseAfter  Fault = "refuse after"  // applied; ErrRefused
	Conflict     Fault = "conflict"      // never applied; ErrConflict
)

// Plan says what goes wrong with which call. It is called once a call, by one
// goroutine at a time.
type Plan func(Call) Fault

// On lets the Nth call of op, from 1, go wrong in the Nth way listed; what is
// beyond the list goes well.
func On(op Op, faults ...Fault) Plan {
	return func(c Call) Fault {
		if c.Op == op && c.N <= len(faults) {
			return faults[c.N-1]
		}
		return None
	}
}

// Every lets each call of op go wrong.
func Every(op Op, f Fault) Plan {
	return func(c Call) Fault {
		if c.Op == op {
			return f
		}
		return None
	}
}

// Always lets every call go wrong.
func Always(f Fault) Plan { return func(Call) Fault { return f } }

// Any is the first fault that one of the plans names.
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

// ErrDropped is the answer of a call whose outcome is unknown.
var ErrDropped = errors.New("leasetest: connection dropped")

// Faulty is a Store whose calls go wrong by a Plan. Make it with NewFaulty.
type Faulty[D any] struct {
	// Delay is of the slow calls; time.Second if zero. Set it before any call.
	Delay time.Duration

	store lease.Store[D]

	mu     sync.Mutex
	plan   Plan
	calls  map[Op]int
	faults map[Fault]int
	late   []func()
}

var _ lease.Store[int] = (*Faulty[int])(nil)

// NewFaulty wraps s. The result is no Excluder, whatever s is; for that there
// is NewFaultyExcluder. A nil plan lets everything go well.
func NewFaulty[D any](s lease.Store[D], plan Plan) *Faulty[D] {
	return &Faulty[D]{store: s, plan: plan, calls: map[Op]int{}, faults: map[Fault]int{}}
}

// SetPlan replaces the plan and counts calls and faults from zero again. What
// is held back stays so.
func (f *Faulty[D]) SetPlan(p Plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = p
	clear(f.calls)
	clear(f.faults)
}

// Calls is how many calls of op were begun under this plan.
func (f *Faulty[D]) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Faults is how many calls went wrong in each way under this plan. A fault run proves something
// only if each way it means to test is in it.
func (f *Faulty[D]) Faults() map[Fault]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.faults)
}

// Deliver applies the writes held back so far.
func (f *Faulty[D]) Deliver() {
	f.mu.Lock()
	late := f.late
	f.late = nil
	f.mu.Unlock()
	for _, apply := range late {
		apply()
	}
}

func (f *Faulty[D]) next(op Op, key string) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[op]++
	if f.plan == nil {
		return None
	}
	fault := f.plan(Call{Op: op, N: f.calls[op], Key: key})
	if fault != None {
		f.faults[fault]++
	}
	return fault
}

func (f *Faulty[D]) delay() {
	d := f.Delay
	if d == 0 {
		d = time.Second
	}
	time.Sleep(d)
}

// Load goes wrong by the plan.
func (f *Faulty[D]) Load(ctx context.Context, key string) (lease.Cell[D], error) {
	return f.call(ctx, Load, key, func(ctx context.Context) (lease.Cell[D], error) { return f.store.Load(ctx, key) })
}

// Swap goes wrong by the plan.
func (f *Faulty[D]) Swap(ctx context.Context, key string, prev lease.Cell[D], next D) (lease.Cell[D], error) {
	return f.call(ctx, Swap, key, func(ctx context.Context) (lease.Cell[D], error) { return f.store.Swap(ctx, key, prev, next) })
}

// call makes one call, or not.
func (f *Faulty[D]) call(ctx context.Context, op Op, key string, do func(context.Context) (lease.Cell[D], error)) (lease.Cell[D], error) {
	asked := time.Now()
	fault := f.next(op, key)
	switch fault {
	case DropBefore, Refuse, Conflict:
		return lease.Cell[D]{}, failure(op, fault)
	case Dark:
		<-ctx.Done()
		return lease.Cell[D]{}, ctx.Err()
	case Deaf:
		f.delay()
		return lease.Cell[D]{}, failure(op, fault)
	case Late:
		f.hold(func() { _, _ = do(context.WithoutCancel(ctx)) }) // nobody is left to hear of its outcome
		return lease.Cell[D]{}, failure(op, fault)
	case SlowRequest:
		f.delay()
		ctx = context.WithoutCancel(ctx)
	case DeliverFirst:
		f.Deliver()
	case Duplicate:
		_, _ = do(ctx) // only the second reply arrives
	}
	c, err := do(ctx)
	switch fault {
	case DropAfter, RefuseAfter:
		return lease.Cell[D]{}, failure(op, fault)
	case Deliver:
		f.Deliver()
	case SlowReply:
		f.delay()
	}
	if err == nil && (fault == SlowRequest || fault == Duplicate) {
		c.Asked = asked // the caller's start, not the wrapped store's
	}
	return c, err
}

func (f *Faulty[D]) hold(apply func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.late = append(f.late, apply)
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

// FaultyExcluder is an Excluder whose calls go wrong by a Plan. Make it with
// NewFaultyExcluder.
type FaultyExcluder[D any] struct {
	*Faulty[D]
	excluder lease.Excluder[D]
}

var _ lease.Excluder[int] = (*FaultyExcluder[int])(nil)

// NewFaultyExcluder wraps x.
func NewFaultyExcluder[D any](x lease.Excluder[D], plan Plan) *FaultyExcluder[D] {
	return &FaultyExcluder[D]{Faulty: NewFaulty[D](x, plan), excluder: x}
}

// Exclude goes wrong by the plan. A duplicated one decides twice.
func (f *FaultyExcluder[D]) Exclude(ctx context.Context, key string, decide func(lease.Cell[D]) (D, error)) (lease.Cell[D], error) {
	return f.call(ctx, Exclude, key, func(ctx context.Context) (lease.Cell[D], error) { return f.excluder.Exclude(ctx, key, decide) })
}

// Exclusive is the wrapped store's.
func (f *FaultyExcluder[D]) Exclusive() bool { return f.excluder.Exclusive() }
