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

	"taskguard/lease"
	"taskguard/lease/leasetest"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
)

const tooManyLocks = `{"success":false,"error":"too_many_locks","message":"this session holds too many locks; release one"}`

// Two instances share the store and count for themselves.
func TestTheLocksOfASessionAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &lease.Memory[document.Lock]{}
		locks := must(document.New(store, 0))(t)
		instance := func() http.Handler {
			return server.NewServer(t.Context(), locks, nil, cookies(t), server.Options{SessionLocks: 2})
		}
		one, two := instance(), instance()
		mine, other := begun(t, one), begun(t, one)
		ask := func(h http.Handler, cookie, method, room string, want int) {
			t.Helper()
			status, body, _ := visit(t, h, method, "/api/documents/"+room+"/lock", cookie, server.ClientHeader, "tab-"+room)
			if status != want || status == http.StatusTooManyRequests && body != tooManyLocks {
				t.Errorf("%s %s: %d %s, want %d", method, room, status, body, want)
			}
		}
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
func TestALockThatASessionMayHoldCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := leasetest.NewFaulty(&lease.Memory[document.Lock]{}, nil)
		locks := must(document.New(store, 0))(t)
		h := server.NewServer(t.Context(), locks, nil, cookies(t), server.Options{SessionLocks: 1})
		cookie := begun(t, h)
		ask := func(method, room string, want int) {
			t.Helper()
			if status, body, _ := visit(t, h, method, "/api/documents/"+room+"/lock", cookie); status != want {
				t.Errorf("%s %s: %d %s, want %d", method, room, status, body, want)
			}
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

func TestTheSocketsOfASessionAreBounded(t *testing.T) {
	s := newPusherSite(t, func(s *setup) { s.options.SessionSockets = 2 })
	mine, other := s.browser(t), s.browser(t)
	for _, b := range []*browser{mine, other} {
		b.ask(http.MethodGet, "/") // begins a session
	}
	const pusherPath = "/app/key?protocol=7"
	first := mine.listen(lockPath+"/ws", websocket.DialOptions{})
	mine.connect()
	for _, path := range []string{lockPath + "/ws", pusherPath} {
		if got := mine.do(http.MethodGet, path, http.NoBody, upgrade()...); got.status != http.StatusTooManyRequests || !strings.Contains(got.body, `"too_many_sockets"`) {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	other.listen(lockPath+"/ws", websocket.DialOptions{})
	for range 3 { // without a session
		s.browser(t).listen(lockPath+"/ws", websocket.DialOptions{})
	}
	check(t, first.conn.Close(websocket.StatusNormalClosure, ""))
	for end := time.Now().Add(hang); ; time.Sleep(time.Millisecond) { // until the server has noticed
		if got := mine.do(http.MethodGet, lockPath+"/ws", http.NoBody, upgrade()...); got.status == http.StatusSwitchingProtocols {
			break
		} else if time.Now().After(end) {
			t.Fatalf("a closed socket is counted: %d %s", got.status, got.body)
		}
	}
}
