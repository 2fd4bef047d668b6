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
	// DefaultTTL is how long a lock lives after its last heartbeat (SEEDS D1).
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
	Unlocked bool      // by an operator; until it is swept or taken
	Profile
}

// Profile is what the holder's application publishes of its user. Each may be empty.
type Profile struct {
	Name string // the display name
	User string // the application's id of the user
}

// cell is a record as a store has returned it.
type cell = lease.Cell[Lock]

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

// Hash returns the hash that stands for a room in logs, as its id is a user's input, and for a
// session.
func Hash(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:6])
}

// Decisions. If another owner holds the room, Acquire returns a *HeldError, and the other
// methods return ErrNotYours.
var (
	ErrNotLocked = errors.New("document: the room is not locked")
	ErrNotYours  = errors.New("document: another holds the room")
)

// HeldError reports that another owner holds the room, since LockedAt.
type HeldError struct {
	lease.HeldError
	LockedAt time.Time
}

func (e *HeldError) Unwrap() error { return &e.HeldError }

// Locks are the locks of a store's rooms. They are safe for concurrent use. Every
// method tries for at most 8 s; then it returns lease.ErrUnavailable. For an id that
// no room can have it returns lease.ErrInvalidKey.
type Locks struct {
	store   lease.Store[Lock]
	records *lease.Records[Lock]
}

// New returns the locks of store. A TTL of zero is 30 s; one under a second is an
// error.
func New(store lease.Store[Lock], ttl time.Duration) (*Locks, error) {
	policy := lease.Policy{TTL: cmp.Or(ttl, DefaultTTL)}
	records, err := lease.NewRecords(store, func(l *Lock) *lease.Lease { return &l.Lease }, policy)
	if err != nil {
		return nil, err
	}
	return &Locks{store: store, records: records}, nil
}

// TTL returns how long a lock is valid after a heartbeat.
func (l *Locks) TTL() time.Duration { return l.records.Policy().TTL }

// Acquire acquires the room for owner if it is free or expired, and renews the lock
// if owner holds it already. If another holds it, Acquire returns a *HeldError.
// It takes two round trips, one if it is refused, three if there is no record.
//
// Between the reading that shows no record and the commit that creates one, another
// may have created and deleted one with a later token. So Acquire first creates a
// record that has already expired, and the next commit takes it only if it is
// unchanged: its time, and so the token, is later than any deletion (SEEDS D4).
func (l *Locks) Acquire(ctx context.Context, room, owner string) (State, error) {
	return l.AcquireAs(ctx, room, owner, Profile{})
}

// AcquireAs is Acquire for an owner with a profile, which others see while the owner
// holds the room (SEEDS D9).
func (l *Locks) AcquireAs(ctx context.Context, room, owner string, profile Profile) (State, error) {
	c, err := l.acquire(ctx, room, owner, profile)
	return l.state(c, owner), err
}

// Hold is Acquire for a program that keeps the room by the engine's Hold, which
// renews it in one round trip.
func (l *Locks) Hold(ctx context.Context, room, owner string) (*lease.Hold[Lock], error) {
	c, err := l.acquire(ctx, room, owner, Profile{})
	if err != nil {
		return nil, err
	}
	return l.records.Hold(room, c), nil
}

func (l *Locks) acquire(ctx context.Context, room, owner string, profile Profile) (cell, error) {
	if owner == "" {
		return cell{}, errors.New("document: no owner")
	}
	ctx, cancel := context.WithTimeout(ctx, timeout) // of both commits
	defer cancel()

	holder := rand.Text()
	decide := func(c cell) (Lock, error) {
		switch {
		case !c.Exists:
			return expired(c.At, owner), nil
		case mine(c, owner) == nil:
			return l.renew(c)
		}
		return l.takeOver(c, owner, holder, profile)
	}

	var from *cell
	for {
		c, err := l.editExpiry(ctx, room, owner, from, decide)
		if err != nil || lease.Held(c.Doc.Lease, c.At) {
			return c, err
		}
		from = &c
	}
}

// expired returns a record of owner that has expired at once. Its token is larger than any
// before.
func expired(now time.Time, owner string) Lock {
	l := Lock{Lease: lease.Fresh(now)}
	l.Owner, l.ExpiresAt = owner, now.Truncate(time.Millisecond)
	return l
}

// takeOver returns owner's lock on the room that c shows as free, or a *HeldError.
func (l *Locks) takeOver(c cell, owner, holder string, profile Profile) (Lock, error) {
	last := c.Doc.Lease
	last.Token = max(last.Token, lease.Fresh(c.At).Token)
	next, err := lease.Acquire(last, c.At, owner, l.records.Policy())
	if held := (*lease.HeldError)(nil); errors.As(err, &held) {
		err = &HeldError{HeldError: *held, LockedAt: c.Doc.LockedAt}
	}
	next.Attempts = 0 // not counted
	return Lock{Lease: next, LockedAt: next.HeartbeatAt, Holder: holder, Profile: profile}, err
}

// renew returns the lock of c until one TTL from now.
func (l *Locks) renew(c cell) (next Lock, err error) {
	next = c.Doc
	next.Lease, err = lease.Renew(next.Lease, c.Now(), next.Grant(), l.records.Policy())
	return next, err
}

// Renew is the client's heartbeat: the lock expires one TTL from now. It
// returns ErrNotLocked, also for an expired lock, or ErrNotYours. It takes two round
// trips (SEEDS D2, R8).
func (l *Locks) Renew(ctx context.Context, room, owner string) (State, error) {
	c, err := l.editExpiry(ctx, room, owner, nil, func(c cell) (Lock, error) {
		if err := mine(c, owner); err != nil {
			return c.Doc, err
		}
		return l.renew(c)
	})
	return l.state(c, owner), err
}

// editExpiry is edit for a decision that gives owner the room until a new expiry. The write has landed if the
// record shows both.
func (l *Locks) editExpiry(ctx context.Context, room, owner string, from *cell, decide decision) (cell, error) {
	var expiry time.Time
	extend := func(c cell) (Lock, error) {
		next, err := decide(c)
		expiry = next.ExpiresAt
		return next, err
	}
	extended := func(lock Lock) bool { return lock.Owner == owner && lock.ExpiresAt.Equal(expiry) }
	return l.edit(ctx, room, from, extend, extended)
}

// Release frees the room if owner holds it, and reports false if the room is free. If
// another holds it, Release returns ErrNotYours. It takes two round trips (SEEDS D3).
func (l *Locks) Release(ctx context.Context, room, owner string) (released bool, err error) {
	return l.free(ctx, room, func(c cell) (Lock, error) {
		return Lock{Lease: lease.Unlock(c.Doc.Lease)}, mine(c, owner)
	})
}

// Unlock frees the room, whoever holds it. An operator forces it. Unlock reports
// false if the room was free.
func (l *Locks) Unlock(ctx context.Context, room string) (unlocked bool, err error) {
	return l.free(ctx, room, func(c cell) (Lock, error) {
		next := lease.Unlock(c.Doc.Lease)
		next.ExpiresAt = c.At.Add(unlockedFor) // so that a later sweep finds it
		return Lock{Lease: next, Unlocked: true}, mine(c, c.Doc.Owner)
	})
}

// free ends the acquisition that the record shows. It reports false if decide returned
// ErrNotLocked.
func (l *Locks) free(ctx context.Context, room string, decide decision) (freed bool, err error) {
	var holder lease.Grant
	end := func(c cell) (Lock, error) {
		holder = c.Doc.Grant()
		return decide(c)
	}
	ended := func(lock Lock) bool { return !lock.HeldBy(holder) }

	_, err = l.edit(ctx, room, nil, end, ended)
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

func (l *Locks) read(ctx context.Context, room string) (cell, error) {
	if err := CheckRoom(room); err != nil {
		return cell{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return lease.Read(ctx, l.store, room)
}

// Confirm checks, right before a save, that owner holds the room under token, or under any if token
// is 0. State.Until is how long that can be trusted. It returns ErrNotLocked, or ErrNotYours.
// If owner holds the room under another token, the error is ErrNotYours, and State.Mine is true.
// It takes one round trip.
func (l *Locks) Confirm(ctx context.Context, room, owner string, token int64) (State, error) {
	c, err := l.read(ctx, room)
	if err == nil {
		err = mine(c, owner)
	}
	if err == nil && token != 0 && c.Doc.Token != token {
		err = ErrNotYours
	}
	return l.state(c, owner), err
}

// mine returns nil if owner held the room when c was read.
func mine(c cell, owner string) error {
	switch {
	case !lease.Held(c.Doc.Lease, c.At):
		return ErrNotLocked
	case c.Doc.Owner != owner:
		return ErrNotYours
	}
	return nil
}

// decision returns the record that replaces the one in c.
type decision func(c cell) (Lock, error)

// edit changes the record of room, beginning with from if it is not nil, and
// returns it as last read or written.
func (l *Locks) edit(ctx context.Context, room string, from *cell, decide decision, landed func(Lock) bool,
) (cell, error) {
	if err := CheckRoom(room); err != nil {
		return cell{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	return lease.Edit(ctx, l.store, room, lease.Write[Lock]{
		From: from, Decide: decide, Landed: func(c cell) bool { return landed(c.Doc) },
	})
}

// state returns the room as owner sees it in c.
func (l *Locks) state(c cell, owner string) State {
	s := State{Locked: lease.Held(c.Doc.Lease, c.At)}
	if s.Locked {
		s.Lock, s.Mine = c.Doc, owner != "" && c.Doc.Owner == owner
	}
	if s.Mine {
		s.Until = lease.Trusted(c.Doc.Lease, c.At, c.Asked, l.records.Policy())
	}
	return s
}
