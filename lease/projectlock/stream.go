package projectlock

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// stream tells events to listeners, in their order and one at a time. Whoever
// finds events untold tells them.
type stream struct {
	mu        sync.Mutex
	listeners []*listener
	untold    []Event
	telling   bool
	held      int // losses being made known first
}

type listener struct {
	hear func(Event)
	gone atomic.Bool
}

// Subscribe calls hear with each event from now on, in their order, never two at
// a time, on the goroutine of whatever caused one of them: a listener that does
// not return soon delays heartbeats, and one that calls Renew or Release waits for
// itself. unsubscribe may be called at any time, also
// by the listener, and again: afterwards no call begins, though one that another
// goroutine has begun may still be under way.
func (l *Locker) Subscribe(hear func(Event)) (unsubscribe func()) {
	s := &l.events
	heard := &listener{hear: hear}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(slices.Clone(s.listeners), heard)
	return func() {
		heard.gone.Store(true)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.listeners = slices.DeleteFunc(slices.Clone(s.listeners), func(l *listener) bool { return l == heard })
	}
}

// add queues events, to be told later.
func (s *stream) add(events ...Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for i := range events {
		events[i].Time = now
	}
	s.untold = append(s.untold, events...)
}

// tell tells what is queued, unless somebody does.
func (s *stream) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.telling {
		return
	}
	s.telling = true
	defer func() { s.telling = false }()
	for len(s.untold) > 0 && s.held == 0 {
		e, to := s.untold[0], s.listeners
		s.untold = s.untold[1:]
		s.each(to, e)
	}
}

// each calls the listeners without the mutex.
func (s *stream) each(to []*listener, e Event) {
	s.mu.Unlock()
	defer s.mu.Lock()
	for _, l := range to {
		if !l.gone.Load() {
			l.hear(e)
		}
	}
}

// hold keeps events untold until it is called with -1.
func (s *stream) hold(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held += n
}
