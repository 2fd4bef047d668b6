package doclock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/documentlock"
	"taskguard/repo"
	"taskguard/worker/doclock"
)

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	goleak.VerifyTestMain(m)
}

// hang is when a test gives up on something that should come at once.
const hang = 30 * time.Second

var secret = []byte("0123456789abcdef0123456789abcdef")

// setup is what a test may change of a site.
type setup struct {
	ttl      time.Duration
	store    lease.Store[documentlock.Lock]
	watcher  documentlock.Watcher
	finder   documentlock.Finder
	sessions doclock.Sessions
	options  doclock.Options
	locks    doclock.Locks // nil: of the store
}

// site is a server over loopback, with an embedded Firestore.
type site struct {
	*doclock.Server
	url   string
	locks *documentlock.Locks
	rooms *repo.Rooms
	log   *emulatortest.Log
	stop  func() // ends the sockets' work
}

// cookies are sessions of the tests' secret.
func cookies(t testing.TB) *doclock.Cookies {
	t.Helper()
	k, err := doclock.NewCookies(secret)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// rooms are of an embedded Firestore.
func newRooms(t testing.TB) *repo.Rooms {
	t.Helper()
	b := emulatortest.Embedded(t)
	rooms, err := repo.OpenRooms(t.Context(), b.Project, repo.Options{}, b.Client(t)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rooms.Close() })
	return rooms
}

// newSite starts a server; adapt may be nil.
func newSite(t testing.TB, adapt func(*setup)) *site {
	t.Helper()
	s := &site{rooms: newRooms(t), log: &emulatortest.Log{}}
	with := setup{store: s.rooms, watcher: s.rooms, finder: s.rooms, sessions: cookies(t)}
	with.options.Log = slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if adapt != nil {
		adapt(&with)
	}
	with.options.Finder = with.finder
	var err error
	if s.locks, err = documentlock.New(with.store, with.ttl); err != nil {
		t.Fatal(err)
	}
	feed := documentlock.NewFeed(s.locks, with.watcher, with.options.Log)
	feeding, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { feed.Run(feeding) })
	work, stop := context.WithCancel(context.Background())
	s.stop = stop
	if with.locks == nil {
		with.locks = s.locks
	}
	s.Server = doclock.NewServer(work, with.locks, feed, with.sessions, with.options)
	server := httptest.NewServer(s)
	s.url = server.URL
	t.Cleanup(func() {
		stop()
		draining, done := context.WithTimeout(context.Background(), hang)
		defer done()
		if left := s.Drain(draining); left != 0 {
			t.Errorf("%d sockets are left open", left)
		}
		server.Close()
		end()
		running.Wait()
	})
	return s
}

// browser keeps its cookies.
type browser struct {
	t    testing.TB
	site *site
	http *http.Client
}

func (s *site) browser(t testing.TB) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &browser{t, s, &http.Client{Jar: jar, Transport: transport, Timeout: hang}}
}

// reply is an answer, read whole unless it is an upgrade.
type reply struct {
	status int
	body   string
	header http.Header
}

// do makes a request; headers are name, value, name, value. Any goroutine may call
// it.
func (b *browser) do(method, path string, body io.Reader, header ...string) reply {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.site.url+path, body)
	if err != nil {
		b.t.Error(err)
		return reply{}
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	resp, err := b.http.Do(r)
	if err != nil {
		b.t.Error(err)
		return reply{}
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return reply{status: resp.StatusCode, header: resp.Header}
	}
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Error(err)
		return reply{}
	}
	return reply{resp.StatusCode, strings.TrimSpace(string(data)), resp.Header}
}

// ask is do without a body.
func (b *browser) ask(method, path string, header ...string) (status int, body string) {
	b.t.Helper()
	got := b.do(method, path, http.NoBody, header...)
	return got.status, got.body
}

// want compares a whole answer.
func (b *browser) want(status int, body, method, path string, header ...string) {
	b.t.Helper()
	if s, got := b.ask(method, path, header...); s != status || got != body {
		b.t.Errorf("%s %s: got %d %s, want %d %s", method, path, s, got, status, body)
	}
}

const lockPath = "/api/documents/room/lock"

// refusing is a store that cannot be read.
type refusing struct {
	lease.Store[documentlock.Lock]
	err error
}

func (r refusing) Load(context.Context, string) (lease.Cell[documentlock.Lock], error) {
	return lease.Cell[documentlock.Lock]{}, r.err
}

// unreachable are locks whose store does not answer.
type unreachable struct{ doclock.Locks }

func (unreachable) Get(context.Context, string, string) (documentlock.State, error) {
	return documentlock.State{}, fmt.Errorf("%w: no connection", lease.ErrUnavailable)
}

// noStream is a change stream that never works.
type noStream struct{}

func (noStream) Watch(context.Context, func(documentlock.Snapshot)) error {
	return errors.New("no stream")
}
