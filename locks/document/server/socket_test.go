package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"taskguard/lease"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
)

// upgrade returns the headers that open a WebSocket, and more.
func upgrade(more ...string) []string {
	return append([]string{
		"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==",
	}, more...)
}

// received is a message from a socket.
type received struct {
	Type    string
	Room    string     `json:"room_id"`
	Holder  *string    //
	Expires *time.Time `json:"expires_at"`
	Reason  string
	Version int64

	raw string
}

// socket is a listener.
type socket struct {
	t    testing.TB
	conn *websocket.Conn
}

// listen opens a socket with the browser's cookies.
func (b *browser) listen(path string, o websocket.DialOptions) *socket {
	b.t.Helper()
	o.HTTPClient = &http.Client{Jar: b.http.Jar, Transport: b.http.Transport}
	ctx, cancel := context.WithTimeout(b.t.Context(), hang)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, b.site.url+path, &o) //nolint:bodyclose // the library closes it
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.CloseNow() })
	return &socket{b.t, conn}
}

// next returns the next message.
func (s *socket) next() (m received) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	_, data, err := s.conn.Read(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	check(s.t, json.Unmarshal(data, &m))
	m.raw = string(data)
	return m
}

// want reads the next message and compares.
func (s *socket) want(kind, reason string) received {
	s.t.Helper()
	m := s.next()
	if m.Type != kind || m.Reason != reason || m.Room != "room" {
		s.t.Errorf("got %s, want %s, %s", m.raw, kind, reason)
	}
	if locked := kind == "DocumentLocked"; locked != (m.Holder != nil) || locked != (m.Expires != nil) {
		s.t.Errorf("got %s, want a holder and an expiry only if locked", m.raw)
	}
	return m
}

const (
	locked   = "DocumentLocked"
	unlocked = "DocumentUnlocked"
)

func TestALockIsAnnouncedToAllIncludingTheSender(t *testing.T) {
	s := newSite(t, nil)
	sender, other := s.browser(t), s.browser(t)
	var all []*socket
	for _, b := range []*browser{sender, other, other} {
		l := b.listen(lockPath+"/ws", websocket.DialOptions{})
		m := l.want(unlocked, document.Current)
		if want := fmt.Sprintf(`{"type":"DocumentUnlocked","room_id":"room","holder":null,"expires_at":null,"reason":"current","version":%d}`, m.Version); m.raw != want {
			t.Errorf("got %s, want %s", m.raw, want)
		}
		all = append(all, l)
	}

	got, _ := sender.take()
	version := int64(0)
	for _, l := range all {
		m := l.want(locked, document.Acquired)
		want := fmt.Sprintf(`{"type":"DocumentLocked","room_id":"room","holder":%q,"expires_at":T,"reason":"acquired","version":%d}`, got.Holder, m.Version)
		if iso.ReplaceAllString(m.raw, "T") != want || !m.Expires.Equal(got.ExpiresAt) {
			t.Errorf("got %s, want %s, %v", m.raw, want, got.ExpiresAt)
		}
		version = m.Version
	}
	sender.want(http.StatusOK, freed, http.MethodDelete, lockPath)
	for _, l := range all {
		if m := l.want(unlocked, document.Released); m.Version <= version {
			t.Errorf("version %d after %d", m.Version, version)
		}
	}
}

func TestAFailingFeedNeverFailsARequest(t *testing.T) {
	s := newSite(t, func(s *setup) { s.watcher = noStream{} })
	b := s.browser(t)
	b.take()
	if status, body := b.ask(http.MethodPut, lockPath); status != http.StatusOK {
		t.Errorf("PUT: %d %s", status, body)
	}
	b.listen(lockPath+"/ws", websocket.DialOptions{}).want(locked, document.Current)
	b.want(http.StatusOK, freed, http.MethodDelete, lockPath)
}

func TestARefusalComesBeforeTheUpgrade(t *testing.T) {
	b := newSite(t, nil).browser(t)
	b.want(http.StatusBadRequest, `{"success":false,"error":"bad_request","message":"want a WebSocket"}`, http.MethodGet, lockPath+"/ws")
	b.want(http.StatusUnauthorized, badSession, http.MethodGet, lockPath+"/ws", upgrade("Cookie", server.CookieName+"=x")...)
	b.do(http.MethodGet, lockPath+"/ws", http.NoBody, "Upgrade", "websocket") // without a key
	if log := b.site.log.String(); !strings.Contains(log, "operation=subscribe outcome=ok") {
		t.Errorf("the log is %s; want that of a socket", log)
	}
}

// A credential is in no event, no body and no log line, nor is the room's id in the log.
func TestTheCredentialIsInNoEventBodyOrLog(t *testing.T) {
	s := newSite(t, func(s *setup) { s.ttl = time.Second })
	var texts []string
	b, other := s.browser(t), s.browser(t)
	ask := func(b *browser, method, path string) {
		_, body := b.ask(method, path, server.ClientHeader, "tab-of-mine")
		texts = append(texts, body)
	}
	ask(b, http.MethodGet, lockPath)
	l := other.listen(lockPath+"/ws", websocket.DialOptions{})
	event := func(kind, reason string) { texts = append(texts, l.want(kind, reason).raw) }
	event(unlocked, document.Current)
	for _, by := range []*browser{b, other} {
		ask(by, http.MethodPost, lockPath)
		event(locked, document.Acquired)
		for _, each := range []*browser{b, other} {
			ask(each, http.MethodPut, lockPath)
			ask(each, http.MethodGet, lockPath)
			ask(each, http.MethodGet, lockPath+"/confirm?token=1")
		}
		ask(by, http.MethodDelete, lockPath)
		event(unlocked, document.Released)
	}
	ask(b, http.MethodPost, lockPath)
	event(locked, document.Acquired)
	event(unlocked, document.Expired)
	log := s.log.String()
	for _, line := range []string{
		"INFO operation=acquire outcome=ok status=200", "DEBUG operation=show outcome=ok status=200", "DEBUG operation=extend outcome=ok status=200",
		"INFO operation=extend outcome=not_locked_by_user status=403", "INFO operation=confirm outcome=not_locked_by_user status=403",
	} {
		if level, rest, _ := strings.Cut(line, " "); !strings.Contains(log, "level="+level+` msg="document lock" `+rest) {
			t.Errorf("the log lacks %s", line)
		}
	}
	if strings.Contains(log, "room=") || !strings.Contains(log, "room_hash="+document.Hash("room")) {
		t.Errorf("the log shows the room's id, or no hash of it: %s", log)
	}
	for _, by := range []*browser{b, other} {
		cookie := by.cookie()
		for _, secret := range []string{strings.Split(cookie, ".")[1], strings.Split(cookie, ".")[3], "tab-of-mine", "session/"} {
			for _, text := range append(texts, log) {
				if strings.Contains(text, secret) {
					t.Errorf("%q is in %s", secret, text)
				}
			}
		}
	}
}

// cookie returns the value of the session's cookie.
func (b *browser) cookie() string {
	b.t.Helper()
	r := must(http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.site.url, http.NoBody))(b.t)
	for _, c := range b.http.Jar.Cookies(r.URL) {
		if c.Name == server.CookieName {
			return c.Value
		}
	}
	b.t.Fatal("no session")
	return ""
}

func TestAMessageOfTheClientClosesTheSocket(t *testing.T) {
	b := newSite(t, nil).browser(t)
	l := b.listen(lockPath+"/ws", websocket.DialOptions{})
	l.want(unlocked, document.Current)
	check(t, l.conn.Write(t.Context(), websocket.MessageText, []byte(strings.Repeat("x", 100_000))))
	if got := l.closed(); got != websocket.StatusPolicyViolation {
		t.Errorf("closed with %v, want a policy violation", got)
	}
}

// closed returns the code with which the server closes the socket.
func (s *socket) closed() websocket.StatusCode {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	for {
		if _, _, err := s.conn.Read(ctx); err != nil {
			if ctx.Err() != nil {
				s.t.Fatal("the socket is left open")
			}
			return websocket.CloseStatus(err)
		}
	}
}

func TestAStopClosesTheSocketsSoThatClientsConnectAgain(t *testing.T) {
	s := newPusherSite(t, nil)
	b := s.browser(t)
	l, p := b.listen(lockPath+"/ws", websocket.DialOptions{}), b.connect()
	l.want(unlocked, document.Current)
	p.subscribe("documents.room", "")
	p.wantEvent("documents.room", unlocked, document.Current)
	s.stop()
	p.wantError(4200)
	if got, other := l.closed(), p.closed(); got != websocket.StatusGoingAway || other != 4200 {
		t.Errorf("closed with %v and %v, want going away and 4200", got, other)
	}
	b.want(http.StatusServiceUnavailable, `{"success":false,"error":"unavailable","message":"this instance is stopping; try again"}`,
		http.MethodGet, lockPath+"/ws", upgrade()...)
	b.take() // requests are answered until the listener is closed
}

func TestADeadPeerIsClosed(t *testing.T) {
	s := newPusherSite(t, func(s *setup) { s.options.Ping = 20 * time.Millisecond })
	b := s.browser(t)
	b.listen(lockPath+"/ws", websocket.DialOptions{}).next()
	p := b.connect() // neither reads anything more, and so answers a ping
	draining, done := context.WithTimeout(t.Context(), hang)
	defer done()
	if left := s.Drain(draining); left != 0 {
		t.Errorf("%d sockets are left open", left)
	}
	p.wantError(4201)
}

// work is a context that counts the functions that wait for its end.
type work struct {
	context.Context
	waiting int
}

// Value returns nil, without which context.AfterFunc would not call this AfterFunc.
func (*work) Value(any) any { return nil }

func (w *work) AfterFunc(f func()) (stop func() bool) {
	w.waiting++
	end := context.AfterFunc(w.Context, f)
	return func() bool { w.waiting--; return end() }
}

// hijacked is an answer whose connection is a pipe, which has no buffer.
type hijacked struct {
	*httptest.ResponseRecorder
	conn net.Conn
}

func (h hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), nil
}

func TestAClientThatReadsNothingIsClosedAndForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := must(document.New(&lease.Memory[document.Lock]{}, 0))(t)
		w := &work{Context: t.Context()}
		h := server.NewServer(w, locks, document.NewFeed(locks, nil, nil), cookies(t), server.Options{})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, lockPath+"/ws", http.NoBody)
		for line := range slices.Chunk(upgrade(), 2) {
			r.Header.Set(line[0], line[1])
		}
		_, conn := net.Pipe()
		began := time.Now()
		h.ServeHTTP(hijacked{httptest.NewRecorder(), conn}, r)
		if took := time.Since(began); took != 5*time.Second || w.waiting != 0 {
			t.Errorf("closed after %v, want the 5 s of a message; %d functions wait for the stop", took, w.waiting)
		}
	})
}

// Each of the messages would be a read of Firestore, if it were a subscription.
func TestAFloodOfMessagesIsHandledSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := must(document.New(&lease.Memory[document.Lock]{}, 0))(t)
		h := server.NewServer(t.Context(), locks, document.NewFeed(locks, nil, nil), cookies(t), server.Options{Pusher: app, Ping: time.Hour})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, appPath, http.NoBody)
		for line := range slices.Chunk(upgrade(), 2) {
			r.Header.Set(line[0], line[1])
		}
		theirs, conn := net.Pipe()
		var both sync.WaitGroup
		defer both.Wait()
		defer theirs.Close()
		both.Go(func() { h.ServeHTTP(hijacked{httptest.NewRecorder(), conn}, r) })
		const messages, ping = 100, `{"event":"pusher:ping"}`
		both.Go(func() {
			for range messages {
				_, _ = theirs.Write(append([]byte{0x81, 0x80 | byte(len(ping)), 0, 0, 0, 0}, ping...))
			}
		})
		began := time.Now()
		for range 1 + messages { // a greeting, and the answers
			header := make([]byte, 2)
			_ = must(io.ReadFull(theirs, header))(t)
			_ = must(io.CopyN(io.Discard, theirs, int64(header[1])))(t)
		}
		if took, want := time.Since(began), 60*200*time.Millisecond; took != want {
			t.Errorf("%d messages are handled in %v, want %v", messages, took, want)
		}
	})
}

func TestALivePeerStaysConnected(t *testing.T) {
	const ping = time.Second // also the time for its answer
	b := newSite(t, func(s *setup) { s.options.Ping = ping }).browser(t)
	l := b.listen(lockPath+"/ws", websocket.DialOptions{})
	l.want(unlocked, document.Current)
	var posting sync.WaitGroup
	posting.Go(func() {
		time.Sleep(2*ping + ping/2)
		b.ask(http.MethodPost, lockPath)
	})
	l.want(locked, document.Acquired) // reading answers the pings
	posting.Wait()
}
