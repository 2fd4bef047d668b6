package browser

import (
	"context"
	_ "embed" // scripts
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/api/option"

	"taskguard/emulator/firestore"
	"taskguard/internal/testing/must"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
	"taskguard/repo"
)

const (
	// short is a TTL short enough to wait for, and long enough for a busy
	// machine's heartbeats.
	short = 8 * time.Second
	// long is a TTL that no test waits for: a room becomes free only by a release.
	long = time.Hour
)

// Scripts that run in a tab before the page's own.
var (
	//go:embed testdata/instrumented.js
	instrumented string
	//go:embed testdata/serverless.js
	serverless string
)

const (
	withoutWebLocks = `delete Navigator.prototype.locks;`
	withoutWorkers  = `delete globalThis.Worker;`
	// withoutTimers disables the page's own timers, as a browser nearly does in a hidden tab.
	withoutTimers = `globalThis.setTimeout = () => 0;`
)

// lockSite is a document lock server on an embedded Firestore.
type lockSite struct {
	url   string
	locks *document.Locks

	mu       sync.Mutex
	requests map[string]int // to the lock's route, by method
}

// newLockSite serves on the loopback; locks live for ttl.
func newLockSite(t *testing.T, ttl time.Duration) *lockSite {
	t.Helper()
	rooms := newRooms(t)
	locks := must.Get(document.New(rooms, ttl))(t)
	sessions := must.Get(server.NewCookies([]byte(strings.Repeat("secret", 6))))(t)
	work, stop := context.WithCancel(context.Background())
	feed := document.NewFeed(locks, rooms, nil)
	var running sync.WaitGroup
	running.Go(func() { feed.Run(work) })
	server := server.NewServer(work, locks, feed, sessions, server.Options{Finder: rooms})
	s := &lockSite{locks: locks, requests: map[string]int{}}
	listening := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/lock") {
			s.mu.Lock()
			s.requests[r.Method]++
			s.mu.Unlock()
		}
		server.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		stop()
		draining, done := context.WithTimeout(context.Background(), Patience)
		defer done()
		if left := server.Drain(draining); left > 0 {
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
	conn := must.Get(store.Dial())(t)
	rooms := must.Get(repo.OpenRooms(context.Background(), "browser", repo.Options{}, option.WithGRPCConn(conn)))(t)
	t.Cleanup(func() { must.OK(t, rooms.Close()) })
	return rooms
}

// page is the address of a room's page.
func (s *lockSite) page(room string) string { return s.url + "/?room=" + url.QueryEscape(room) }

// count returns the number of requests to the lock's route so far.
func (s *lockSite) count(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[method]
}

// free waits until the room is free.
func (s *lockSite) free(t *testing.T, room string) {
	t.Helper()
	if !until(func() bool { return !must.Get(s.locks.Get(t.Context(), room, ""))(t).Locked }) {
		t.Fatalf("%s does not become free", room)
	}
}

// wantFree checks that nothing of a page holds the room.
func (s *lockSite) wantFree(b *Tab) {
	b.T.Helper()
	s.free(b.T, "room")
	b.Is(`clocks.started === clocks.ended`)
	b.want(`navigator.locks?.query().then(({ held }) => held.length) ?? 0`, "0")
}

// hold takes the room for another owner.
func (s *lockSite) hold(t *testing.T, room string) {
	t.Helper()
	must.Get(s.locks.Acquire(t.Context(), room, "another"))(t)
}

// unlock frees the room as an operator does.
func (s *lockSite) unlock(t *testing.T, room string) {
	t.Helper()
	if broken, err := s.locks.Unlock(t.Context(), room); err != nil || !broken {
		t.Fatalf("an operator's unlock: %t, %v", broken, err)
	}
}

// load opens an instrumented tab with the module as `locks` and its events in
// `events`. The page has no lock and no socket of its own.
func (p *Profile) load(s *lockSite, scripts ...string) *Tab {
	b := p.Open(s.url+"/page.css", append([]string{instrumented}, scripts...)...)
	b.imported("/locks.js")
	b.Eval(`reset()`)
	return b
}

// imported imports the module from url.
func (b *Tab) imported(url string) {
	b.T.Helper()
	b.Eval(`import('` + url + `').then((module) => {
		globalThis.locks = module;
		globalThis.events = [];
		module.subscribeAllLockEvents((event) => events.push(event));
	})`)
}

// runCases runs the cases that a script has left in cases, and after each the checks of after.
func (b *Tab) runCases(after func(b *Tab)) {
	var names []string
	must.OK(b.T, json.Unmarshal([]byte(b.Eval(`Object.keys(cases)`)), &names))
	for _, name := range names {
		b.T.Run(name, func(t *testing.T) {
			b := b.In(t)
			b.Eval(`reset()`)
			b.want(fmt.Sprintf(`cases[%q][0]()`, name), b.Eval(fmt.Sprintf(`cases[%q][1]`, name)))
			after(b)
		})
	}
}

// shows waits until the page shows this state: free, mine, other.
func (b *Tab) shows(state string) {
	b.T.Helper()
	b.Is(fmt.Sprintf(`document.getElementById('state').dataset.state === %q`, state))
}

// want evaluates script and compares its JSON.
func (b *Tab) want(script, want string) {
	b.T.Helper()
	if got := b.Eval(script); got != want {
		b.T.Errorf("%s\nreturned %s, want %s", script, got, want)
	}
}

// wantEvents compares the events so far, in brief: their types and those details that do not vary.
func (b *Tab) wantEvents(want ...string) {
	b.T.Helper()
	var got string
	must.OK(b.T, json.Unmarshal([]byte(b.Eval(`events.map(brief).join('; ')`)), &got))
	if all := strings.Join(want, "; "); got != all {
		b.T.Errorf("events:\n%s\nwant:\n%s", got, all)
	}
}
