package browser

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/api/option"

	"taskguard/emulator/firestore"
	"taskguard/lease/documentlock"
	"taskguard/repo"
	"taskguard/worker/doclock"
)

// site is a document lock server on an embedded Firestore.
type site struct {
	url   string
	locks *documentlock.Locks

	mu    sync.Mutex
	asked map[string]int // lock requests by method
}

// newSite serves on the loopback; locks live for ttl.
func newSite(t *testing.T, ttl time.Duration) *site {
	t.Helper()
	rooms := newRooms(t)
	locks, err := documentlock.New(rooms, ttl)
	if err != nil {
		t.Fatal(err)
	}
	sessions, err := doclock.NewCookies([]byte(strings.Repeat("secret", 6)))
	if err != nil {
		t.Fatal(err)
	}
	work, stop := context.WithCancel(context.Background())
	feed := documentlock.NewFeed(locks, rooms, documentlock.FeedOptions{})
	var running sync.WaitGroup
	running.Go(func() { feed.Run(work) })
	server := doclock.NewServer(work, locks, feed, sessions, doclock.Options{Finder: rooms})
	s := &site{locks: locks, asked: map[string]int{}}
	listening := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/lock") {
			s.mu.Lock()
			s.asked[r.Method]++
			s.mu.Unlock()
		}
		server.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		stop()
		drained, done := context.WithTimeout(context.Background(), patience)
		defer done()
		if left := server.Drain(drained); left > 0 {
			t.Errorf("%d sockets never ended", left)
		}
		listening.CloseClientConnections()
		listening.Close()
		running.Wait()
	})
	s.url = listening.URL
	return s
}

func newRooms(t *testing.T) *repo.Rooms {
	t.Helper()
	store := firestore.NewServer(firestore.Options{})
	t.Cleanup(store.Close)
	conn, err := store.Dial()
	if err != nil {
		t.Fatal(err)
	}
	rooms, err := repo.OpenRooms(context.Background(), "browser", repo.RoomOptions{}, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rooms.Close(); err != nil {
			t.Error(err)
		}
	})
	return rooms
}

// room is the page's address for a room.
func (s *site) room(id string) string { return s.url + "/?room=" + url.QueryEscape(id) }

// requests is how many of method there were at locks so far.
func (s *site) requests(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[method]
}

// locked reports whether anybody holds the room.
func (s *site) locked(t *testing.T, room string) bool {
	t.Helper()
	state, err := s.locks.Get(t.Context(), room, "the test")
	if err != nil {
		t.Fatal(err)
	}
	return state.Locked
}

// free waits until nobody holds the room.
func (s *site) free(t *testing.T, room string) {
	t.Helper()
	for deadline := time.Now().Add(patience); s.locked(t, room); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the room is never freed")
		}
	}
}
