package project

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"taskguard/lease"
	"taskguard/locks/document"
)

// Config names what a Locker locks, and the stores that it uses.
type Config struct {
	// Project is the project's name; its lock is the room Project + ":project" (SEEDS P1).
	Project string
	// Remote holds the leases of WebLock; nil: that strategy is unsupported.
	Remote lease.Store[document.Lock]
	// Dir is the parent of project/.lock; empty: the working directory.
	Dir string
}

// Lease describes one acquisition as last renewed (SEEDS P4). The zero Lease is none.
type Lease struct {
	ID              string        // a new UUID for each acquisition
	Strategy        Strategy      // where the lock is held
	Resource        string        // the room
	Token           int64         // fencing token: a protected resource must refuse a lower one than it has seen
	AcquiredAt      time.Time     // by the store's clock
	ExpiresAt       time.Time     // by the store's clock
	TTL             time.Duration // from a heartbeat to the expiry
	NextHeartbeatAt time.Time     // by the local clock
	TrustedUntil    time.Time     // by the local monotonic clock: no writes after it
	RenewAttempt    int           // failed attempts to renew since the last success
	ViaFallback     bool          // Strategy is not the Preferred one
}

// Locker is the lock of one project in one program: it holds at most one lease
// at a time. It is safe for concurrent use.
type Locker struct {
	room   string
	stores map[Strategy]lease.Store[document.Lock]
	turn   chan struct{} // held during a renewal or release

	mu         sync.Mutex
	state      State
	held       *holding // nil while Idle
	listeners  []*func(Event)
	pending    []Event // not yet delivered
	delivering bool
}

// holding is one acquisition, from its first attempt. Locker.mu guards the last
// group of fields once it has succeeded.
type holding struct {
	id, owner string
	options   AcquireOptions
	began     time.Time
	strategy  Strategy
	policy    lease.Policy
	denied    bool // another was seen to hold the lock
	written   bool // the strategy's store may have a record of it

	hold     *lease.Hold[document.Lock]
	acquired time.Time
	running  context.Context // of fn; ends when the lease is lost or released, or the acquisition's context ends
	end      func(cause error)
	done     chan struct{} // closed when keep has returned

	lease     Lease
	automatic bool  // renewed without the caller, for WithProjectLock
	missed    int   // failed heartbeats in a row
	failing   error // why the last renewal failed
	force     bool  // the release under way is forced
	lost      *Error
	announced bool // OnReadonly was called
}

// New makes an idle Locker. It calls neither store.
func New(c Config) (*Locker, error) {
	room := c.Project + ":project"
	if err := document.CheckRoom(room); err != nil || c.Project == "" {
		return nil, fmt.Errorf("project: project name: %w", cmp.Or(err, errors.New("is empty")))
	}

	dir := filepath.Join(c.Dir, projectDir)
	file := &lockFileStore{File: lease.NewFile(dir, guardFile, format{}), dir: dir}
	stores := map[Strategy]lease.Store[document.Lock]{FileLock: file}
	if c.Remote != nil {
		stores[WebLock] = c.Remote
	}
	return &Locker{room: room, stores: stores, turn: make(chan struct{}, 1), state: Idle}, nil
}

// State returns the current state.
func (l *Locker) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Reset changes Readonly to Idle when the user asks for it; Acquire is possible
// again. It spends at most 3 s on the removal of the lost lease's record, unless
// WithProjectLock will remove it. In any other state it does nothing and returns false.
func (l *Locker) Reset() bool {
	l.mu.Lock()
	h := l.held
	ok := l.state == Readonly && l.move(Idle)
	remove := ok && !h.automatic
	l.mu.Unlock()
	if remove {
		l.removeRecord(h)
	}
	return ok
}

// begin waits for the turn and enters the state to, if ls is the lease that is
// held. The caller ends the turn.
func (l *Locker) begin(ctx context.Context, ls Lease, to State, force bool) (*holding, error) {
	if ctx.Err() != nil {
		return nil, aborted(ctx, to)
	}
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, aborted(ctx, to)
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	h, err := l.held, error(nil)
	switch {
	case h == nil || ls.ID == "" || h.lease.ID != ls.ID:
		err = &Error{Code: LeaseStale, Cause: errOther}
	case h.lost != nil && to == Renewing:
		err = h.lost
	case l.state == Readonly && !force, !l.move(to):
		err = fmt.Errorf("%w: %s while %s", ErrState, to, l.state)
	}
	if err != nil {
		<-l.turn
	}
	return h, err
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

// step enters or stays in a state and reports events of h. It returns false, and
// does nothing, if h is not held or the transition is impossible.
func (l *Locker) step(h *holding, to State, events ...Event) bool {
	defer l.deliver()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held != h || l.state != to && !l.move(to) {
		return false
	}
	l.add(h, events...)
	return true
}

// current returns h's lease, and why it was lost.
func (l *Locker) current(h *holding) (Lease, *Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return h.lease, h.lost
}

// lose enters Readonly because of e, with mu held. The first loss ends the
// context of fn; a second loss comes from a forced release.
func (l *Locker) lose(h *holding, e *Error, events ...Event) {
	if l.held != h || !l.move(Readonly) {
		return
	}
	l.add(h, events...)
	if h.lost != nil {
		return
	}
	e.kill = h.policy.KillAfter()
	h.lost = e
	l.add(h, Event{Type: ReadonlyEntered, Reason: e.Code, Retry: e.retry, Err: e})
	if h.end != nil {
		h.end(e)
	}
}

// announce calls OnReadonly if h is lost, once, and delivers events.
func (l *Locker) announce(h *holding) {
	l.mu.Lock()
	lost := h.lost
	call := lost != nil && !h.announced && h.options.OnReadonly != nil
	h.announced = h.announced || call
	l.mu.Unlock()
	if call {
		h.options.OnReadonly(ReadonlyInfo{Reason: lost.Code, LastError: lost})
	}
	l.deliver()
}

// removeRecord removes h's record, within 3 s. If it cannot, the record expires.
func (l *Locker) removeRecord(h *holding) {
	if h.written {
		ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
		defer cancel()
		_ = l.remove(ctx, h.strategy, h.owner, false)
	}
}

// remove frees the record of owner in a store, expired or not. With force it also
// removes any expired record. It returns errGone if there is none of these.
func (l *Locker) remove(ctx context.Context, s Strategy, owner string, force bool) error {
	_, err := lease.Edit(ctx, l.stores[s], l.room, lease.Write[document.Lock]{
		Decide: func(c lease.Cell[document.Lock]) (document.Lock, error) {
			if !c.Exists || c.Doc.Owner != owner && (!force || lease.Held(c.Doc.Lease, c.At)) {
				return c.Doc, errGone
			}
			return document.Lock{Lease: lease.Unlock(c.Doc.Lease)}, nil
		},
		Landed: func(c lease.Cell[document.Lock]) bool { return c.Doc.Owner != owner },
	})
	return err
}

// newID returns a UUID, version 4.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
