package document

import (
	"context"
	"iter"
)

// Subscription receives the events of one room. A slow reader delays no other: it
// receives the latest state. Close it.
type Subscription struct {
	feed  *Feed
	room  *room
	ready chan struct{} // capacity 1: there is an event

	// feed.mu guards these.
	event *Event // not yet received
	begun bool   // an event was received
}

// Subscribe reads the room once and watches it from then on. Its errors are those
// of Locks.Get. It may be called before Run has begun and while the stream is down.
func (f *Feed) Subscribe(ctx context.Context, id string) (*Subscription, error) {
	r := f.enter(id) // before the reading, so that no change after it is missed
	c, err := f.locks.read(ctx, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.leave(r)
		return nil, err
	}
	f.update(r, c)
	s := &Subscription{feed: f, room: r, ready: make(chan struct{}, 1)}
	s.notify(r.latest)
	r.subs[s] = struct{}{}
	return s, nil
}

// enter returns the room of id, with one use more.
func (f *Feed) enter(id string) *room {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rooms[id]
	if r == nil {
		r = &room{id: id, subs: map[*Subscription]struct{}{}}
		f.rooms[id] = r
		signal(f.subscribed)
	}
	r.uses++
	return r
}

// leave removes r after its last use. The caller holds mu.
func (f *Feed) leave(r *room) {
	if r.uses--; r.uses == 0 {
		delete(f.rooms, r.id)
	}
}

// notify never blocks: it replaces an event that was not received yet. The caller
// holds feed.mu.
func (s *Subscription) notify(e Event) {
	if !s.begun {
		e.Reason = Current
	}
	s.event = &e
	signal(s.ready)
}

// Events yields the events until ctx ends: first the current state, then each newer one, or the
// latest if there are several. One goroutine at a time may range over it.
func (s *Subscription) Events(ctx context.Context) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		for {
			select {
			case <-s.ready:
			case <-ctx.Done():
				return
			}
			if e := s.take(); e != nil && !yield(*e) {
				return
			}
		}
	}
}

// take returns the pending event, or nil.
func (s *Subscription) take() *Event {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	e := s.event
	s.event = nil
	s.begun = s.begun || e != nil
	return e
}

// Close ends the subscription; no loop over Events waits by then. Call it once.
func (s *Subscription) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	delete(s.room.subs, s)
	s.feed.leave(s.room)
}
