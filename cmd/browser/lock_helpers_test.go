package browser

import (
	"context"
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
const (
	// instrumented defines fail(method, times), which makes the next fetches with
	// the method fail; next(type), the next event of a type; failure(promise), its
	// error's code; quick, options with short waits; readonly, the reasons of
	// onReadonly; clocks, the Workers started and ended; brief(event), its type and
	// details; reset, which undoes what a script has changed of these; and real, the
	// browser's own fetch.
	instrumented = `
		const faults = {};
		const real = globalThis.fetch;
		const faulty = (url, init = {}) => {
			if (!(faults[init.method] > 0)) return real(url, init);
			faults[init.method]--;
			return Promise.reject(new TypeError('injected'));
		};
		globalThis.fail = (method, times) => { faults[method] = times; };
		globalThis.next = (type) => new Promise((resolve) => {
			const stop = locks.subscribeAllLockEvents((event) => { if (event.type === type) { stop(); resolve(event); } });
		});
		globalThis.failure = (promise) => promise.then(() => 'none', (error) => error.name === 'ProjectLockError' ? error.code : error.name);
		globalThis.readonly = [];
		globalThis.quick = { resource: 'room', backoffMs: [10, 20], onReadonly: ({ reason }) => readonly.push(reason) };
		globalThis.clocks = { started: 0, ended: 0 };
		globalThis.Worker = class extends Worker {
			constructor(...of) { super(...of); clocks.started++; }
			terminate() { clocks.ended++; super.terminate(); }
		};
		globalThis.brief = (e) => [e.type.replace('lock:', ''), e.strategy, e.code, e.warning, e.reason, e.info?.reason,
			e.retry != null && 'retry=' + e.retry, e.retryable && 'retryable', e.waitMs != null && 'wait=' + e.waitMs, e.force && 'force',
		].filter(Boolean).join(' ');
		globalThis.reset = () => {
			globalThis.fetch = faulty;
			for (const method in faults) delete faults[method];
			events.length = readonly.length = 0;
		};`
	withoutWebLocks = `delete Navigator.prototype.locks;`
	withoutWorkers  = `delete globalThis.Worker;`
	// withoutTimers disables the page's own timers, as a browser nearly does in a
	// hidden tab.
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
	locks := must(document.New(rooms, ttl))(t)
	sessions := must(server.NewCookies([]byte(strings.Repeat("secret", 6))))(t)
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
	conn := must(store.Dial())(t)
	rooms := must(repo.OpenRooms(context.Background(), "browser", repo.Options{}, option.WithGRPCConn(conn)))(t)
	t.Cleanup(func() {
		if err := rooms.Close(); err != nil {
			t.Error(err)
		}
	})
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
	for deadline := time.Now().Add(Patience); ; time.Sleep(20 * time.Millisecond) {
		state, err := s.locks.Get(t.Context(), room, "")
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%s does not become free: %v", room, err)
		}
		if !state.Locked {
			return
		}
	}
}

// hold takes the room for another owner.
func (s *lockSite) hold(t *testing.T, room string) {
	t.Helper()
	must(s.locks.Acquire(t.Context(), room, "another"))(t)
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
	b.Eval(`import('/locks.js').then((module) => {
		globalThis.locks = module;
		globalThis.events = [];
		module.subscribeAllLockEvents((event) => events.push(event));
		reset();
	})`)
	return b
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
	check(b.T, json.Unmarshal([]byte(b.Eval(`events.map(brief).join('; ')`)), &got))
	if all := strings.Join(want, "; "); got != all {
		b.T.Errorf("events:\n%s\nwant:\n%s", got, all)
	}
}
