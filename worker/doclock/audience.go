package doclock

import (
	"context"
	"sync"
)

// sockets counts who listens, and where.
type sockets struct {
	limit int

	mu    sync.Mutex
	open  int
	rooms map[string]*audience
	ended chan struct{} // wakes drain
}

// audience is who listens to one room.
type audience struct {
	sockets  int
	unlocked int64 // version of the last unlock by an operator that was logged
}

// enter counts a socket, unless there are too many or ctx has ended.
func (s *sockets) enter(ctx context.Context, room string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return errStopping
	case s.open >= s.limit:
		return errFull
	}
	s.open++
	if s.rooms[room] == nil {
		s.rooms[room] = &audience{}
	}
	s.rooms[room].sockets++
	return nil
}

func (s *sockets) leave(room string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if a := s.rooms[room]; a.sockets > 1 {
		a.sockets--
	} else {
		delete(s.rooms, room)
	}
	select {
	case s.ended <- struct{}{}:
	default:
	}
}

// first reports whether no other socket of the room has seen that unlock.
func (s *sockets) first(room string, version int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.rooms[room]
	if version <= a.unlocked {
		return false
	}
	a.unlocked = version
	return true
}

// drain waits until no socket is open, or until ctx ends.
func (s *sockets) drain(ctx context.Context) (left int) {
	for {
		s.mu.Lock()
		left = s.open
		s.mu.Unlock()
		if left == 0 {
			return 0
		}
		select {
		case <-ctx.Done():
			return left
		case <-s.ended:
		}
	}
}
