package server

import (
	"context"
	"math"
	"sync"
	"time"

	"taskguard/internal/lifecycle"
)

// anonymousShare is the part of MaxSockets that clients without a session may have together.
const anonymousShare = 2

// channelsPerSocket is how many channels a session may have for each of its sockets, on average.
const channelsPerSocket = 5

// quota counts what each session has on this instance. The zero quota is empty.
type quota struct {
	mu     sync.Mutex
	claims map[string]map[any]claim // the keys are the session and the claim's key
}

// claim counts as one while a request uses it, and until a time.
type claim struct {
	uses  int
	until time.Time
}

// change replaces the claim of key by what next returns. It reports false if there is none and
// the session has limit others. It deletes a claim that is neither used nor kept.
func (q *quota) change(session string, key any, limit int, next func(claim) claim) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	claims := q.claims[session]
	c, counted := claims[key]
	if !counted && len(claims) >= limit {
		return false
	}

	c = next(c)
	if q.claims == nil {
		q.claims = map[string]map[any]claim{}
	}
	if claims == nil {
		claims = map[any]claim{}
		q.claims[session] = claims
	}
	claims[key] = c
	if c.uses <= 0 && !time.Now().Before(c.until) {
		delete(claims, key)
	}
	if len(claims) == 0 {
		delete(q.claims, session)
	}
	return true
}

func (q *quota) begin(session string, key any, limit int) bool {
	return q.change(session, key, limit, func(c claim) claim { return claim{c.uses + 1, c.until} })
}

func (q *quota) end(session string, key any) {
	q.change(session, key, math.MaxInt, func(c claim) claim { return claim{c.uses - 1, c.until} })
}

// keep counts key for this long from now, even above the limit; zero ends that.
func (q *quota) keep(session string, key any, life time.Duration) {
	q.change(session, key, math.MaxInt, func(c claim) claim { return claim{c.uses, time.Now().Add(life)} })
	time.AfterFunc(life, func() { // deletes it, unless it is kept longer
		q.change(session, key, math.MaxInt, func(c claim) claim { return c })
	})
}

// beginLock counts a lock for the session while a request acquires it.
func (s *Server) beginLock(ctx context.Context, q target) error {
	if s.rooms.begin(q.session.Owner, q.room, s.o.SessionLocks) {
		return nil
	}
	state, err := s.locks.Get(ctx, q.room, q.owner) // another instance may have acquired it
	switch {
	case err != nil:
		return err
	case !state.Mine:
		return errManyLocks
	}
	s.rooms.begin(q.session.Owner, q.room, math.MaxInt)
	return nil
}

// takeSocket counts a socket for the session. All sockets and channels without a session count
// together.
func (s *Server) takeSocket(session string, key any) error {
	limit, full := s.o.SessionSockets, errManySockets
	if session == "" {
		limit, full = s.o.MaxSockets/anonymousShare, lifecycle.ErrFull
	}
	if !s.sockets.begin(session, key, limit) {
		return full
	}
	return nil
}

// openChannel counts a subscription as a socket, and for the session with the hash payer, or for
// all clients without one. It reports false if there are too many.
func (s *Server) openChannel(payer string, key any) bool {
	if s.Begin(s.o.MaxSockets) != nil {
		return false
	}

	var counted bool
	if payer == "" {
		counted = s.takeSocket("", key) == nil
	} else {
		counted = s.channels.begin(payer, key, channelsPerSocket*s.o.SessionSockets)
	}
	if !counted {
		s.End()
	}
	return counted
}

// closeChannel ends what openChannel has counted.
func (s *Server) closeChannel(payer string, key any) {
	s.channels.end(payer, key)
	s.closeSocket("", key)
}

// closeSocket ends what openSocket has counted.
func (s *Server) closeSocket(session string, key any) {
	s.sockets.end(session, key)
	s.End()
}
