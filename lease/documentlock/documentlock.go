package documentlock

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"taskguard/lease"
)

const (
	// DefaultTTL is how long a lock lives after its last heartbeat (D1, D2, D6).
	DefaultTTL = 30 * time.Second
	// MaxRoom is the length of a room's id, in bytes.
	MaxRoom = 512
	// unlockedFor is how long a record says that an operator took the lock away: a
	// feed's stream may be away for a minute.
	unlockedFor = 2 * time.Minute
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

// CheckRoom refuses, with lease.ErrInvalidKey, an id that no room can have.
func CheckRoom(room string) error { return lease.CheckKey("room", room, MaxRoom) }

// Hash is how logs name a room: its id is a user's input.
func Hash(room string) string {
	sum := sha256.Sum256([]byte(room))
	return hex.EncodeToString(sum[:6])
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
	lessor *lease.Lessor[Lock]
	policy lease.Policy
}

// New refuses a TTL under a second; zero is 30 s (D6).
func New(store lease.Store[Lock], ttl time.Duration) (*Locks, error) {
	if ttl == 0 {
		ttl = DefaultTTL
	}
	p := lease.Policy{TTL: ttl}
	lessor, err := lease.NewLessor(store, func(l *Lock) *lease.Lease { return &l.Lease }, p)
	if err != nil {
		return nil, err
	}
	return &Locks{store: store, lessor: lessor, policy: p}, nil
}

// TTL is how long a lock lives after its last heartbeat.
func (l *Locks) TTL() time.Duration { return l.policy.TTL }

// Acquire takes the room for owner if it is free or expired, and extends it if
// owner holds it already: else a *HeldError (D1). Two round trips, one to be
// refused, three where there is no record.
//
// Between the reading that shows no record and a commit that makes one, another
// may have made and deleted one, with a later token. So what is made first is a
// record that has expired already, which the next commit takes only if it is
// still that one: its time, and so the token, is later than any deletion (D4).
func (l *Locks) Acquire(ctx context.Context, room, owner string) (State, error) {
	c, err := l.acquire(ctx, room, owner)
	return l.state(c, owner), err
}

// Hold is Acquire for a program that keeps the room by the engine's Hold, which
// renews it in one round trip.
func (l *Locks) Hold(ctx context.Context, room, owner string) (*lease.Hold[Lock], error) {
	c, err := l.acquire(ctx, room, owner)
	if err != nil {
		return nil, err
	}
	return l.lessor.Hold(room, c), nil
}

func (l *Locks) acquire(ctx context.Context, room, owner string) (lease.Cell[Lock], error) {
	if owner == "" {
		return lease.Cell[Lock]{}, errors.New("documentlock: no owner")
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	holder, meant := rand.Text(), time.Time{}
	decide := func(c lease.Cell[Lock]) (next Lock, err error) {
		next = c.Doc
		switch {
		case !c.Exists:
			meant = c.At.Truncate(time.Millisecond)
			next.Lease = lease.Fresh(c.At)
			next.Owner, next.ExpiresAt = owner, meant
			return next, nil
		case mine(c, owner) == nil:
			next.Lease, err = lease.Extend(next.Lease, c.Now(), next.Grant(), l.policy)
			meant = next.ExpiresAt
			return next, err
		}
		next.Token = max(next.Token, lease.Fresh(c.At).Token)
		next.Lease, err = lease.Take(next.Lease, c.At, owner, l.policy)
		next.Attempts, meant = 0, next.ExpiresAt // nobody counts them
		if held := (*lease.HeldError)(nil); errors.As(err, &held) {
			return next, &HeldError{HeldError: *held, LockedAt: c.Doc.LockedAt}
		}
		return Lock{Lease: next.Lease, LockedAt: next.HeartbeatAt, Holder: holder}, err
	}
	var from *lease.Cell[Lock]
	for {
		c, err := l.edit(ctx, room, from, decide, func(lock Lock) bool {
			return lock.Owner == owner && lock.ExpiresAt.Equal(meant)
		})
		if err != nil || lease.Held(c.Doc.Lease, c.At) {
			return c, err
		}
		from = &c
	}
}

// Extend is the client's heartbeat: the lock ends one TTL from now (D2).
// ErrNotLocked also for one that has expired (R8), ErrNotYours for another's.
// Two round trips.
func (l *Locks) Extend(ctx context.Context, room, owner string) (State, error) {
	var meant time.Time
	c, err := l.edit(ctx, room, nil, func(c lease.Cell[Lock]) (next Lock, err error) {
		next = c.Doc
		if err := mine(c, owner); err != nil {
			return next, err
		}
		next.Lease, err = lease.Extend(next.Lease, c.Now(), next.Grant(), l.policy)
		meant = next.ExpiresAt
		return next, err
	}, func(lock Lock) bool { return lock.Owner == owner && lock.ExpiresAt.Equal(meant) })
	return l.state(c, owner), err
}

// Release frees the room if owner has it (D3), and reports false if nobody did:
// ErrNotYours if another does. Two round trips.
func (l *Locks) Release(ctx context.Context, room, owner string) (released bool, err error) {
	var ours lease.Grant
	_, err = l.edit(ctx, room, nil, func(c lease.Cell[Lock]) (Lock, error) {
		if err := mine(c, owner); err != nil {
			return c.Doc, err
		}
		ours = c.Doc.Grant()
		return Lock{Lease: lease.Drop(c.Doc.Lease, ours, false)}, nil
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
	_, err = l.edit(ctx, room, nil, func(c lease.Cell[Lock]) (Lock, error) {
		if !lease.Held(c.Doc.Lease, c.At) {
			return c.Doc, ErrNotLocked
		}
		theirs = c.Doc.Grant()
		next := lease.Break(c.Doc.Lease)
		next.ExpiresAt = c.At.Add(unlockedFor) // where a sweep will find it, but not the next
		return Lock{Lease: next, Unlocked: true}, nil
	}, func(lock Lock) bool { return !lock.HeldBy(theirs) })
	if errors.Is(err, ErrNotLocked) {
		return false, nil
	}
	return err == nil, err
}

// Get reads the room, as owner sees it. One round trip.
func (l *Locks) Get(ctx context.Context, room, owner string) (State, error) {
	c, err := l.read(ctx, room)
	return l.state(c, owner), err
}

func (l *Locks) read(ctx context.Context, room string) (lease.Cell[Lock], error) {
	c, err := l.edit(ctx, room, nil, func(c lease.Cell[Lock]) (Lock, error) { return c.Doc, errRead }, nil)
	if errors.Is(err, errRead) {
		err = nil
	}
	return c, err
}

// Confirm is for the moment of saving: nil if owner holds the room under token,
// and State.Until says how long that can be relied on. ErrNotLocked, ErrNotYours
// (also for another token). One round trip.
func (l *Locks) Confirm(ctx context.Context, room, owner string, token int64) (State, error) {
	c, err := l.read(ctx, room)
	s := l.state(c, owner)
	switch {
	case err != nil:
		return s, err
	case s.Mine && c.Doc.Token != token:
		return s, ErrNotYours
	}
	return s, mine(c, owner)
}

// errRead ends an edit that only reads.
var errRead = errors.New("documentlock: read")

// mine is nil if owner held the room when c was read.
func mine(c lease.Cell[Lock], owner string) error {
	switch {
	case !lease.Held(c.Doc.Lease, c.At):
		return ErrNotLocked
	case c.Doc.Owner != owner:
		return ErrNotYours
	}
	return nil
}

// edit decides on the record of room, or first on from, and answers it as last
// read or written.
func (l *Locks) edit(ctx context.Context, room string, from *lease.Cell[Lock],
	decide func(lease.Cell[Lock]) (Lock, error), landed func(Lock) bool,
) (lease.Cell[Lock], error) {
	if err := CheckRoom(room); err != nil {
		return lease.Cell[Lock]{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return lease.Edit(ctx, l.store, room, from, decide, func(c lease.Cell[Lock]) bool { return landed(c.Doc) })
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
