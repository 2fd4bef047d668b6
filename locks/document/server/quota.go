package server

import (
	"net/http"
	"sync"

	"taskguard/internal/lifecycle"
)

// anonymousShare is the part of MaxSockets that clients without a session may have together.
const anonymousShare = 2

// quota counts the open sockets of each session, as far as this instance knows. The zero quota is
// empty.
type quota struct {
	mu   sync.Mutex
	open map[string]int
}

// begin counts a socket, and reports false if the session has limit others.
func (q *quota) begin(session string, limit int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open[session] >= limit {
		return false
	}
	if q.open == nil {
		q.open = map[string]int{}
	}
	q.open[session]++
	return true
}

func (q *quota) end(session string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open[session]--
	if q.open[session] == 0 {
		delete(q.open, session)
	}
}

// openSocket counts a socket of the session until end is called, unless r may not open one.
func (s *Server) openSocket(r *http.Request, session string) (end func(), err error) {
	if !isWebSocket(r) {
		return nil, requestError("want a WebSocket")
	}
	return s.count(session)
}

// count counts a socket until end is called. All clients without a session count together.
func (s *Server) count(session string) (end func(), err error) {
	if err := s.Begin(s.o.MaxSockets); err != nil {
		return nil, err
	}

	limit, full := s.o.SessionSockets, errManySockets
	if session == "" {
		limit, full = s.o.MaxSockets/anonymousShare, lifecycle.ErrFull
	}
	if !s.sockets.begin(session, limit) {
		s.End()
		return nil, full
	}
	return func() { s.sockets.end(session); s.End() }, nil
}

// openChannel counts a subscription until end is called. Where a session has opened the socket, or
// has signed a private channel, it counts only for the instance.
func (s *Server) openChannel(session string, private bool) (end func(), err error) {
	if session == "" && !private {
		return s.count("")
	}
	return s.End, s.Begin(s.o.MaxSockets)
}
