package documentlock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

const (
	// Between two streams; it doubles until one has brought something.
	leastBackoff = time.Second
	mostBackoff  = 30 * time.Second
	// readAgain is when a room is read again whose reading has failed.
	readAgain = 5 * time.Second
	// readers bounds the readings of rooms at once, where many expire together.
	readers = 16
)

// Run lets the feed work until ctx ends, and has then ended every goroutine of
// it. Call it once. A stream that fails is opened again, a failure of the store
// logged once until it is over.
func (f *Feed) Run(ctx context.Context) {
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { f.stream(ctx) })
	parts.Go(func() { f.polling(ctx) })
	f.expiries(ctx)
}

// stream applies the store's change stream, while there are readers.
func (f *Feed) stream(ctx context.Context) {
	state := health{log: f.log, of: "change stream"}
	backoff := leastBackoff
	for f.awaitReaders(ctx) {
		err := f.watch(ctx, func(s Snapshot) {
			state.good(ctx)
			backoff = leastBackoff
			f.apply(s)
		})
		if errors.Is(err, errIdle) {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		state.bad(ctx, err)
		if !wait(ctx, backoff) {
			return
		}
		backoff = min(2*backoff, mostBackoff)
	}
}

// errIdle ends a stream that nobody needs.
var errIdle = errors.New("documentlock: no readers")

// watch is the Watcher's, until nobody has read for a poll or two: a stream costs a
// read for each change of any room.
func (f *Feed) watch(ctx context.Context, each func(Snapshot)) error {
	ctx, end := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer end(nil)
	watching.Go(func() {
		for idle := 0; idle < 2; {
			if !wait(ctx, f.poll) {
				return
			}
			if idle++; !f.idle() {
				idle = 0
			}
		}
		end(errIdle)
	})
	err := f.watcher.Watch(ctx, each)
	if cause := context.Cause(ctx); errors.Is(cause, errIdle) {
		return cause
	}
	return err
}

// awaitReaders reports false when ctx has ended before anybody reads.
func (f *Feed) awaitReaders(ctx context.Context) bool {
	for f.idle() {
		select {
		case <-ctx.Done():
			return false
		case <-f.readers:
		}
	}
	return ctx.Err() == nil
}

// polling reads all now and then, so that what a stream has missed, or one that
// is silently dead, is made good.
func (f *Feed) polling(ctx context.Context) {
	state := health{log: f.log, of: "poll"}
	for wait(ctx, f.poll) {
		if f.idle() {
			continue
		}
		s, err := f.watcher.Current(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			state.bad(ctx, err)
		default:
			state.good(ctx)
			f.apply(s)
		}
	}
}

func (f *Feed) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.rooms) == 0
}

// expiries reads each room again when it is due.
func (f *Feed) expiries(ctx context.Context) {
	var reads sync.WaitGroup
	defer reads.Wait()
	slots := make(chan struct{}, readers)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-timer.C:
		}
		due, next := f.due(time.Now())
		for _, r := range due {
			reads.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				f.reread(ctx, r)
			})
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// due are the rooms to be read now, and when the next one is.
func (f *Feed) due(now time.Time) (due []*room, next time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rooms {
		switch {
		case r.due.IsZero():
		case !r.due.After(now):
			r.due = time.Time{}
			due = append(due, r)
		case next.IsZero() || r.due.Before(next):
			next = r.due
		}
	}
	f.armed = next
	return due, next
}

// reread asks the store whether the room is still held. By its time, and no
// other, an expiry is announced.
func (f *Feed) reread(ctx context.Context, r *room) {
	c, err := f.locks.read(ctx, r.id)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.learn(r, c)
	}
	if r.latest.Locked && r.due.IsZero() {
		r.due = time.Now().Add(readAgain)
		f.rouse(r)
	}
}

// health logs a failure when it begins and when it is over.
type health struct {
	log    *slog.Logger
	of     string
	failed bool
}

func (h *health) bad(ctx context.Context, err error) {
	if !h.failed {
		h.log.WarnContext(ctx, "document lock feed failed", "part", h.of, "error", err)
	}
	h.failed = true
}

func (h *health) good(ctx context.Context) {
	if h.failed {
		h.log.InfoContext(ctx, "document lock feed is back", "part", h.of)
	}
	h.failed = false
}

// wait reports false when ctx has ended.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
