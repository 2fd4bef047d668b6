package document

import (
	"context"
	"iter"
)

// Subscription receives the events of one room. A slow reader delays no other: it
// receives the latest state. Close it.
type Subscription struct {
	feed   *Feed
	room   *room
	events chan Event // capacity 1: the latest that was not received; sent to under feed.mu
}

// Subscribe reads the room once and watches it from then on. It returns the same errors
// as Locks.Get. It may be called before Run has begun and while the stream is down.
func (f *Feed) Subscribe(ctx context.Context, id string) (*Subscription, error) {
	s := f.enter(id) // before the reading, so that no change after it is missed
	c, err := f.locks.read(ctx, id)

	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		s.leave()
		return nil, err
	}
	f.update(s.room, c)
	current := s.room.latest
	current.Reason = Current
	s.notify(current)
	return s, nil
}

// enter adds a subscription to the room of id.
func (f *Feed) enter(id string) *Subscription {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rooms[id]
	if r == nil {
		r = &room{id: id, subs: map[*Subscription]struct{}{}}
		f.rooms[id] = r
		signal(f.subscribed)
	}
	s := &Subscription{feed: f, room: r, events: make(chan Event, 1)}
	r.subs[s] = struct{}{}
	return s
}

// leave removes s, and its room if no other subscription is left. The caller holds feed.mu.
func (s *Subscription) leave() {
	delete(s.room.subs, s)
	if len(s.room.subs) == 0 {
		delete(s.feed.rooms, s.room.id)
	}
}

// notify never blocks: it replaces an event that was not received yet. The first event
// that is received has the reason Current. The caller holds feed.mu.
func (s *Subscription) notify(e Event) {
	select {
	case missed := <-s.events:
		if missed.Reason == Current {
			e.Reason = Current
		}
	default:
	}
	s.events <- e
}

// Events yields the events until ctx ends: first the current state, then each newer one, or the
// latest if there are several. One goroutine at a time may range over it.
func (s *Subscription) Events(ctx context.Context) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		for {
			select {
			case e := <-s.events:
				if ctx.Err() != nil || !yield(e) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// Close ends the subscription; no loop over Events waits by then. Call it once.
func (s *Subscription) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.leave()
}
