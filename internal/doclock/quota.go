package doclock

import (
	"cmp"
	"context"
	"maps"
	"math"
	"net/http"
	"sync"
	"time"
)

// quota counts what each session holds, as far as this instance knows.
type quota struct {
	mu     sync.Mutex
	ends   map[string]map[any]time.Time // by session and key
	pruned time.Time
}

// take counts key for the session until drop is called or life has passed, which begins anew
// for a key that is counted. ok is false if the session has limit other keys.
func (q *quota) take(session string, key any, limit int, life time.Duration) (added, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if q.ends == nil {
		q.ends = map[string]map[any]time.Time{}
	}
	if now.Sub(q.pruned) >= life { // sessions that have ended drop nothing
		q.pruned = now
		for s := range q.ends {
			q.prune(s, now)
		}
	}
	q.prune(session, now)
	keys := q.ends[session]
	_, has := keys[key]
	switch {
	case !has && len(keys) >= limit:
		return false, false
	case keys == nil:
		keys = map[any]time.Time{}
		q.ends[session] = keys
	}
	keys[key] = now.Add(life)
	return !has, true
}

// prune forgets the keys whose life has passed.
func (q *quota) prune(session string, now time.Time) {
	maps.DeleteFunc(q.ends[session], func(_ any, end time.Time) bool { return !end.After(now) })
	if len(q.ends[session]) == 0 {
		delete(q.ends, session)
	}
}

func (q *quota) drop(session string, key any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.ends[session], key)
	q.prune(session, time.Now())
}

// takeLock counts a lock for the session before it is acquired.
func (s *Server) takeLock(ctx context.Context, q target) (added bool, err error) {
	added, ok := s.rooms.take(q.session, q.room, s.o.SessionLocks, s.locks.TTL())
	if ok {
		return added, nil
	}
	state, err := s.locks.Get(ctx, q.room, q.owner) // another instance may have acquired it
	if err == nil && state.Mine {
		return false, nil
	}
	return false, cmp.Or(err, errManyLocks)
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
