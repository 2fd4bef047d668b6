package doclock_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"taskguard/lease/documentlock"
	"taskguard/worker/doclock"
)

// upgrade are the headers of a WebSocket's opening, and more.
func upgrade(more ...string) []string {
	return append([]string{
		"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==",
	}, more...)
}

// told is what a socket says.
type told struct {
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

// next is the next message.
func (s *socket) next() (m told) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	_, data, err := s.conn.Read(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := json.Unmarshal(data, &m); err != nil {
		s.t.Fatal(err)
	}
	m.raw = string(data)
	return m
}

// want reads the next message and compares.
func (s *socket) want(kind, reason string) told {
	s.t.Helper()
	m := s.next()
	if m.Type != kind || m.Reason != reason || m.Room != "room" {
		s.t.Errorf("told %s, want %s, %s", m.raw, kind, reason)
	}
	if locked := kind == "DocumentLocked"; locked != (m.Holder != nil) || locked != (m.Expires != nil) {
		s.t.Errorf("told %s, with a holder and an expiry only if locked", m.raw)
	}
	return m
}

const (
	locked   = "DocumentLocked"
	unlocked = "DocumentUnlocked"
)

func TestASocketIsToldTheCurrentStateFirst(t *testing.T) {
	b := newSite(t, nil).browser(t)
	m := b.listen(lockPath+"/ws", websocket.DialOptions{}).want(unlocked, documentlock.Current)
	if want := fmt.Sprintf(`{"type":"DocumentUnlocked","room_id":"room","holder":null,"expires_at":null,"reason":"current","version":%d}`, m.Version); m.raw != want {
		t.Errorf("told %s, want %s", m.raw, want)
	}
	got, _ := b.take()
	m = b.listen(lockPath+"/ws", websocket.DialOptions{}).want(locked, documentlock.Current)
	want := fmt.Sprintf(`{"type":"DocumentLocked","room_id":"room","holder":%q,"expires_at":T,"reason":"current","version":%d}`, got.Holder, m.Version)
	if iso.ReplaceAllString(m.raw, "T") != want || !m.Expires.Equal(got.ExpiresAt) {
		t.Errorf("told %s, want %s, %v", m.raw, want, got.ExpiresAt)
	}
}

func TestALockIsAnnouncedToEverybodyTheSenderIncluded(t *testing.T) {
	s := newSite(t, nil)
	sender := s.browser(t)
	all := []*socket{sender.listen(lockPath+"/ws", websocket.DialOptions{})}
	for range 3 {
		all = append(all, s.browser(t).listen(lockPath+"/ws", websocket.DialOptions{}))
	}
	for _, l := range all {
		l.want(unlocked, documentlock.Current)
	}
	got, _ := sender.take()
	version := int64(0)
	for _, l := range all {
		m := l.want(locked, documentlock.Acquired)
		if *m.Holder != got.Holder || !m.Expires.Equal(got.ExpiresAt) {
			t.Errorf("told %s, want holder %s, %v", m.raw, got.Holder, got.ExpiresAt)
		}
		version = m.Version
	}
	sender.want(http.StatusOK, freed, http.MethodDelete, lockPath)
	for _, l := range all {
		if m := l.want(unlocked, documentlock.Released); m.Version <= version {
			t.Errorf("version %d after %d", m.Version, version)
		}
	}
}

func TestAHeartbeatIsNotBroadcast(t *testing.T) {
	b := newSite(t, nil).browser(t)
	l := b.listen(lockPath+"/ws", websocket.DialOptions{})
	l.want(unlocked, documentlock.Current)
	b.take()
	l.want(locked, documentlock.Acquired)
	for range 5 {
		if status, body := b.ask(http.MethodPut, lockPath); status != http.StatusOK {
			t.Fatal(status, body)
		}
	}
	b.want(http.StatusOK, freed, http.MethodDelete, lockPath)
	l.want(unlocked, documentlock.Released) // and nothing in between
}

func TestAnExpiryIsAnnouncedAtItsTime(t *testing.T) {
	b := newSite(t, func(s *setup) { s.ttl = time.Second }).browser(t)
	l := b.listen(lockPath+"/ws", websocket.DialOptions{})
	l.want(unlocked, documentlock.Current)
	got, _ := b.take()
	l.want(locked, documentlock.Acquired)
	if m := l.want(unlocked, documentlock.Expired); time.UnixMicro(m.Version).Before(got.ExpiresAt) {
		t.Errorf("told at %v by the store's time, before the end at %v", time.UnixMicro(m.Version), got.ExpiresAt)
	}
}

func TestAnOperatorsUnlockIsAnnounced(t *testing.T) {
	s := newSite(t, nil)
	b := s.browser(t)
	one, two := b.listen(lockPath+"/ws", websocket.DialOptions{}), s.browser(t).listen(lockPath+"/ws", websocket.DialOptions{})
	one.want(unlocked, documentlock.Current)
	two.want(unlocked, documentlock.Current)
	b.take()
	one.want(locked, documentlock.Acquired)
	two.want(locked, documentlock.Acquired)
	if broken, err := s.locks.Break(t.Context(), "room"); !broken || err != nil {
		t.Fatal(broken, err)
	}
	one.want(unlocked, documentlock.Unlocked)
	two.want(unlocked, documentlock.Unlocked)
	b.want(http.StatusNotFound, notFound, http.MethodPut, lockPath)
	if strings.Contains(s.log.String(), "room=") || !strings.Contains(s.log.String(), "room_hash=") {
		t.Errorf("the log names the room by its id, or not at all: %s", s.log)
	}
}

func TestAFailingFeedNeverFailsARequest(t *testing.T) {
	s := newSite(t, func(s *setup) { s.watcher = deaf{} })
	b := s.browser(t)
	b.take()
	if status, body := b.ask(http.MethodPut, lockPath); status != http.StatusOK {
		t.Errorf("PUT: %d %s", status, body)
	}
	b.listen(lockPath+"/ws", websocket.DialOptions{}).want(locked, documentlock.Current)
	b.want(http.StatusOK, freed, http.MethodDelete, lockPath)
}

func TestWhoCannotBeServedLearnsItBeforeTheUpgrade(t *testing.T) {
	b := newSite(t, nil).browser(t)
	b.want(http.StatusBadRequest, `{"success":false,"error":"bad_request","message":"want a WebSocket"}`, http.MethodGet, lockPath+"/ws")
	b.want(http.StatusUnauthorized, badSession, http.MethodGet, lockPath+"/ws", upgrade("Cookie", doclock.CookieName+"=x")...)
}

// What proves who one is, is told to nobody: neither in an event nor in a body,
// nor to the log.
func TestTheCredentialIsInNoEventBodyOrLog(t *testing.T) {
	s := newSite(t, func(s *setup) { s.ttl = 3 * time.Second })
	var said []string
	b, other := s.browser(t), s.browser(t)
	ask := func(b *browser, method, path string) {
		_, body := b.ask(method, path, doclock.ClientHeader, "tab-of-mine")
		said = append(said, body)
	}
	ask(b, http.MethodGet, lockPath)
	ask(other, http.MethodGet, lockPath)
	l := other.listen(lockPath+"/ws", websocket.DialOptions{})
	event := func(kind, reason string) { said = append(said, l.want(kind, reason).raw) }
	event(unlocked, documentlock.Current)
	for _, by := range []*browser{b, other} {
		ask(by, http.MethodPost, lockPath)
		event(locked, documentlock.Acquired)
		for _, each := range []*browser{b, other} {
			ask(each, http.MethodPut, lockPath)
			ask(each, http.MethodGet, lockPath)
			ask(each, http.MethodGet, lockPath+"/confirm?token=1")
		}
		ask(by, http.MethodDelete, lockPath)
		event(unlocked, documentlock.Released)
	}
	ask(b, http.MethodPost, lockPath)
	event(locked, documentlock.Acquired)
	event(unlocked, documentlock.Expired)
	said = append(said, s.log.String())
	if len(said) < 20 {
		t.Fatalf("only %d texts", len(said))
	}
	for _, by := range []*browser{b, other} {
		cookie := by.cookie()
		for _, secret := range []string{strings.Split(cookie, ".")[1], strings.Split(cookie, ".")[3], "tab-of-mine", "session/"} {
			for _, text := range said {
				if strings.Contains(text, secret) {
					t.Errorf("%q is in %s", secret, text)
				}
			}
		}
	}
}

// cookie is the session's, as it was set.
func (b *browser) cookie() string {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.site.url, http.NoBody)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range b.http.Jar.Cookies(r.URL) {
		if c.Name == doclock.CookieName {
			return c.Value
		}
	}
	b.t.Fatal("no session")
	return ""
}
