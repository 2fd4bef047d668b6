package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"taskguard/internal/taskauth"
	"taskguard/internal/testing/emulatortest"
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

// TestASweepDeletesOnlyExpiredLocks also lets the ticker sweep.
func TestASweepDeletesOnlyExpiredLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rooms, log := newRooms(t), &emulatortest.Log{}
		locks := must(document.New(rooms, 0))(t)
		kept := func(room string) bool { return must(rooms.Load(t.Context(), room, lease.OnlyLease))(t).Exists }
		take := func(room string) { must(locks.Acquire(t.Context(), room, "session/1"))(t) }
		h := server.NewServer(t.Context(), locks, nil, cookies(t), server.Options{Finder: rooms, Log: slog.New(slog.NewTextHandler(log, nil))})
		for i := range 3 {
			take(fmt.Sprint(i))
		}
		time.Sleep(31 * time.Second)
		take("live")
		for _, want := range []string{`{"swept":3}`, `{"swept":0}`} {
			if status, body, _ := visit(t, h, http.MethodPost, "/internal/sweep", ""); status != http.StatusOK || body != want {
				t.Errorf("%d %s, want %s", status, body, want)
			}
		}
		if kept("0") || !kept("live") {
			t.Errorf("the expired one is kept: %v, the live one: %v", kept("0"), kept("live"))
		}
		ctx, cancel := context.WithCancel(t.Context())
		var sweeping sync.WaitGroup
		sweeping.Go(func() { h.SweepEvery(ctx, time.Minute) })
		time.Sleep(61 * time.Second)
		if kept("live") || strings.Count(log.String(), "expired locks swept") != 2 || !strings.Contains(log.String(), "swept=3") {
			t.Errorf("it is kept: %v; log: %s", kept("live"), log)
		}
		cancel()
		sweeping.Wait()
	})
}

// failing is a Finder whose query fails.
type failing struct{}

func (failing) Lapsed(context.Context, int) ([]document.Change, error) {
	return nil, errors.New(`repo: query "secret room": no index; projects/p/databases/d/documents/documentLocks/secret room`)
}

func TestASweepThatFailsInPartIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &emulatortest.Log{}
		h := server.NewServer(t.Context(), nil, nil, cookies(t), server.Options{Finder: failing{}, Log: slog.New(slog.NewTextHandler(log, nil))})
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
		defer cancel()
		if h.SweepEvery(ctx, time.Minute); strings.Count(log.String(), "no index") != 2 || strings.Contains(log.String(), "secret room") {
			t.Errorf("after two failures the log is: %s", log)
		}
	})
	s := newSite(t, func(s *setup) { s.options.Finder = failing{} })
	s.browser(t).want(http.StatusServiceUnavailable,
		`{"success":false,"error":"unavailable","message":"not all expired locks were swept; try again"}`, http.MethodPost, "/internal/sweep")
	if log := s.log.String(); !strings.Contains(log, "no index") || strings.Contains(log, "secret room") {
		t.Errorf("the log lacks the reason, or holds a room: %s", log)
	}
}

func TestASweepIsForTheAccountsThatMayCall(t *testing.T) {
	v := verifier(t, taskauth.Options{Audience: audience, Accounts: []string{"scheduler@x.test"}})
	b := newSite(t, func(s *setup) { s.options.Tasks = v }).browser(t)
	const path = "/internal/sweep"
	b.want(http.StatusUnauthorized, unauthenticated, http.MethodPost, path)
	b.want(http.StatusForbidden, `{"success":false,"error":"forbidden","message":"this account may not call"}`,
		http.MethodPost, path, "Authorization", "Bearer "+mint(t, "other@x.test", audience))
	b.want(http.StatusOK, `{"swept":0}`, http.MethodPost, path, "Authorization", "Bearer "+mint(t, "scheduler@x.test", audience))
}
