package projectlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

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
	held  *holding // in every state from Active on, until Idle
}

// holding is one acquisition. Locker.mu guards what is below the line.
type holding struct {
	owner    string
	store    lease.Store[documentlock.Lock]
	locks    *documentlock.Locks
	options  AcquireOptions
	timing   timing
	acquired time.Time     // by the local monotonic clock
	kept     bool          // by WithProjectLock, which tidies up when fn has returned
	told     chan struct{} // closed once the loss has been told

	lease  Lease
	missed int // heartbeats in a row
	trust  *time.Timer
	cancel context.CancelCauseFunc
	lost   *Error
}

// New makes an idle Locker. It touches neither store.
func New(c Config) (*Locker, error) {
	room := c.Project + suffix
	switch {
	case c.Project == "":
		return nil, errors.New("projectlock: no project is named")
	case !utf8.ValidString(room) || len(room) > documentlock.MaxRoom:
		return nil, fmt.Errorf("projectlock: a project's name is UTF-8 of at most %d bytes", documentlock.MaxRoom-len(suffix))
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
	if l.held == nil || l.held.lost != nil {
		return Lease{}, false
	}
	return l.held.lease, true
}

// Reset is the user's way out of read-only: Idle, from where Acquire is possible
// again. It reports false in any other state, and changes nothing.
func (l *Locker) Reset() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.move(reset)
}

// move makes a transition, with mu held.
func (l *Locker) move(sig signal) bool {
	to, ok := next(l.state, sig)
	if ok {
		l.state = to
	}
	if ok && to == Idle {
		l.held = nil
	}
	return ok
}

// hold makes h what is held, with mu held.
func (l *Locker) hold(h *holding) {
	l.held = h
	l.move(granted)
}

// during tells events if the state is still the one they belong to, and h what
// is held.
func (l *Locker) during(s State, h *holding, events ...Event) bool {
	l.mu.Lock()
	same := l.state == s && l.held == h
	if same {
		l.events.add(events...)
	}
	l.mu.Unlock()
	l.events.tell()
	return same
}

// step makes a transition and tells its events, or does nothing.
func (l *Locker) step(sig signal, events ...Event) bool {
	l.mu.Lock()
	ok := l.move(sig)
	if ok {
		l.events.add(events...)
	}
	l.mu.Unlock()
	l.events.tell()
	return ok
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
