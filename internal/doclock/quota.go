package doclock

import (
	"context"
	"math"
	"net/http"
	"sync"
	"time"

	"taskguard/lease/documentlock"
)

// quota counts what each session holds, as far as this instance knows.
type quota struct {
	mu   sync.Mutex
	held map[string]map[any]*time.Timer // by session and key; the timers drop the keys
}

// take counts key for the session until drop is called, or until life has passed since the
// last take. ok is false if the session has limit other keys.
func (q *quota) take(session string, key any, limit int, life time.Duration) (added, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	keys := q.held[session]
	switch timer := keys[key]; {
	case timer != nil:
		timer.Reset(life)
		return false, true
	case len(keys) >= limit:
		return false, false
	case keys == nil:
		keys = map[any]*time.Timer{}
		q.held[session] = keys
	}
	keys[key] = time.AfterFunc(life, func() { q.drop(session, key) })
	return true, true
}

func (q *quota) drop(session string, key any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	keys := q.held[session]
	if keys[key] != nil {
		keys[key].Stop()
	}
	if delete(keys, key); len(keys) == 0 {
		delete(q.held, session)
	}
}

// takeLock counts a lock for the session before it is acquired.
func (s *Server) takeLock(ctx context.Context, q target) (added bool, err error) {
	added, ok := s.rooms.take(q.session, q.room, s.o.SessionLocks, s.locks.TTL())
	if !ok { // another instance may have acquired it
		var state documentlock.State
		if state, err = s.locks.Get(ctx, q.room, q.owner); err == nil && !state.Mine {
			err = errManyLocks
		}
	}
	return added, err
}

// takeSocket counts the socket of r for the session, if there is one.
func (s *Server) takeSocket(session string, r *http.Request) error {
	if session != "" {
		if _, ok := s.sockets.take(session, r, s.o.SessionSockets, math.MaxInt64); !ok {
			return errManySockets
		}
	}
	return nil
}

// closeSocket ends what openSocket and takeSocket have counted.
func (s *Server) closeSocket(session string, r *http.Request) {
	s.sockets.drop(session, r)
	s.End()
}
