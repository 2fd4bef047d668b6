package documentlock

import (
	"context"
	"errors"
)

// ErrClosed is Next's answer after Close.
var ErrClosed = errors.New("documentlock: subscription closed")

// Subscription is one subscriber's view of one room. Nothing waits for who does
// not read: later, it is told the latest state. Close it.
type Subscription struct {
	feed *Feed
	room *room
	news chan struct{} // capacity 1: look again

	// feed.mu guards these.
	event  *Event // not yet told
	begun  bool   // one was told
	closed bool
}

// Subscribe reads the room once and watches it from then on; errors as
// Locks.Get. It may be called before Run has begun and while the stream is down.
func (f *Feed) Subscribe(ctx context.Context, id string) (*Subscription, error) {
	r := f.enter(id) // before the reading, so that no change after it is missed
	c, err := f.locks.read(ctx, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.leave(r)
		return nil, err
	}
	f.learn(r, c)
	s := &Subscription{feed: f, room: r, news: make(chan struct{}, 1)}
	s.tell(r.latest)
	r.subs[s] = struct{}{}
	return s, nil
}

// enter is the room of id, which has one use more.
func (f *Feed) enter(id string) *room {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rooms[id]
	if r == nil {
		r = &room{id: id, subs: map[*Subscription]struct{}{}}
		f.rooms[id] = r
		nudge(f.readers)
	}
	r.uses++
	return r
}

// leave forgets r after its last use. The caller has mu.
func (f *Feed) leave(r *room) {
	if r.uses--; r.uses == 0 {
		delete(f.rooms, r.id)
	}
}

// tell is never blocked: an event that was not read is replaced. The caller has
// feed.mu.
func (s *Subscription) tell(e Event) {
	if !s.begun {
		e.Reason = Current
	}
	s.event = &e
	s.rouse()
}

func (s *Subscription) rouse() { nudge(s.news) }

// nudge lets whoever waits for c, of capacity 1, look again.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Next waits for the next state: at first the current one, then each that is
// newer, the latest where several came meanwhile. Its errors are ctx's cause and
// ErrClosed. One goroutine at a time may call it.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	for {
		e, closed := s.take()
		switch {
		case closed:
			return Event{}, ErrClosed
		case e != nil:
			return *e, nil
		}
		select {
		case <-s.news:
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}

// take is the event that waits to be told.
func (s *Subscription) take() (e *Event, closed bool) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	e, s.event = s.event, nil
	s.begun = s.begun || e != nil
	return e, s.closed
}

// Close ends the subscription, also a Next that waits. It may be called again.
func (s *Subscription) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	delete(s.room.subs, s)
	s.feed.leave(s.room)
	s.rouse()
}
