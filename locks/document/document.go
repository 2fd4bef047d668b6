package document

import (
	"cmp"
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
	// unlockedFor is how long a record shows that an operator unlocked the room: a
	// feed's stream may be down for a minute.
	unlockedFor = 2 * time.Minute
	// timeout bounds one operation: a heartbeat is due every 10 s.
	timeout = 8 * time.Second
)

// Lock is the record of a room. A store keeps it while Kept.
type Lock struct {
	lease.Lease
	LockedAt time.Time // the store's time of the acquisition
	Holder   string    // the holder's public name: random, new with each acquisition
	Name     string    // the display name that the holder's application publishes (D9); may be empty
	Unlocked bool      // by an operator; until it is swept or taken
}

// Kept reports whether a store keeps the record instead of deleting it.
func (l Lock) Kept() bool { return l.Owner != "" || l.Unlocked }

// State is the state of a room at one moment.
type State struct {
	Locked bool      // a session holds the room
	Mine   bool      // the calling owner holds it
	Lock   Lock      // zero unless Locked
	Until  time.Time // if Mine: how long the lock can be trusted, by this machine's monotonic clock
}

// CheckRoom returns lease.ErrInvalidKey for an id that no room can have.
func CheckRoom(room string) error { return lease.CheckKey("room", room, MaxRoom) }

// Hash returns the hash that stands for a room in logs, as its id is a user's input.
func Hash(room string) string {
	sum := sha256.Sum256([]byte(room))
	return hex.EncodeToString(sum[:6])
}

// Decisions. Acquire returns a *HeldError for a room that another holds, the other
// methods ErrNotYours.
var (
	ErrNotLocked = errors.New("document: the room is not locked")
	ErrNotYours  = errors.New("document: another holds the room")
)

// HeldError reports that another holds the room, since LockedAt.
type HeldError struct {
	lease.HeldError
	LockedAt time.Time
}

func (e *HeldError) Unwrap() error { return &e.HeldError }

// Locks are the locks of a store's rooms. They are safe for concurrent use. Every
// method tries for at most 8 s; then it returns lease.ErrUnavailable. For an id that
// no room can have it returns lease.ErrInvalidKey.
type Locks struct {
	store  lease.Store[Lock]
	lessor *lease.Lessor[Lock]
	policy lease.Policy
}

// New returns the locks of store. A TTL of zero is 30 s; one under a second is an
// error (D6).
func New(store lease.Store[Lock], ttl time.Duration) (*Locks, error) {
	p := lease.Policy{TTL: cmp.Or(ttl, DefaultTTL)}
	lessor, err := lease.NewLessor(store, func(l *Lock) *lease.Lease { return &l.Lease }, p)
	if err != nil {
		return nil, err
	}
	return &Locks{store: store, lessor: lessor, policy: p}, nil
}

// TTL returns how long a lock is valid after a heartbeat.
func (l *Locks) TTL() time.Duration { return l.policy.TTL }

// Acquire takes the room for owner if it is free or expired, and extends the lock
// if owner holds it already. If another holds it, Acquire returns a *HeldError
// (D1). It takes two round trips, one if it is refused, three if there is no record.
//
// Between the reading that shows no record and the commit that creates one, another
// may have created and deleted one with a later token. So Acquire first creates a
// record that has already expired, and the next commit takes it only if it is
// unchanged: its time, and so the token, is later than any deletion (D4).
func (l *Locks) Acquire(ctx context.Context, room, owner string) (State, error) {
	return l.AcquireAs(ctx, room, owner, "")
}

// AcquireAs is Acquire for an owner with a display name, which others see while the owner
// holds the room (D9).
func (l *Locks) AcquireAs(ctx context.Context, room, owner, name string) (State, error) {
	c, err := l.acquire(ctx, room, owner, name)
	return l.state(c, owner), err
}

// Hold is Acquire for a program that keeps the room by the engine's Hold, which
// renews it in one round trip.
func (l *Locks) Hold(ctx context.Context, room, owner string) (*lease.Hold[Lock], error) {
	c, err := l.acquire(ctx, room, owner, "")
	if err != nil {
		return nil, err
	}
	return l.lessor.Hold(room, c), nil
}

func (l *Locks) acquire(ctx context.Context, room, owner, name string) (lease.Cell[Lock], error) {
	if owner == "" {
		return lease.Cell[Lock]{}, errors.New("document: no owner")
	}
	ctx, cancel := context.WithTimeout(ctx, timeout) // of both commits
	defer cancel()
	holder, expiry := rand.Text(), time.Time{}
	decide := func(c lease.Cell[Lock]) (next Lock, err error) {
		next = c.Doc
		switch {
		case !c.Exists:
			expiry = c.At.Truncate(time.Millisecond)
			next.Lease = lease.Fresh(c.At)
			next.Owner, next.ExpiresAt = owner, expiry
			return next, nil
		case mine(c, owner) == nil:
			next.Lease, err = lease.Extend(next.Lease, c.Now(), next.Grant(), l.policy)
			expiry = next.ExpiresAt
			return next, err
		}
		next.Token = max(next.Token, lease.Fresh(c.At).Token)
		next.Lease, err = lease.Take(next.Lease, c.At, owner, l.policy)
		next.Attempts, expiry = 0, next.ExpiresAt // not counted
		if held := (*lease.HeldError)(nil); errors.As(err, &held) {
			return next, &HeldError{HeldError: *held, LockedAt: c.Doc.LockedAt}
		}
		return Lock{Lease: next.Lease, LockedAt: next.HeartbeatAt, Holder: holder, Name: name}, err
	}
	var from *lease.Cell[Lock]
	for {
		c, err := l.edit(ctx, room, from, decide, func(lock Lock) bool {
			return lock.Owner == owner && lock.ExpiresAt.Equal(expiry)
		})
		if err != nil || lease.Held(c.Doc.Lease, c.At) {
			return c, err
		}
		from = &c
	}
}

// Extend is the client's heartbeat: the lock expires one TTL from now (D2). It
// returns ErrNotLocked, also for an expired lock (R8), or ErrNotYours. It takes two
// round trips.
func (l *Locks) Extend(ctx context.Context, room, owner string) (State, error) {
	var expiry time.Time
	c, err := l.edit(ctx, room, nil, func(c lease.Cell[Lock]) (next Lock, err error) {
		next = c.Doc
		if err := mine(c, owner); err != nil {
			return next, err
		}
		next.Lease, err = lease.Extend(next.Lease, c.Now(), next.Grant(), l.policy)
		expiry = next.ExpiresAt
		return next, err
	}, func(lock Lock) bool { return lock.Owner == owner && lock.ExpiresAt.Equal(expiry) })
	return l.state(c, owner), err
}

// Release frees the room if owner holds it (D3), and reports false if the room is free.
// If another holds it, Release returns ErrNotYours. It takes two round trips.
func (l *Locks) Release(ctx context.Context, room, owner string) (released bool, err error) {
	return l.free(ctx, room, func(c lease.Cell[Lock]) (Lock, error) {
		return Lock{Lease: lease.Drop(c.Doc.Lease, c.Doc.Grant(), false)}, mine(c, owner)
	})
}

// Break frees the room of any holder: an operator's forced unlock. It reports
// false if the room was free.
func (l *Locks) Break(ctx context.Context, room string) (broken bool, err error) {
	return l.free(ctx, room, func(c lease.Cell[Lock]) (Lock, error) {
		next := lease.Break(c.Doc.Lease)
		next.ExpiresAt = c.At.Add(unlockedFor) // so that a later sweep finds it
		return Lock{Lease: next, Unlocked: true}, mine(c, c.Doc.Owner)
	})
}

// free ends the acquisition that the record shows. It reports false if decide returned
// ErrNotLocked.
func (l *Locks) free(ctx context.Context, room string, decide func(lease.Cell[Lock]) (Lock, error)) (freed bool, err error) {
	var was lease.Grant
	_, err = l.edit(ctx, room, nil, func(c lease.Cell[Lock]) (Lock, error) {
		was = c.Doc.Grant()
		return decide(c)
	}, func(lock Lock) bool { return !lock.HeldBy(was) })
	if errors.Is(err, ErrNotLocked) {
		return false, nil
	}
	return err == nil, err
}

// Get reads the room, as owner sees it. It takes one round trip.
func (l *Locks) Get(ctx context.Context, room, owner string) (State, error) {
	c, err := l.read(ctx, room)
	return l.state(c, owner), err
}

func (l *Locks) read(ctx context.Context, room string) (lease.Cell[Lock], error) {
	if err := CheckRoom(room); err != nil {
		return lease.Cell[Lock]{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return lease.Read(ctx, l.store, room)
}

// Confirm checks, right before a save, that owner holds the room under token;
// State.Until is how long that can be trusted. It returns ErrNotLocked, or
// ErrNotYours, also for another token. It takes one round trip.
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

// mine returns nil if owner held the room when c was read.
func mine(c lease.Cell[Lock], owner string) error {
	switch {
	case !lease.Held(c.Doc.Lease, c.At):
		return ErrNotLocked
	case c.Doc.Owner != owner:
		return ErrNotYours
	}
	return nil
}

// edit changes the record of room, beginning with from if it is not nil, and
// returns it as last read or written.
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

// state returns the room as owner sees it in c.
func (l *Locks) state(c lease.Cell[Lock], owner string) State {
	s := State{Locked: lease.Held(c.Doc.Lease, c.At)}
	if s.Locked {
		s.Lock, s.Mine = c.Doc, owner != "" && c.Doc.Owner == owner
	}
	if s.Mine {
		s.Until = lease.Trusted(c.Doc.Lease, c.At, c.Asked, l.policy)
	}
	return s
}
