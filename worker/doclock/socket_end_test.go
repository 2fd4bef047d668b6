package doclock_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"taskguard/lease/documentlock"
)

func TestWhatTheClientSaysClosesTheSocket(t *testing.T) {
	b := newSite(t, nil).browser(t)
	l := b.listen(lockPath+"/ws", websocket.DialOptions{})
	l.want(unlocked, documentlock.Current)
	if err := l.conn.Write(t.Context(), websocket.MessageText, []byte(strings.Repeat("x", 100_000))); err != nil {
		t.Fatal(err)
	}
	if got := l.closed(); got != websocket.StatusPolicyViolation {
		t.Errorf("closed with %v, want a policy violation", got)
	}
}

// closed is the code with which the server closes.
func (s *socket) closed() websocket.StatusCode {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	for {
		if _, _, err := s.conn.Read(ctx); err != nil {
			if ctx.Err() != nil {
				s.t.Fatal("the socket is left open")
			}
			return websocket.CloseStatus(err)
		}
	}
}

func TestAStopSendsTheClientsElsewhere(t *testing.T) {
	s := newSite(t, nil)
	b := s.browser(t)
	var all []*socket
	for range 3 {
		l := b.listen(lockPath+"/ws", websocket.DialOptions{})
		l.want(unlocked, documentlock.Current)
		all = append(all, l)
	}
	s.stop()
	for _, l := range all {
		if got := l.closed(); got != websocket.StatusGoingAway {
			t.Errorf("closed with %v, want going away", got)
		}
	}
	b.want(http.StatusServiceUnavailable, `{"success":false,"error":"unavailable","message":"this instance is stopping; try again"}`,
		http.MethodGet, lockPath+"/ws", upgrade()...)
	b.take() // what is under way, and what comes until the listener is closed, is answered
}

func TestSocketsAreBounded(t *testing.T) {
	s := newSite(t, func(s *setup) { s.options.MaxSockets = 2 })
	b := s.browser(t)
	first := b.listen(lockPath+"/ws", websocket.DialOptions{})
	first.next()
	b.listen("/api/documents/other/lock/ws", websocket.DialOptions{}).next()
	b.want(http.StatusServiceUnavailable, `{"success":false,"error":"unavailable","message":"too many connections here; try again"}`,
		http.MethodGet, lockPath+"/ws", upgrade()...)
	if err := first.conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Fatal(err)
	}
	for {
		if status, _ := b.ask(http.MethodGet, lockPath+"/ws", upgrade()...); status == http.StatusSwitchingProtocols {
			return
		}
	}
}

func TestADeadPeerIsClosed(t *testing.T) {
	s := newSite(t, func(s *setup) { s.options.Ping = 20 * time.Millisecond })
	b := s.browser(t)
	b.listen(lockPath+"/ws", websocket.DialOptions{}).next() // and from then on reads nothing, so answers no ping
	draining, done := context.WithTimeout(t.Context(), hang)
	defer done()
	if left := s.Drain(draining); left != 0 {
		t.Errorf("%d sockets are left open", left)
	}
}

func TestALivePeerStaysConnected(t *testing.T) {
	s := newSite(t, func(s *setup) { s.options.Ping = 200 * time.Millisecond }) // also the time for its answer
	b := s.browser(t)
	pings := make(chan struct{}, 1000)
	l := b.listen(lockPath+"/ws", websocket.DialOptions{OnPingReceived: func(context.Context, []byte) bool {
		pings <- struct{}{}
		return true
	}})
	l.want(unlocked, documentlock.Current)
	var heard []byte
	var err error
	var reading sync.WaitGroup
	reading.Go(func() { _, heard, err = l.conn.Read(t.Context()) }) // it answers pings, too
	for range 3 {
		select {
		case <-pings:
		case <-time.After(hang):
			t.Fatal("no pings")
		}
	}
	b.take()
	reading.Wait()
	if err != nil || !strings.Contains(string(heard), `"reason":"acquired"`) {
		t.Errorf("told %q, %v", heard, err)
	}
}
