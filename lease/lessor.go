package lease

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The time limits of an operation, including all its calls.
const (
	acquireTimeout = 15 * time.Second
	finishTimeout  = 60 * time.Second
	releaseTimeout = 2 * time.Second // if the caller has no later deadline
)

// Lessor grants leases on the records of a Store. It is safe for concurrent
// use; make it with NewLessor.
type Lessor[D any] struct {
	store  Store[D]
	lease  func(*D) *Lease // returns the Lease inside a record
	policy Policy
}

// NewLessor returns a Lessor, or Check's error about p. lease returns the Lease inside
// a record.
func NewLessor[D any](s Store[D], lease func(*D) *Lease, p Policy) (*Lessor[D], error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	return &Lessor[D]{store: s, lease: lease, policy: p.filled()}, nil
}

// Policy returns the policy in force, with its zero fields set.
func (l *Lessor[D]) Policy() Policy { return l.policy }

// WithTTL returns a Lessor that grants leases of another TTL; zero means its own.
// They are renewed as often as before, but at least three times in a TTL.
func (l *Lessor[D]) WithTTL(ttl time.Duration) (*Lessor[D], error) {
	if ttl == 0 || ttl == l.policy.TTL {
		return l, nil
	}
	p := l.policy
	p.TTL, p.Heartbeat = ttl, min(p.Heartbeat, ttl/3)
	return NewLessor(l.store, l.lease, p)
}

// Acquire takes the lease of key for owner, which must be new for each call. set, which may
// be nil, changes the record's own fields in the same commit, also if Take has just finished
// the record because its attempts are exhausted. It is pure and may be called again.
//
// Acquire returns the Hold; or ErrNotFound, ErrFinished, ErrExhausted (which it has
// recorded), a *HeldError, or ErrUnavailable after at most 15 s. With each of these it
// returns the record as last read or written. (SEEDS G1, G3, G6)
func (l *Lessor[D]) Acquire(ctx context.Context, key, owner string, set func(*D)) (*Hold[D], D, error) {
	return l.AcquireBy(ctx, key, owner, OnlyLease, func(d *D, now time.Time) error {
		next, err := Take(*l.lease(d), now, owner, l.policy)
		if err == nil || errors.Is(err, ErrExhausted) {
			*l.lease(d) = next
			apply(set, d)
		}
		return err
	})
}

// AcquireBy is like Acquire with another rule than Take alone. take changes the record d at
// now, the store's time: it gives the lease to owner and returns nil, or it finishes the record
// as owner and returns ErrExhausted. If take returns any other error, AcquireBy writes nothing
// and returns that error. take is pure and may be called again.
func (l *Lessor[D]) AcquireBy(ctx context.Context, key, owner string, want Want,
	take func(d *D, now time.Time) error,
) (*Hold[D], D, error) {
	var none D
	if owner == "" {
		return nil, none, fmt.Errorf("lease: acquire %q: no owner", key)
	}
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()

	stolen := false // set by the last decision, which is the one that was written
	decide := func(c Cell[D]) (D, error) {
		if !c.Exists {
			return c.Doc, ErrNotFound
		}
		next := c.Doc
		if err := take(&next, c.At); err != nil && !errors.Is(err, ErrExhausted) {
			return c.Doc, err
		}
		before := l.lease(&c.Doc)
		if before.FinishedBy == owner { // by a write of this call whose reply was lost; reopened since
			return c.Doc, ErrExhausted
		}
		stolen = before.Owner != ""
		return next, nil
	}
	landed := func(c Cell[D]) bool {
		got := l.lease(&c.Doc)
		return got.HeldBy(Grant{Owner: owner, Token: got.Token}) || got.Finished && got.FinishedBy == owner
	}
	e := edit[D]{store: l.store, key: key, want: want, decide: decide, landed: landed}
	c, err := e.run(ctx)
	if err == nil && l.lease(&c.Doc).Finished {
		err = ErrExhausted
	}
	if err != nil {
		return nil, c.Doc, err
	}

	h := l.Hold(key, c)
	h.stolen = stolen
	return h, c.Doc, nil
}

// Resume reads the record and returns a Hold of an earlier acquisition of key by owner,
// perhaps in another process. It returns ErrNotFound if there is no record, and ErrLost if
// owner does not hold it.
func (l *Lessor[D]) Resume(ctx context.Context, key, owner string) (*Hold[D], error) {
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	c, err := Read(ctx, l.store, key)
	if err != nil {
		return nil, err
	}

	if !c.Exists {
		return nil, ErrNotFound
	}
	got := l.lease(&c.Doc)
	if err := loss(*got, Grant{Owner: owner, Token: got.Token}); err != nil {
		return nil, err
	}
	return l.Hold(key, c), nil
}

// Hold returns the Hold of the acquisition that c shows.
func (l *Lessor[D]) Hold(key string, c Cell[D]) *Hold[D] {
	h := &Hold[D]{
		lessor: l, key: key, grant: l.lease(&c.Doc).Grant(), tried: c.Asked,
		moved: make(chan struct{}, 1), wake: make(chan struct{}, 1),
	}
	h.update(c, l.policy)
	return h
}
