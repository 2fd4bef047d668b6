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

// quota counts what each session has, as far as this instance knows. The zero quota is empty.
type quota struct {
	mu     sync.Mutex
	claims map[string]map[any]*claim // by session and key
}

// claim counts as one while a request uses it, and until a time.
type claim struct {
	uses  int
	until time.Time
	timer *time.Timer // at until; nil before the first
}

// change calls do with the claim of key. It reports false if there is none and the session
// has limit others. It deletes a claim that is neither used nor kept.
func (q *quota) change(session string, key any, limit int, do func(*claim)) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	claims := q.claims[session]
	c := claims[key]
	if c == nil && len(claims) >= limit {
		return false
	}
	if q.claims == nil {
		q.claims = map[string]map[any]*claim{}
	}
	if claims == nil {
		claims = map[any]*claim{}
		q.claims[session] = claims
	}
	if c == nil {
		c = &claim{}
		claims[key] = c
	}

	do(c)
	if c.uses == 0 && !time.Now().Before(c.until) {
		delete(claims, key)
	}
	if len(claims) == 0 {
		delete(q.claims, session)
	}
	return true
}

func (q *quota) begin(session string, key any, limit int) bool {
	return q.change(session, key, limit, func(c *claim) { c.uses++ })
}

func (q *quota) end(session string, key any) {
	q.change(session, key, math.MaxInt, func(c *claim) { c.uses = max(0, c.uses-1) })
}

// keep counts key for this long from now, whatever the limit.
func (q *quota) keep(session string, key any, life time.Duration) {
	q.change(session, key, math.MaxInt, func(c *claim) {
		c.until = time.Now().Add(life)
		if c.timer == nil {
			c.timer = time.AfterFunc(life, func() { q.change(session, key, math.MaxInt, func(*claim) {}) })
		} else {
			c.timer.Reset(life)
		}
	})
}

// drop ends the last keep, unless another keep follows before the returned function is called.
func (q *quota) drop(session string, key any) (done func()) {
	var until time.Time
	q.change(session, key, math.MaxInt, func(c *claim) { until = c.until })
	return func() {
		q.change(session, key, math.MaxInt, func(c *claim) {
			if c.until.Equal(until) {
				c.until = time.Time{}
			}
		})
	}
}

// lockKey is the key of a lock. Each client of a session has its own, so that the refusal of
// one does not end the count of another's lock.
type lockKey struct{ room, owner string }

// beginLock counts a lock for the session while a request acquires it.
func (s *Server) beginLock(ctx context.Context, q target, key lockKey) error {
	if s.rooms.begin(q.session, key, s.o.SessionLocks) {
		return nil
	}
	state, err := s.locks.Get(ctx, q.room, q.owner) // another instance may have acquired it
	switch {
	case err != nil:
		return err
	case !state.Mine:
		return errManyLocks
	}
	s.rooms.begin(q.session, key, math.MaxInt)
	return nil
}

// takeSocket counts a socket for the session. All sockets and public channels of clients
// without a session count together.
func (s *Server) takeSocket(session string, key any) error {
	switch {
	case session != "" && !s.sockets.begin(session, key, s.o.SessionSockets):
		return errManySockets
	case session == "" && !s.sockets.begin(session, key, s.o.MaxSockets/anonymousShare):
		return lifecycle.ErrFull
	}
	return nil
}

// openChannel counts a subscription as a socket, and for its session, or for all clients
// without one; a session has signed a private channel. It reports false if there are too many.
func (s *Server) openChannel(session string, private bool, key any) bool {
	if s.Begin(s.o.MaxSockets) != nil {
		return false
	}

	counted := true
	switch {
	case session != "":
		counted = s.channels.begin(session, key, channelsPerSocket*s.o.SessionSockets)
	case !private:
		counted = s.takeSocket("", key) == nil
	}
	if !counted {
		s.End()
	}
	return counted
}

// closeChannel ends what openChannel has counted.
func (s *Server) closeChannel(session string, key any) {
	s.channels.end(session, key)
	s.closeSocket("", key)
}

// closeSocket ends what Begin and takeSocket have counted.
func (s *Server) closeSocket(session string, key any) {
	s.sockets.end(session, key)
	s.End()
}
