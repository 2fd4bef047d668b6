package server_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/leasetest"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
)

// asking returns a function that requires a status for a request about a room, in a tab for it alone.
func asking(t *testing.T) func(h http.Handler, cookie, method, room string, want int) {
	return func(h http.Handler, cookie, method, room string, want int) {
		t.Helper()
		status, body, _ := visit(t, h, method, "/api/documents/"+room+"/lock", cookie, server.ClientHeader, "tab-"+room)
		if status != want || (status == http.StatusTooManyRequests) != strings.Contains(body, `"too_many_locks"`) {
			t.Errorf("%s %s: %d %s, want %d", method, room, status, body, want)
		}
	}
}

// Two instances share the store and count for themselves.
func TestQuota_Locks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := must.Get(document.New(&lease.Memory[document.Lock]{}, 0))(t)
		o := server.Options{SessionLocks: 2}
		one := server.NewServer(t.Context(), locks, nil, cookies(t), o)
		two := server.NewServer(t.Context(), locks, nil, cookies(t), o)
		mine, other, ask := begun(t, one), begun(t, one), asking(t)
		ask(one, other, http.MethodPost, "theirs", 200)
		ask(one, mine, http.MethodPost, "theirs", 409) // counts nothing
		ask(one, mine, http.MethodPost, "a", 200)
		ask(one, mine, http.MethodPost, "b", 200)
		ask(one, mine, http.MethodPost, "c", 429)
		ask(one, mine, http.MethodPost, "a", 200) // a heartbeat
		ask(one, other, http.MethodPost, "c", 200)
		ask(one, other, http.MethodDelete, "c", 200)

		ask(one, mine, http.MethodDelete, "a", 200)
		ask(one, mine, http.MethodPost, "c", 200)
		ask(one, mine, http.MethodPost, "a", 429)
		ask(two, mine, http.MethodPost, "a", 200)
		ask(one, mine, http.MethodPost, "a", 200) // it is the session's already
		ask(one, mine, http.MethodPut, "a", 200)  // now one counts three

		time.Sleep(20 * time.Second)
		ask(one, mine, http.MethodPut, "b", 200)
		ask(one, mine, http.MethodPut, "c", 200)
		time.Sleep(20 * time.Second) // a has expired
		ask(one, mine, http.MethodPost, "a", 429)
		time.Sleep(12 * time.Second) // b and c too
		ask(one, mine, http.MethodPost, "a", 200)
	})
}

// A request in progress may acquire the lock. One whose outcome is unknown may have acquired it, or
// not have released it.
func TestQuota_Uncertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := leasetest.NewFaulty(&lease.Memory[document.Lock]{}, nil)
		locks := must.Get(document.New(store, 0))(t)
		h := server.NewServer(t.Context(), locks, nil, cookies(t), server.Options{SessionLocks: 1})
		cookie := begun(t, h)
		ask := func(method, room string, want int) {
			t.Helper()
			asking(t)(h, cookie, method, room, want)
		}

		store.SetPlan(leasetest.On(leasetest.Load, leasetest.SlowReply))
		var slow sync.WaitGroup
		slow.Go(func() { ask(http.MethodPost, "a", 200) })
		synctest.Wait()
		ask(http.MethodPost, "b", 429)
		ask(http.MethodDelete, "a", 200) // not acquired yet
		ask(http.MethodPost, "b", 429)
		stopping, cancel := context.WithCancel(t.Context())
		cancel()
		if left := h.Drain(stopping); left != 1 {
			t.Errorf("a stop waits for %d requests", left)
		}
		slow.Wait()
		ask(http.MethodPost, "b", 429)
		ask(http.MethodDelete, "a", 200)

		store.SetPlan(leasetest.Always(leasetest.Unavailable))
		ask(http.MethodPost, "a", 503)
		ask(http.MethodPost, "b", 503) // at the limit it reads whether it holds b
		store.SetPlan(nil)
		ask(http.MethodPost, "b", 429)
		ask(http.MethodPost, "a", 200)
		store.SetPlan(leasetest.Always(leasetest.Unavailable))
		ask(http.MethodDelete, "a", 503)
		store.SetPlan(nil)
		ask(http.MethodPost, "b", 429)
	})
}

func TestQuota_Sockets(t *testing.T) {
	s := newPusherSite(t, func(s *setup) { s.options.SessionSockets = 2 })
	mine, other := s.user(t), s.user(t)
	first := mine.listen(lockPath+"/ws", websocket.DialOptions{})
	mine.connect()
	for _, path := range []string{lockPath + "/ws", appPath} {
		mine.want(http.StatusTooManyRequests, `"too_many_sockets"`, http.MethodGet, path, upgrade()...)
	}
	other.listen(lockPath+"/ws", websocket.DialOptions{})
	for range 3 { // without a session
		s.browser(t).listen(lockPath+"/ws", websocket.DialOptions{})
	}
	must.OK(t, first.conn.Close(websocket.StatusNormalClosure, ""))
	status, end := 0, time.Now().Add(hang)
	for status != http.StatusSwitchingProtocols { // until the server has noticed
		if time.Now().After(end) {
			t.Fatalf("a closed socket is counted: %d", status)
		}
		time.Sleep(time.Millisecond)
		status, _ = mine.ask(http.MethodGet, lockPath+"/ws", upgrade()...)
	}
}

func TestQuota_Channels(t *testing.T) {
	const tooMany = "too many connections"
	t.Run("a socket has 20, an instance as configured", func(t *testing.T) {
		s := newPusherSite(t, func(s *setup) { s.options.MaxSockets = 22 })
		b := s.user(t)
		p := b.connect()
		p.wantChannels(20)
		if !p.watch("documents.0") { // instead of the first
			t.Error("a channel cannot be subscribed to again")
		}
		p.wantAlive()
		other := s.browser(t).connect() // the last that fits
		other.wantChannels(0)
		other.wantAlive()
		b.want(http.StatusServiceUnavailable, tooMany, http.MethodGet, lockPath+"/ws", upgrade()...)
		p.unsubscribe("documents.0")
		p.wantAlive()
		other.mustWatch("documents.0")
	})

	t.Run("a session has five for each of its sockets", func(t *testing.T) {
		s := newPusherSite(t, func(s *setup) { s.options.SessionSockets = 1 })
		user, other := s.user(t), s.user(t)
		p, q := user.connect(), other.connect()
		p.wantChannels(5)
		if !q.watch("documents.5") {
			t.Error("another session has no channel")
		}
		const private = "private-documents.6"
		strange := s.browser(t).connect() // the same user's, who has left out the cookie
		_, auth := user.authorized(strange.id, private)
		if f := strange.subscribe(private, auth); !strings.Contains(f.Data, "LimitReached") {
			t.Errorf("a sixth channel, of a socket without the session: %+v", f)
		}
		p.unsubscribe("documents.0")
		for f := (frame{}); f.Event != succeed; {
			f = strange.subscribe(private, auth)
		}
		if p.watch("documents.5") {
			t.Error("a private channel of a socket without a session counts for nobody")
		}
		strange.wantEvent(private, unlocked, document.Current)
		strange.unsubscribe(private)
		p.mustWatch("documents.5")
	})

	t.Run("clients without a session have half", func(t *testing.T) {
		s := newPusherSite(t, func(s *setup) { s.options.MaxSockets = 8 })
		stranger, user := s.browser(t), s.user(t)
		first := stranger.listen(lockPath+"/ws", websocket.DialOptions{})
		p := stranger.connect()
		p.wantChannels(2)
		for _, path := range []string{lockPath + "/ws", appPath} {
			stranger.want(http.StatusServiceUnavailable, tooMany, http.MethodGet, path, upgrade()...)
		}

		const private = "private-documents.c"
		if f := p.subscribe(private, signature(app.Secret, p.id, private)); !strings.Contains(f.Data, "LimitReached") {
			t.Errorf("signed by the application, for no session that is known: %+v", f)
		}
		_, auth := user.authorized(p.id, private)
		if f := p.subscribe(private, auth); f.Event != succeed {
			t.Errorf("signed for a session: %+v", f)
		}
		p.wantEvent(private, unlocked, document.Current)
		user.listen(lockPath+"/ws", websocket.DialOptions{}).next()
		if !user.connect().watch("documents.a") {
			t.Error("a session has no channel")
		}

		must.OK(t, first.conn.Close(websocket.StatusNormalClosure, ""))
		for _, channel := range []string{"documents.c", "documents.d"} { // in place of the socket, then of the channel
			p.mustWatch(channel)
			p.unsubscribe(channel)
		}
	})
}

// A subscription that fails closes the socket, and is not counted.
func TestQuota_FailedSubscription(t *testing.T) {
	b := newPusherSite(t, func(s *setup) {
		s.store, s.options.SessionSockets = refusing{s.store, lease.ErrRefused}, 1
	}).browser(t)
	p := b.connect()
	p.send("pusher:subscribe", map[string]string{"channel": "documents.room"})
	p.wantError(4100)
	if _, code := p.rest(); code != 4100 {
		t.Errorf("closed with %v, want 4100", code)
	}

	b.ask(http.MethodGet, "/") // begins a session
	for range 2 {
		b.want(http.StatusInternalServerError, "", http.MethodGet, lockPath+"/ws", upgrade()...)
	}
}
