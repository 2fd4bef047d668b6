package projectlock

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"taskguard/lease"
	"taskguard/lease/documentlock"
)

// Config is what a Locker locks, and by what.
type Config struct {
	// Project names the project; its lock is the room Project + ":project" (P1).
	Project string
	// Remote holds the leases of WebLock; nil: that strategy is unsupported.
	Remote lease.Store[documentlock.Lock]
	// Dir is the directory that has, or will have, project/.lock in it; empty: the
	// working directory.
	Dir string
	// Log is told what no caller is: nil is silent.
	Log *slog.Logger
}

// suffix makes a project's name a room's id.
const suffix = ":project"

// Lease is one acquisition as it was last renewed (P4). The zero Lease is none.
type Lease struct {
	ID              string // a new UUID for each acquisition
	Strategy        Strategy
	Resource        string // the room
	Token           int64  // fencing token: what it guards must refuse a lower one than it has seen
	AcquiredAt      time.Time
	ExpiresAt       time.Time // by the store's clock
	TTL             time.Duration
	NextHeartbeatAt time.Time // by the local clock
	TrustedUntil    time.Time // by the local monotonic clock: no writes after it
	RenewAttempt    int       // failed attempts to renew since the last that succeeded
	ViaFallback     bool
}

// Locker is the lock of one project, as one program sees it: it holds at most
// one lease at a time. It is safe for concurrent use.
type Locker struct {
	room   string
	remote lease.Store[documentlock.Lock]
	files  lease.Store[documentlock.Lock]
	log    *slog.Logger
	turn   chan struct{} // of the one renewal or release at a time
	events stream

	mu    sync.Mutex
	state State
	held  *holding // in every state but Idle
}

// holding is one acquisition, from its beginning. Locker.mu guards what is below
// the line once it holds the lock; until then it is the goroutine's that acquires.
type holding struct {
	id, owner string
	options   AcquireOptions
	began     time.Time
	told      chan struct{} // closed once its loss has been told

	strategy Strategy
	policy   lease.Policy
	store    lease.Store[documentlock.Lock]
	locks    *documentlock.Locks
	written  map[Strategy]lease.Store[documentlock.Lock] // what may have a record of it
	taken    bool                                        // another was seen to hold the lock
	acquired time.Time                                   // by the local monotonic clock

	lease  Lease // zero until acquired
	missed int   // heartbeats in a row
	trust  *time.Timer
	cancel context.CancelCauseFunc // ends what WithProjectLock runs; nil: nothing
	lost   *Error
}

// New makes an idle Locker. It touches neither store.
func New(c Config) (*Locker, error) {
	room := c.Project + suffix
	if c.Project == "" {
		return nil, errors.New("projectlock: no project is named")
	}
	if err := documentlock.CheckRoom(room); err != nil {
		return nil, fmt.Errorf("projectlock: project: %w", err)
	}
	if c.Dir == "" {
		c.Dir = "."
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	files, err := newFiles(c.Dir)
	if err != nil {
		return nil, err
	}
	return &Locker{room: room, remote: c.Remote, files: files, log: c.Log, turn: make(chan struct{}, 1), state: Idle}, nil
}

// State is where the Locker is now.
func (l *Locker) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Current is the lease as last renewed; false where none is held that may be
// written under.
func (l *Locker) Current() (Lease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.state {
	case ActiveWebLock, ActiveFileLock, HeartbeatQueued, Renewing:
		return l.held.lease, true
	}
	return Lease{}, false
}

// Reset is the user's way out of read-only: Idle, from where Acquire is possible
// again. It goes on for at most 3 s to remove what is left of the lost lease,
// unless WithProjectLock will. It reports false in any other state, and changes
// nothing.
func (l *Locker) Reset() bool {
	l.mu.Lock()
	h := l.held
	ok := l.state == Readonly && l.move(Idle)
	left := ok && h.cancel == nil
	l.mu.Unlock()
	if left {
		l.tidy(h)
	}
	return ok
}

// move makes a transition, with mu held.
func (l *Locker) move(to State) bool {
	if !l.state.leads(to) {
		return false
	}
	l.state = to
	if to == Idle {
		l.held = nil
	}
	return true
}

// step enters or stays in a state and tells events of h, if h is what is held and
// that is possible; else it does nothing.
func (l *Locker) step(h *holding, to State, events ...Event) bool {
	l.mu.Lock()
	ok := l.held == h && (l.state == to || l.move(to))
	if ok {
		l.add(h, events...)
	}
	l.mu.Unlock()
	l.events.tell()
	return ok
}

// add queues events of h, with mu held.
func (l *Locker) add(h *holding, events ...Event) {
	for i := range events {
		events[i].LeaseID, events[i].Strategy = h.lease.ID, cmp.Or(events[i].Strategy, h.strategy)
	}
	l.events.add(events...)
}

// newID is a UUID, version 4.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// sleep waits for d, and reports false if ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return ctx.Err() == nil
	}
}
