package lease

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// acquireTimeout limits an acquisition, including all its calls.
const acquireTimeout = 15 * time.Second

// Records are the records of a Store whose leases can be acquired. They are safe for concurrent
// use; make them with NewRecords.
type Records[D any] struct {
	// Shed lists what a commit leaves out if the store has no room for all pending changes: the
	// parts of the first entry, or else of the second, and so on. What is left then goes too. Set
	// it before the first acquisition.
	Shed [][]string

	store  Store[D]
	lease  func(*D) *Lease // returns the Lease inside a record
	policy Policy
}

// NewRecords returns the records of a store, or Check's error about p. lease returns the Lease
// inside a record.
func NewRecords[D any](s Store[D], lease func(*D) *Lease, p Policy) (*Records[D], error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	return &Records[D]{store: s, lease: lease, policy: p.filled()}, nil
}

// Policy returns the policy in force, with its zero fields set.
func (r *Records[D]) Policy() Policy { return r.policy }

// WithTTL returns records whose leases have another TTL; zero means the same. They are renewed as
// often as before, but at least three times in a TTL.
func (r *Records[D]) WithTTL(ttl time.Duration) (*Records[D], error) {
	if ttl == 0 || ttl == r.policy.TTL {
		return r, nil
	}
	other := *r
	other.policy.TTL, other.policy.Heartbeat = ttl, min(r.policy.Heartbeat, ttl/3)
	return &other, other.policy.Check()
}

// Acquire acquires the lease of key for owner, which must be new for each call. want is what its
// readings bring.
//
// decide changes the record d at now, the store's time: it gives the lease to owner and returns
// nil, or it finishes the record as owner and returns ErrExhausted. After any other error of decide
// nothing is written. It is pure, and may be called again. A nil decide is the rule [Acquire] alone.
//
// Acquire returns the Hold; or ErrNotFound, ErrExhausted once that is recorded, another error of
// decide unchanged, or ErrUnavailable after at most 15 s. With each of these it returns the record
// as last read or written. (SEEDS G1, G3, G6)
func (r *Records[D]) Acquire(ctx context.Context, key, owner string, want Want,
	decide func(d *D, now time.Time) error,
) (*Hold[D], D, error) {
	return r.AcquireFrom(ctx, nil, key, owner, want, decide)
}

// AcquireFrom is Acquire that decides first by from, a reading of the record, which saves another. If
// from is nil, it reads the record.
func (r *Records[D]) AcquireFrom(ctx context.Context, from *Cell[D], key, owner string, want Want,
	decide func(d *D, now time.Time) error,
) (*Hold[D], D, error) {
	if owner == "" {
		var none D
		return nil, none, fmt.Errorf("lease: acquire %q: no owner", key)
	}
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	if decide == nil {
		decide = func(d *D, now time.Time) (err error) {
			lease := r.lease(d)
			*lease, err = Acquire(*lease, now, owner, r.policy)
			return err
		}
	}

	stolen := false // by the last decision, which was written
	c, err := Edit(ctx, r.store, key, Write[D]{
		From: from, Want: want,
		Decide: func(c Cell[D]) (D, error) {
			if !c.Exists {
				return c.Doc, ErrNotFound
			}
			next, before := c.Doc, r.lease(&c.Doc)
			if err := decide(&next, c.At); err != nil && !errors.Is(err, ErrExhausted) {
				return c.Doc, err
			}
			if before.FinishedBy == owner { // by an earlier try, whose reply was lost; reopened since
				return c.Doc, ErrExhausted
			}
			stolen = before.Owner != ""
			return next, nil
		},
		Landed: func(c Cell[D]) bool {
			lease := r.lease(&c.Doc)
			return lease.HeldBy(Grant{owner, lease.Token}) || lease.Finished && lease.FinishedBy == owner
		},
	})
	if err == nil && r.lease(&c.Doc).Finished {
		err = ErrExhausted
	}
	if err != nil {
		return nil, c.Doc, err
	}

	h := r.Hold(key, c)
	h.stolen = stolen
	return h, c.Doc, nil
}

// Resume reads the record and returns the Hold of an earlier acquisition of key by owner, perhaps
// in another process. It returns ErrNotFound if there is no record, and ErrLost if owner does not
// hold it.
func (r *Records[D]) Resume(ctx context.Context, key, owner string) (*Hold[D], error) {
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	c, err := Read(ctx, r.store, key)
	if err != nil {
		return nil, err
	}
	if !c.Exists {
		return nil, ErrNotFound
	}

	lease := r.lease(&c.Doc)
	if err := loss(*lease, Grant{owner, lease.Token}); err != nil {
		return nil, err
	}
	return r.Hold(key, c), nil
}

// Hold returns the Hold of the acquisition that c shows.
func (r *Records[D]) Hold(key string, c Cell[D]) *Hold[D] {
	h := &Hold[D]{
		records: r, key: key, grant: r.lease(&c.Doc).Grant(), lastCommit: c.Asked,
		wake: make(chan struct{}, 1), trustMoved: make(chan struct{}, 1),
	}
	h.setCell(c)
	return h
}
