package server_test

import (
	"context"
	"errors"
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

	"taskguard/emulator/oidc"
	"taskguard/internal/taskauth"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
	"taskguard/repo"
)

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	goleak.VerifyTestMain(m)
}

// hang is the time after which a test gives up.
const hang = 30 * time.Second

const lockPath = "/api/documents/room/lock"

// setup has the parts of a site that a test may change.
type setup struct {
	ttl      time.Duration
	store    lease.Store[document.Lock]
	watcher  document.Watcher
	sessions server.Sessions
	options  server.Options
}

// site is a server over loopback, with an embedded Firestore.
type site struct {
	*server.Server
	url   string
	locks *document.Locks
	rooms *repo.Rooms
	log   *emulatortest.Log
	stop  func() // ends the sockets' work
}

// newRooms returns the rooms of an embedded Firestore.
func newRooms(t testing.TB) *repo.Rooms {
	t.Helper()
	b := emulatortest.Embedded(t)
	rooms := must.Get(repo.OpenRooms(t.Context(), b.Project, repo.Options{}, b.Client(t)...))(t)
	t.Cleanup(func() { _ = rooms.Close() })
	return rooms
}

// newSite starts a server; adapt may be nil.
func newSite(t testing.TB, adapt func(*setup)) *site {
	t.Helper()
	s := &site{rooms: newRooms(t), log: &emulatortest.Log{}}
	parts := setup{store: s.rooms, watcher: s.rooms, sessions: cookies(t)}
	parts.options.Finder = s.rooms
	parts.options.Log = slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if adapt != nil {
		adapt(&parts)
	}
	s.locks = must.Get(document.New(parts.store, parts.ttl))(t)
	feed := document.NewFeed(s.locks, parts.watcher, parts.options.Log)
	feeding, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { feed.Run(feeding) })
	work, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.Server = server.NewServer(work, s.locks, feed, parts.sessions, parts.options)
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
	jar := must.Get(cookiejar.New(nil))(t)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &browser{t, s, &http.Client{Jar: jar, Transport: transport, Timeout: hang}}
}

// user returns a browser with a session.
func (s *site) user(t testing.TB) *browser {
	t.Helper()
	b := s.browser(t)
	b.want(http.StatusOK, "", http.MethodGet, "/")
	return b
}

// reply is an answer. Its body is empty after an upgrade.
type reply struct {
	status int
	body   string
	header http.Header
}

// do makes a request. header has names and values in turn. Any goroutine may call it.
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

// ask calls do without a body.
func (b *browser) ask(method, path string, header ...string) (status int, body string) {
	b.t.Helper()
	got := b.do(method, path, http.NoBody, header...)
	return got.status, got.body
}

// want makes a request, whose answer must have that status, and the text in its body.
func (b *browser) want(status int, text, method, path string, header ...string) {
	b.t.Helper()
	if s, got := b.ask(method, path, header...); s != status || !strings.Contains(got, text) {
		b.t.Errorf("%s %s: got %d %s, want %d %s", method, path, s, got, status, text)
	}
}

// refusing is a store whose reads fail.
type refusing struct {
	lease.Store[document.Lock]
	err error
}

func (r refusing) Load(context.Context, string, lease.Want) (lease.Cell[document.Lock], error) {
	return lease.Cell[document.Lock]{}, r.err
}

// noStream is a change stream that always fails.
type noStream struct{}

func (noStream) Watch(context.Context, func(document.Snapshot)) error {
	return errors.New("no stream")
}

// memory returns a server without sockets, for tests in virtual time.
func memory(t testing.TB, sessions server.Sessions) *server.Server {
	t.Helper()
	return serverOf(t, &lease.Memory[document.Lock]{}, sessions)
}

// serverOf returns a server of the locks in store, without sockets.
func serverOf(t testing.TB, store lease.Store[document.Lock], sessions server.Sessions) *server.Server {
	t.Helper()
	locks := must.Get(document.New(store, 0))(t)
	return server.NewServer(t.Context(), locks, nil, sessions, server.Options{})
}

// visit makes a request with a Cookie header, unless that is empty. It returns the session cookie
// that the answer sets, if any.
func visit(
	t testing.TB, h http.Handler, method, path, cookie string, header ...string,
) (status int, body string, set *http.Cookie) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
	if cookie != "" {
		r.Header.Set("Cookie", cookie)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	resp := w.Result()
	defer resp.Body.Close()
	for _, c := range resp.Cookies() {
		if c.Name == server.CookieName {
			set = c
		}
	}
	return resp.StatusCode, strings.TrimSpace(w.Body.String()), set
}

// begun begins a session, and returns its cookie as a browser sends it.
func begun(t testing.TB, h http.Handler) string {
	t.Helper()
	_, _, c := visit(t, h, http.MethodGet, "/", "")
	if c == nil {
		t.Fatal("no session was begun")
		return ""
	}
	return c.Name + "=" + c.Value
}

const audience = "https://doclock.example.test"

// issuer returns one issuer for all tests, since a key takes long to make.
var issuer = sync.OnceValue(oidc.NewIssuer)

func mint(t testing.TB, email, audience string) string {
	t.Helper()
	return must.Get(issuer().Token(email, audience))(t)
}

// verifier returns a verifier of the issuer's tokens.
func verifier(t testing.TB, o taskauth.Options) *taskauth.Verifier {
	t.Helper()
	keys := httptest.NewServer(issuer())
	o.KeysURL = keys.URL
	t.Cleanup(keys.Close)
	return must.Get(taskauth.New(o))(t)
}

func withAccounts(t testing.TB) func(*setup) {
	t.Helper()
	v := verifier(t, taskauth.Options{Audience: audience, AnyAccount: true})
	return func(s *setup) { s.sessions = server.Accounts{Verifier: v} }
}
