package server_test

import (
	"bufio"
	"context"
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

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
)

// A lock is announced to all, including the sender.
func TestSocket_Events(t *testing.T) {
	s := newSite(t, nil)
	sender, other := s.browser(t), s.browser(t)
	var all []*socket
	for _, b := range []*browser{sender, other, other} {
		l := b.listen(lockPath+"/ws", websocket.DialOptions{})
		l.want(unlocked, document.Current)
		all = append(all, l)
	}

	got := sender.take()
	version := int64(0)
	for _, l := range all {
		m := l.want(locked, document.Acquired)
		want := fmt.Sprintf(`{"type":"DocumentLocked","room_id":"room","holder":%q,"expires_at":T,`+
			`"reason":"acquired","version":%d}`, got.Holder, m.Version)
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

// A failing feed never fails a request.
func TestSocket_FailingFeed(t *testing.T) {
	b := newSite(t, func(s *setup) { s.watcher = noStream{} }).browser(t)
	b.take()
	b.want(http.StatusOK, "", http.MethodPut, lockPath)
	b.listen(lockPath+"/ws", websocket.DialOptions{}).want(locked, document.Current)
	b.want(http.StatusOK, freed, http.MethodDelete, lockPath)
}

// A refusal comes before the upgrade.
func TestSocket_Refusal(t *testing.T) {
	b := newSite(t, nil).browser(t)
	b.want(http.StatusBadRequest, "WebSocket", http.MethodGet, lockPath+"/ws")
	forged := upgrade("Cookie", server.CookieName+"=x")
	b.want(http.StatusUnauthorized, badSession, http.MethodGet, lockPath+"/ws", forged...)
	b.do(http.MethodGet, lockPath+"/ws", http.NoBody, "Upgrade", "websocket") // without a key
	if log := b.site.log.String(); !strings.Contains(log, "operation=subscribe outcome=ok") {
		t.Errorf("the log is %s; want that of a socket", log)
	}
}

// A credential is in no event, no body and no log line, nor is the room's id in the log.
func TestCredential_Hidden(t *testing.T) {
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
		`level=INFO msg="document lock" operation=acquire outcome=ok status=200`,
		`level=DEBUG msg="document lock" operation=show outcome=ok status=200`,
		`level=DEBUG msg="document lock" operation=extend outcome=ok status=200`,
		`level=INFO msg="document lock" operation=extend outcome=not_locked_by_user status=403`,
		`level=INFO msg="document lock" operation=confirm outcome=not_locked_by_user status=403`,
		"room_hash=" + document.Hash("room"),
	} {
		if !strings.Contains(log, line) {
			t.Errorf("the log lacks %s", line)
		}
	}
	secrets := []string{"tab-of-mine", "session/"}
	for _, by := range []*browser{b, other} {
		parts := strings.Split(by.cookie(), ".")
		secrets = append(secrets, parts[1], parts[3])
	}
	for _, text := range append(texts, log) {
		for _, secret := range secrets {
			if strings.Contains(text, secret) || strings.Contains(text, "room=") {
				t.Errorf("%q or the room is in %s", secret, text)
			}
		}
	}
}

// cookie returns the value of the session's cookie.
func (b *browser) cookie() string {
	b.t.Helper()
	r := must.Get(http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.site.url, http.NoBody))(b.t)
	return b.http.Jar.Cookies(r.URL)[0].Value
}

// A client sends no messages.
func TestSocket_ClientMessage(t *testing.T) {
	l := newSite(t, nil).browser(t).listen(lockPath+"/ws", websocket.DialOptions{})
	l.want(unlocked, document.Current)
	must.OK(t, l.conn.Write(t.Context(), websocket.MessageText, []byte(strings.Repeat("x", 100_000))))
	if _, code := l.rest(); code != websocket.StatusPolicyViolation {
		t.Errorf("closed with %v, want a policy violation", code)
	}
}

// A stop closes the sockets, so that clients connect again.
func TestSocket_Stop(t *testing.T) {
	s := newPusherSite(t, nil)
	b := s.browser(t)
	l, p := b.listen(lockPath+"/ws", websocket.DialOptions{}), b.connect()
	l.want(unlocked, document.Current)
	p.mustWatch("documents.room")
	s.stop()
	p.wantError(4200)
	_, plain := l.rest()
	if _, other := p.rest(); plain != websocket.StatusGoingAway || other != 4200 {
		t.Errorf("closed with %v and %v, want going away and 4200", plain, other)
	}
	b.want(http.StatusServiceUnavailable, "stopping", http.MethodGet, lockPath+"/ws", upgrade()...)
	b.take() // requests are answered until the listener is closed
}

func TestSocket_DeadPeer(t *testing.T) {
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

func TestSocket_LivePeer(t *testing.T) {
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

// serveOnPipe opens a socket on a pipe.
func serveOnPipe(w context.Context, t *testing.T, path string, conn net.Conn) {
	locks := must.Get(document.New(&lease.Memory[document.Lock]{}, 0))(t)
	o := server.Options{Pusher: app, Ping: time.Hour}
	h := server.NewServer(w, locks, document.NewFeed(locks, nil, nil), cookies(t), o)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
	for line := range slices.Chunk(upgrade(), 2) {
		r.Header.Set(line[0], line[1])
	}
	h.ServeHTTP(hijacked{httptest.NewRecorder(), conn}, r)
}

// A client that reads nothing is closed and forgotten.
func TestSocket_Blocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &work{Context: t.Context()}
		_, conn := net.Pipe()
		began := time.Now()
		serveOnPipe(w, t, lockPath+"/ws", conn)
		if took := time.Since(began); took != 5*time.Second || w.waiting != 0 {
			t.Errorf("closed after %v, want the 5 s of a message; %d functions wait for the stop", took, w.waiting)
		}
	})
}

// A flood of messages is handled slowly: each would be a read of Firestore, if it were a subscription.
func TestSocket_Flood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs, conn := net.Pipe()
		var both sync.WaitGroup
		defer both.Wait()
		defer theirs.Close()
		both.Go(func() { serveOnPipe(t.Context(), t, appPath, conn) })
		const messages, ping = 100, `{"event":"pusher:ping"}`
		both.Go(func() {
			for range messages {
				_, _ = theirs.Write(append([]byte{0x81, 0x80 | byte(len(ping)), 0, 0, 0, 0}, ping...))
			}
		})
		began := time.Now()
		for range 1 + messages { // a greeting, and the answers
			header := make([]byte, 2)
			_ = must.Get(io.ReadFull(theirs, header))(t)
			_ = must.Get(io.CopyN(io.Discard, theirs, int64(header[1])))(t)
		}
		if took, want := time.Since(began), 60*200*time.Millisecond; took != want {
			t.Errorf("%d messages are handled in %v, want %v", messages, took, want)
		}
	})
}
