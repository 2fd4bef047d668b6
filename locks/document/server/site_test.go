package server_test

import (
	"bytes"
	"cmp"
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

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
	"taskguard/locks/document/server/web"
	"taskguard/repo"
)

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	goleak.VerifyTestMain(m)
}

// hang is the time after which a test gives up.
const hang = 30 * time.Second

var secret = []byte("0123456789abcdef0123456789abcdef")

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

// cookies returns sessions with the secret of the tests.
func cookies(t testing.TB) *server.Cookies {
	t.Helper()
	k := must(server.NewCookies(secret))(t)
	return k
}

// newRooms returns the rooms of an embedded Firestore.
func newRooms(t testing.TB) *repo.Rooms {
	t.Helper()
	b := emulatortest.Embedded(t)
	rooms := must(repo.OpenRooms(t.Context(), b.Project, repo.Options{}, b.Client(t)...))(t)
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
	var err error
	if s.locks, err = document.New(parts.store, parts.ttl); err != nil {
		t.Fatal(err)
	}
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
	jar := must(cookiejar.New(nil))(t)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &browser{t, s, &http.Client{Jar: jar, Transport: transport, Timeout: hang}}
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

// want makes a request and compares the whole answer.
func (b *browser) want(status int, body, method, path string, header ...string) {
	b.t.Helper()
	if s, got := b.ask(method, path, header...); s != status || got != body {
		b.t.Errorf("%s %s: got %d %s, want %d %s", method, path, s, got, status, body)
	}
}

const lockPath = "/api/documents/room/lock"

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

// check fails the test on an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns the value of a call that has to succeed.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}

func TestThePageAndItsFilesAreServedAsTheyAre(t *testing.T) {
	b := newSite(t, nil).browser(t)
	for path, kind := range map[string]string{"/": "text/html", "/index.html": "text/html", "/locks.js": "text/javascript", "/locks.d.ts": "text/plain", "/page.js": "text/javascript", "/page.css": "text/css"} {
		want := must(web.Files.ReadFile(cmp.Or(strings.TrimPrefix(path, "/"), "index.html")))(t)
		if path == "/locks.js" { // its own server
			want = append(want, "\ndefaults.endpoint = new URL('/api/documents', import.meta.url).href;"...)
		}
		got := b.do(http.MethodGet, path, http.NoBody)
		if got.status != http.StatusOK || got.body != string(bytes.TrimSpace(want)) || !strings.HasPrefix(got.header.Get("Content-Type"), kind) {
			t.Errorf("%s: %d, %d bytes, %v", path, got.status, len(got.body), got.header)
		}
		if again := b.do(http.MethodGet, path, http.NoBody, "If-None-Match", got.header.Get("ETag")); again.status != http.StatusNotModified || again.body != "" {
			t.Errorf("%s: unchanged, but sent again: %d", path, again.status)
		}
	}
}

func TestEveryAnswerHasTheSecurityHeaders(t *testing.T) {
	b := newSite(t, nil).browser(t)
	for path, cache := range map[string]string{"/": "private, no-cache", "/locks.js": "private, no-cache", lockPath: "no-store", "/nope": "no-store", "/health/live": "no-store", lockPath + "/ws": "no-store"} {
		h := b.do(http.MethodGet, path, http.NoBody).header
		policy := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'self'", "worker-src 'self' blob:", "connect-src 'self'", "frame-ancestors 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: policy %q lacks %s", path, policy, want)
			}
		}
		if over := b.do(http.MethodGet, path, http.NoBody, "X-Forwarded-Proto", "https").header; over.Get("Strict-Transport-Security") != "max-age=31536000" || h.Get("Strict-Transport-Security") != "" {
			t.Errorf("%s: over https %v, in clear %v", path, over, h)
		}
		if h.Get("X-Frame-Options") != "DENY" || h.Get("X-Content-Type-Options")+h.Get("Referrer-Policy") != "nosniffno-referrer" || h.Get("Cache-Control") != cache {
			t.Errorf("%s: %v", path, h)
		}
	}
}

// The span has the route and not the room. Probes and sockets have no span.
func TestARequestIsASpanWithoutItsRoom(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	b := newSite(t, func(parts *setup) { parts.options.Tracer, parts.options.Finder = tracers.Tracer("x"), failing{} }).browser(t)
	for _, request := range []string{
		"GET /health/live", "GET /health/ready", "GET /api/documents/s3cret/lock/ws", "GET /api/documents/s3cret/lock",
		"PATCH /api/documents/s3cret/lock", "S3CRET /api/documents/s3cret/lock", "GET /s3cret/s3cret", "POST /internal/sweep",
	} {
		method, path, _ := strings.Cut(request, " ")
		b.ask(method, path)
	}
	var got []string
	for _, span := range spans.Ended() {
		line := span.Name()
		for _, a := range span.Attributes() {
			line += " " + a.Value.String()
		}
		if span.SpanKind() != trace.SpanKindServer || (span.Status().Code == codes.Error) != strings.HasSuffix(line, "503") {
			t.Errorf("%s: %v, %v", line, span.SpanKind(), span.Status())
		}
		got = append(got, line)
	}
	want := []string{
		"request GET /api/documents/:roomId/lock 200",
		"request PATCH /api/documents/:roomId/lock 405",
		"request _OTHER /api/documents/:roomId/lock 405",
		"request GET 404",
		"request POST /internal/sweep 503",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("spans:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
