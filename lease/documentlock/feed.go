package documentlock

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"taskguard/lease"
)

// Watcher is a store's change stream.
type Watcher interface {
	// Watch calls each with the records there are, Snapshot.All, and then with
	// every change, in the order of the store's clock and after its commit, until
	// ctx ends or the stream fails, and answers why it ended. each is called in the
	// caller's goroutine and does not block.
	Watch(ctx context.Context, each func(Snapshot)) error
	// Current reads the records there are, in a time that it bounds.
	Current(ctx context.Context) (Snapshot, error)
}

// Snapshot is what has changed by At.
type Snapshot struct {
	At      time.Time // the store's
	Asked   time.Time // the local start of that reading, or when it arrived from a stream
	All     bool      // a room that Changes does not name has no record
	Changes []Change
}

// Change is a record as it is now; one with Exists false was deleted.
type Change struct {
	Room string
	Cell lease.Cell[Lock]
}

// Event is a change of who holds a room.
type Event struct {
	Room      string
	Locked    bool
	Holder    string    // empty unless Locked
	ExpiresAt time.Time // zero unless Locked; by the store's clock
	Reason    string    // Current, Acquired, Released, Expired or Unlocked
	Version   int64     // the store's time of that state, in µs; grows
}

// Why a room is as an Event says.
const (
	Current  = "current"  // the first of a subscription
	Acquired = "acquired" // also by another directly after the last
	Released = "released"
	Expired  = "expired"
	Unlocked = "unlocked" // by an operator
)

// FeedOptions of NewFeed.
type FeedOptions struct {
	Poll time.Duration // how often all is read where the stream is silent; zero: 30 s
	Log  *slog.Logger  // nil: silent
}

// defaultPoll is as long as a lock lives.
const defaultPoll = 30 * time.Second

// Feed tells subscribers who holds their rooms, from a store's change stream and
// from timers at the expiries. Whatever is learnt of a room, by whatever way, is
// ordered by the store's time of it, and what is not newer is dropped. It
// remembers the rooms that are subscribed to and no others, and where there are
// none it asks the store for nothing. It is safe for concurrent use.
//
// A reason is what this feed can tell: of a record that is gone it says expired
// where the last expiry that it knew has passed, also if a holder whose heartbeats
// it had missed has released it.
type Feed struct {
	locks   *Locks
	watcher Watcher
	poll    time.Duration
	log     *slog.Logger
	wake    chan struct{} // capacity 1: a room is due before armed
	readers chan struct{} // capacity 1: there is a room again

	mu    sync.Mutex
	rooms map[string]*room
	armed time.Time // when Run looks at the rooms next; zero: not by time
}

// NewFeed is a Feed of the rooms of l, whose store w watches. Run makes it work.
func NewFeed(l *Locks, w Watcher, o FeedOptions) *Feed {
	if o.Poll <= 0 {
		o.Poll = defaultPoll
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Feed{locks: l, watcher: w, poll: o.Poll, log: o.Log, wake: make(chan struct{}, 1), readers: make(chan struct{}, 1), rooms: map[string]*room{}}
}

// apply takes what a snapshot says of the rooms that are subscribed to.
func (f *Feed) apply(s Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	named := map[*room]bool{}
	for i := range s.Changes {
		if r := f.rooms[s.Changes[i].Room]; r != nil {
			c := s.Changes[i].Cell
			c.At, c.Asked = s.At, s.Asked
			named[r] = true
			f.learn(r, c)
		}
	}
	if !s.All {
		return
	}
	for _, r := range f.rooms {
		if !named[r] {
			f.learn(r, lease.Cell[Lock]{At: s.At, Asked: s.Asked})
		}
	}
}

// learn takes a reading or a change of r. The caller has mu.
func (f *Feed) learn(r *room, c lease.Cell[Lock]) {
	r.apply(c)
	f.rouse(r)
}

// rouse sees to it that Run does not miss when r is due. The caller has mu.
func (f *Feed) rouse(r *room) {
	if !r.due.IsZero() && (f.armed.IsZero() || r.due.Before(f.armed)) {
		nudge(f.wake)
	}
}
