package documentlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
)

const (
	// DefaultTTL is how long a lock lives after its last heartbeat (D1, D2, D6).
	DefaultTTL = 30 * time.Second
	// MaxRoom is the length of a room's id, in bytes.
	MaxRoom = 512
	// timeout bounds one operation: a heartbeat is due each 10 s.
	timeout = 8 * time.Second
)

// Lock is the record of a room. A store keeps it while Kept.
type Lock struct {
	lease.Lease
	LockedAt time.Time // the store's time of the acquisition
	Holder   string    // who holds it, for everybody's eyes: random, new with each acquisition
	Unlocked bool      // an operator took it away; until it is swept or taken
}

// Kept reports whether a store keeps the record, rather than delete it.
func (l Lock) Kept() bool { return l.Owner != "" || l.Unlocked }

// State is a room as the store showed it at one moment.
type State struct {
	Locked bool      // somebody holds it
	Mine   bool      // the owner who asked
	Lock   Lock      // zero unless Locked
	At     time.Time // the store's time of this
	Until  time.Time // if Mine: how long that can be relied on, by this machine's monotonic clock
}

// Decisions. A room that another holds is a *HeldError for who wants it, and
// ErrNotYours for who believes to have it.
var (
	ErrNotLocked = errors.New("documentlock: nobody holds the room")
	ErrNotYours  = errors.New("documentlock: another holds the room")
)

// HeldError says that another holds the room, and since when.
type HeldError struct {
	lease.HeldError
	LockedAt time.Time
}

func (e *HeldError) Unwrap() error { return &e.HeldError }

// Locks are the locks of a store's rooms. They are safe for concurrent use, and
// every method tries for at most 8 s: lease.ErrUnavailable where it could not
// learn the outcome, lease.ErrInvalidKey for an id that no room can have.
type Locks struct {
	store  lease.Store[Lock]
	policy lease.Policy
}

// New refuses a TTL under a second; zero is 30 s (D6).
func New(store lease.Store[Lock], ttl time.Duration) (*Locks, error) {
	if ttl == 0 {
		ttl = DefaultTTL
	}
	p := lease.Policy{TTL: ttl}
	if err := p.Check(); err != nil {
		return nil, err
	}
	return &Locks{store: store, policy: p}, nil
}

// TTL is how long a lock lives after its last heartbeat.
func (l *Locks) TTL() time.Duration { return l.policy.TTL }

// Acquire takes the room for owner if it is free or expired, and extends it if
// owner holds it already: else a *HeldError (D1). Two round trips, or one to be
// refused.
func (l *Locks) Acquire(ctx context.Context, room, owner string) (State, error) {
	if owner == "" {
		return State{}, errors.New("documentlock: no owner")
	}
	holder, meant := rand.Text(), time.Time{}
	return l.edit(ctx, room, owner, func(lock Lock, now, estimate time.Time) (Lock, error) {
		if lease.Held(lock.Lease, now) && lock.Owner == owner {
			next, err := lease.Extend(lock.Lease, estimate, lock.Grant(), l.policy)
			lock.Lease, meant = next, next.ExpiresAt
			return lock, err
		}
		next, err := lease.Take(lock.Lease, now, owner, l.policy)
		if held := (*lease.HeldError)(nil); errors.As(err, &held) {
			return lock, &HeldError{HeldError: *held, LockedAt: lock.LockedAt}
		}
		return Lock{Lease: next, LockedAt: next.HeartbeatAt, Holder: holder}, err
	}, func(lock Lock) bool {
		return lock.Holder == holder || lock.Owner == owner && lock.ExpiresAt.Equal(meant)
	})
}

// Extend is the client's heartbeat: the lock ends one TTL from now (D2).
// ErrNotLocked also for one that has expired (R8), ErrNotYours for another's.
// Two round trips.
func (l *Locks) Extend(ctx context.Context, room, owner string) (State, error) {
	var meant time.Time
	return l.edit(ctx, room, owner, func(lock Lock, now, estimate time.Time) (Lock, error) {
		if err := mine(lock, now, owner); err != nil {
			return lock, err
		}
		next, err := lease.Extend(lock.Lease, estimate, lock.Grant(), l.policy)
		lock.Lease, meant = next, next.ExpiresAt
		return lock, err
	}, func(lock Lock) bool { return lock.Owner == owner && lock.ExpiresAt.Equal(meant) })
}

// Release frees the room if owner has it (D3), and reports false if nobody did:
// ErrNotYours if another does. Two round trips.
func (l *Locks) Release(ctx context.Context, room, owner string) (released bool, err error) {
	var ours lease.Grant
	_, err = l.edit(ctx, room, owner, func(lock Lock, now, _ time.Time) (Lock, error) {
		if err := mine(lock, now, owner); err != nil {
			return lock, err
		}
		ours = lock.Grant()
		return Lock{Lease: lease.Drop(lock.Lease, ours, false)}, nil
	}, func(lock Lock) bool { return !lock.HeldBy(ours) })
	if errors.Is(err, ErrNotLocked) {
		return false, nil
	}
	return err == nil, err
}

// Break frees the room whoever has it: an operator's forced unlock. Its holder
// finds its lock gone. It reports false if nobody held it.
func (l *Locks) Break(ctx context.Context, room string) (broken bool, err error) {
	var theirs lease.Grant
	_, err = l.edit(ctx, room, "", func(lock Lock, now, _ time.Time) (Lock, error) {
		if !lease.Held(lock.Lease, now) {
			return lock, ErrNotLocked
		}
		theirs = lock.Grant()
		next := lease.Break(lock.Lease)
		next.ExpiresAt = now // where the sweep will find it
		return Lock{Lease: next, Unlocked: true}, nil
	}, func(lock Lock) bool { return !lock.HeldBy(theirs) })
	if errors.Is(err, ErrNotLocked) {
		return false, nil
	}
	return err == nil, err
}

// Get reads the room, as owner sees it. One round trip.
func (l *Locks) Get(ctx context.Context, room, owner string) (State, error) {
	s, err := l.edit(ctx, room, owner, func(lock Lock, _, _ time.Time) (Lock, error) { return lock, errRead }, nil)
	if errors.Is(err, errRead) {
		err = nil
	}
	return s, err
}

// Confirm is for the moment of saving: nil if owner holds the room under token,
// and State.Until says how long that can be relied on. ErrNotLocked, ErrNotYours
// (also for another token). One round trip.
func (l *Locks) Confirm(ctx context.Context, room, owner string, token int64) (State, error) {
	s, err := l.edit(ctx, room, owner, func(lock Lock, now, _ time.Time) (Lock, error) {
		if err := mine(lock, now, owner); err != nil {
			return lock, err
		}
		if lock.Token != token {
			return lock, ErrNotYours
		}
		return lock, errRead
	}, nil)
	if errors.Is(err, errRead) {
		err = nil
	}
	return s, err
}

// errRead ends an edit that only reads.
var errRead = errors.New("documentlock: read")

// mine is nil if owner holds lock at now.
func mine(lock Lock, now time.Time, owner string) error {
	switch {
	case !lease.Held(lock.Lease, now):
		return ErrNotLocked
	case lock.Owner != owner:
		return ErrNotYours
	}
	return nil
}

// edit decides on the record of room, at the store's time now of the reading that
// is swapped; estimate is what that time has become. It answers the room as last
// read or written.
func (l *Locks) edit(ctx context.Context, room, owner string,
	decide func(lock Lock, now, estimate time.Time) (Lock, error), landed func(Lock) bool,
) (State, error) {
	if len(room) > MaxRoom {
		return State{}, fmt.Errorf("%w: the room's id has %d bytes, at most %d are possible", lease.ErrInvalidKey, len(room), MaxRoom)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := lease.Edit(ctx, l.store, room, nil, func(c lease.Cell[Lock]) (Lock, error) {
		if !c.Exists {
			c.Doc.Lease = lease.Fresh(c.At)
		}
		return decide(c.Doc, c.At, c.Now())
	}, func(c lease.Cell[Lock]) bool { return landed(c.Doc) })
	return l.state(c, owner), err
}

// state is what c shows to owner.
func (l *Locks) state(c lease.Cell[Lock], owner string) State {
	s := State{At: c.At, Locked: lease.Held(c.Doc.Lease, c.At)}
	if s.Locked {
		s.Lock, s.Mine = c.Doc, owner != "" && c.Doc.Owner == owner
	}
	if s.Mine {
		s.Until = lease.Trusted(c.Doc.Lease, c.At, c.Asked, l.policy)
	}
	return s
}
