package document

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"taskguard/internal/clock"
	"taskguard/lease"
)

// Watcher is a store's change stream.
type Watcher interface {
	// Watch calls each with all records (Snapshot.All), and then with every
	// change after its commit, in the order of the store's clock, until ctx ends or
	// the stream fails. It returns why it ended. each is called in the caller's
	// goroutine and does not block.
	Watch(ctx context.Context, each func(Snapshot)) error
}

// Snapshot holds the changes up to At.
type Snapshot struct {
	At      time.Time // the store's time, in whole microseconds
	Asked   time.Time // the local start of that reading, or when it arrived from a stream
	All     bool      // a room that Changes does not name has no record
	Changes []Change  // not sorted
}

// Change is the record of a Room as it is now; if its Cell does not exist, it was deleted.
type Change struct {
	Room string
	Cell lease.Cell[Lock]
}

// Event is a change of a room's holder.
type Event struct {
	Room      string    // the id
	Locked    bool      // a session holds the room
	Holder    string    // empty unless Locked
	ExpiresAt time.Time // zero unless Locked; by the store's clock
	Reason    string    // Current, Acquired, Released, Expired or Unlocked
	Version   int64     // the store's time of that state, in µs; grows
	Profile             // of the holder
}

// The reasons of an Event.
const (
	Current  = "current"  // the first event of a subscription
	Acquired = "acquired" // a new holder, perhaps directly after another
	Released = "released"
	Expired  = "expired"
	Unlocked = "unlocked" // an operator has released the lock
)

const (
	// streamLife is how long one stream is used. The next begins with all records
	// again, in case this one has stalled or missed a change.
	streamLife = 30 * time.Second
	// The pause after a failed stream doubles until one has delivered something.
	leastBackoff = time.Second
	mostBackoff  = 30 * time.Second
	// retryRead is the pause before a failed reading of a room is repeated.
	retryRead = 5 * time.Second
	// leastDue is the shortest pause before a room's next reading: the store's
	// clock may be behind the estimate by a part of a round trip.
	leastDue = 20 * time.Millisecond
	// parallelReads bounds the readings of rooms that expire together.
	parallelReads = 16
)

// Feed reports to subscribers the holders of their rooms, from a store's change stream
// and from timers at the expiries. Both kinds of information about a room are ordered by the
// store's time, and older information is dropped. A Feed
// keeps only the rooms that have subscribers, and without any it does not call the
// store. It is safe for concurrent use.
//
// A reason is derived from what this feed has received: for a deleted record it is
// Expired if the last expiry that the feed has received has passed, although the holder
// may have extended the lock since then and released it.
type Feed struct {
	locks      *Locks
	watcher    Watcher
	log        *slog.Logger
	subscribed chan struct{} // capacity 1: a room has been added
	slots      chan struct{} // capacity parallelReads

	mu      sync.Mutex
	rooms   map[string]*room
	running context.Context // the context of Run; nil before and after Run
	reads   sync.WaitGroup  // readings that began during Run
}

// room is the state of a room with subscribers. Feed.mu guards it.
type room struct {
	id   string
	subs map[*Subscription]struct{} // also subscriptions that are being made

	cell   cell        // the newest by the store's time; zero: none yet
	latest Event       // the state that cell shows
	timer  *time.Timer // starts the next reading; nil: none is planned
}

// NewFeed returns a Feed of the rooms of l, whose store w watches. It works while
// Run runs. It logs to log, unless that is nil.
func NewFeed(l *Locks, w Watcher, log *slog.Logger) *Feed {
	return &Feed{
		locks: l, watcher: w, log: cmp.Or(log, slog.New(slog.DiscardHandler)), rooms: map[string]*room{},
		subscribed: make(chan struct{}, 1), slots: make(chan struct{}, parallelReads),
	}
}

// Run makes the feed work until ctx ends, and waits for its goroutines. Call it
// once. It opens a failed stream again, and logs the failure once when it begins
// and once when it is over.
func (f *Feed) Run(ctx context.Context) {
	f.mu.Lock()
	f.running = ctx
	f.mu.Unlock()

	f.stream(ctx)

	f.mu.Lock()
	f.running = nil
	f.mu.Unlock()
	f.reads.Wait()
}

// stream applies the store's change stream while there are subscribers: it costs a
// read for each change of any room.
func (f *Feed) stream(ctx context.Context) {
	failed, backoff := false, leastBackoff
	for f.awaitSubscribers(ctx) {
		delivered := false
		watching, end := context.WithTimeout(ctx, streamLife)
		err := f.watcher.Watch(watching, func(s Snapshot) {
			if failed {
				f.log.InfoContext(ctx, "document lock feed is back")
			}
			delivered, failed, backoff = true, false, leastBackoff
			f.apply(s)
		})
		expired := watching.Err() != nil
		end()
		if ctx.Err() != nil || delivered && expired {
			continue
		}

		if !failed {
			f.log.WarnContext(ctx, "document lock feed failed", "error", err)
		}
		failed = true
		if !clock.Sleep(ctx, backoff) {
			return
		}
		backoff = min(2*backoff, mostBackoff)
	}
}

// awaitSubscribers waits for subscribers. It reports false when ctx has ended.
func (f *Feed) awaitSubscribers(ctx context.Context) bool {
	for {
		f.mu.Lock()
		idle := len(f.rooms) == 0
		f.mu.Unlock()
		if !idle {
			return ctx.Err() == nil
		}

		select {
		case <-ctx.Done():
			return false
		case <-f.subscribed:
		}
	}
}

// schedule reads r again after d, if the feed runs and r has subscribers then. A timer that
// update stops too late costs one reading. The caller holds mu.
func (f *Feed) schedule(r *room, d time.Duration) {
	r.timer = time.AfterFunc(d, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		r.timer = nil
		if ctx := f.running; ctx != nil && f.rooms[r.id] == r {
			f.reads.Go(func() { f.reread(ctx, r) })
		}
	})
}

// reread reads the room from the store: only the store's time decides that a lock
// has expired.
func (f *Feed) reread(ctx context.Context, r *room) {
	f.slots <- struct{}{}
	c, err := f.locks.read(ctx, r.id)
	<-f.slots

	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.update(r, c)
	}
	if r.latest.Locked && r.timer == nil {
		f.schedule(r, retryRead)
	}
}

// apply applies a snapshot to the rooms that have subscribers.
func (f *Feed) apply(s Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for i := range s.Changes {
		if r := f.rooms[s.Changes[i].Room]; r != nil {
			c := s.Changes[i].Cell
			c.At, c.Asked = s.At, s.Asked
			f.update(r, c)
		}
	}

	if !s.All {
		return
	}
	for _, r := range f.rooms { // the rooms in Changes have this time already
		f.update(r, cell{At: s.At, Asked: s.Asked})
	}
}

// update applies a reading or a change of r if it is newer than r.cell, and
// notifies the subscribers if the state differs. The caller holds mu.
func (f *Feed) update(r *room, c cell) {
	if !c.At.After(r.cell.At) {
		return
	}
	previous, last := r.latest, r.cell
	r.cell = c
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}

	now := Event{Room: r.id, Locked: lease.Held(c.Doc.Lease, c.At), Version: c.At.UnixMicro()}
	now.Reason = reason(now.Locked, last, c)
	if now.Locked {
		now.Holder, now.Profile, now.ExpiresAt = c.Doc.Holder, c.Doc.Profile, c.Doc.ExpiresAt
		// Expiries are whole milliseconds: rounded up, the reading is not too early.
		due := c.Asked.Add(c.Doc.ExpiresAt.Sub(c.At.Truncate(time.Millisecond)))
		f.schedule(r, max(time.Until(due), leastDue))
	}
	r.latest = now

	if now.Locked != previous.Locked || now.Holder != previous.Holder {
		for s := range r.subs {
			s.notify(now)
		}
	}
}

// reason explains the change of a room from last to c.
func reason(locked bool, last, c cell) string {
	switch {
	case locked:
		return Acquired
	case c.Doc.Unlocked:
		return Unlocked
	case lease.Held(last.Doc.Lease, c.At):
		return Released
	}
	return Expired
}

// signal sends on c, of capacity 1, unless a signal is pending.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
