package server_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
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

// A request whose outcome is unknown may have acquired the lock, or not have released it.
func TestALockOfUnknownOutcomeCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := leasetest.NewFaulty(&lease.Memory[document.Lock]{}, nil)
		locks := must(document.New(store, 0))(t)
		h := server.NewServer(t.Context(), locks, nil, cookies(t), server.Options{SessionLocks: 1})
		cookie := begun(t, h)
		for _, c := range []struct {
			method, room string
			fault        leasetest.Plan
			want         int
		}{
			{http.MethodPost, "a", leasetest.Always(leasetest.Unavailable), 503}, {http.MethodPost, "b", nil, 429},
			{http.MethodPost, "b", leasetest.Always(leasetest.Unavailable), 503}, {http.MethodPost, "a", nil, 200}, {http.MethodDelete, "a", leasetest.Always(leasetest.Unavailable), 503}, {http.MethodPost, "b", nil, 429},
			{http.MethodDelete, "a", nil, 200}, {http.MethodPost, "b", nil, 200},
		} {
			store.SetPlan(c.fault)
			if status, body, _ := visit(t, h, c.method, "/api/documents/"+c.room+"/lock", cookie); status != c.want {
				t.Errorf("%s %s: %d %s, want %d", c.method, c.room, status, body, c.want)
			}
		}
	})
}

// delayed delays the first reading of each room by two seconds.
type delayed struct {
	lease.Store[document.Lock]
	read *sync.Map
}

func (d delayed) Load(ctx context.Context, room string) (lease.Cell[document.Lock], error) {
	if _, again := d.read.LoadOrStore(room, true); !again {
		time.Sleep(2 * time.Second)
	}
	return d.Store.Load(ctx, room)
}

// stopped returns the number of requests in progress that a stop waits for.
func stopped(t *testing.T, h *server.Server) int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return h.Drain(ctx)
}

// Two clients want each room. The first request of a room is the last that reaches the store.
func TestRacingRequestsOfASessionStayWithinItsLimit(t *testing.T) {
	for name, race := range map[string]struct {
		method, tab string // of the second request for each room
		want        []int
	}{
		"another client takes the room": {http.MethodPost, "b", []int{200, 200, 429}},
		"the client releases the room":  {http.MethodDelete, "a", []int{200, 200, 200}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := must(document.New(delayed{&lease.Memory[document.Lock]{}, &sync.Map{}}, 0))(t)
				h := server.NewServer(t.Context(), locks, nil, cookies(t), server.Options{SessionLocks: 4})
				cookie, held := begun(t, h), atomic.Int32{}
				ask := func(method, room, tab string) int {
					status, _, _ := visit(t, h, method, "/api/documents/"+room+"/lock", cookie, server.ClientHeader, tab)
					if status == http.StatusOK && method == http.MethodPost {
						held.Add(1)
					}
					return status
				}
				var first sync.WaitGroup
				for i, want := range race.want {
					room := fmt.Sprint(i)
					first.Go(func() { ask(http.MethodPost, room, "a") })
					synctest.Wait()
					if got := ask(race.method, room, race.tab); got != want {
						t.Errorf("room %d: %d, want %d", i, got, want)
					}
				}
				for i := range 4 { // the others are not read at once
					first.Go(func() { ask(http.MethodPost, fmt.Sprint("more", i), "a") })
				}
				if requests := stopped(t, h); requests == 0 {
					t.Error("a stop waits for no request")
				}
				first.Wait()
				if got := held.Load(); got > 4 {
					t.Errorf("the session holds %d locks, want at most 4", got)
				}
			})
		})
	}
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
