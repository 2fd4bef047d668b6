package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"taskguard/internal/testing/must"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
)

func TestPusher_Events(t *testing.T) {
	s := newPusherSite(t, func(s *setup) { s.ttl = 2 * time.Second })
	b := s.browser(t)
	p := b.connect()
	const channel = "documents.room"
	p.wantSubscribed(channel, "")
	p.wantEvent(channel, unlocked, document.Current) // perhaps freed while the client was away
	got := b.take()
	m := p.wantEvent(channel, locked, document.Acquired)
	if *m.Holder != got.Holder || !m.Expires.Equal(got.ExpiresAt) {
		t.Errorf("got %+v, want holder %s, %v", m, got.Holder, got.ExpiresAt)
	}
	late := s.browser(t).connect()
	late.wantSubscribed(channel, "")
	late.wantEvent(channel, locked, document.Current)
	b.want(http.StatusOK, freed, http.MethodDelete, lockPath)
	for _, each := range []*pusher{p, late} {
		each.wantEvent(channel, unlocked, document.Released)
	}
	late.unsubscribe(channel)
	late.wantSubscribed("documents.other", "") // begins after the end of the first: a ping would be answered before
	late.wantEvent("documents.other", unlocked, document.Current)
	b.take()
	p.wantEvent(channel, locked, document.Acquired)
	p.wantEvent(channel, unlocked, document.Expired)
	late.wantAlive()
}

func TestPusher_Channels(t *testing.T) {
	t.Run("an escaped channel names its room", func(t *testing.T) {
		s := newPusherSite(t, nil)
		p := s.browser(t).connect()
		p.wantForeign(
			"documents.a 1", "documents.", "documents.=2", "documents.=GG", "documents.=2F", "documents.a=00b",
			"documents.=FF", "documents.a/b", "Documents.room", "orders.1", "presence-documents.room",
			"private-encrypted-documents.room", "", "documents."+strings.Repeat("x", 155),
		)
		longest := strings.Repeat("x", 154)
		for channel, room := range map[string]string{
			"documents.=E6=96=87=E6=9B=B8=201": "文書 1",
			"documents.a@b,c;d.e_f-G=3D":       "a@b,c;d.e_f-G=",
			"documents." + longest:             longest,
		} {
			must.Get(s.locks.Acquire(t.Context(), room, "another"))(t)
			p.wantSubscribed(channel, "")
			if m := p.wantEvent(channel, locked, document.Current); m.Room != room {
				t.Errorf("%s: got room %s, want %s", channel, m.Room, room)
			}
		}
	})

	t.Run("the application names channels and events", func(t *testing.T) {
		b := newPusherSite(t, func(s *setup) {
			s.options.Pusher.Channel, s.options.Pusher.Namespace = "rooms.{room}.lock", `App\Events`
		}).browser(t)
		b.take()
		p := b.connect()
		p.wantForeign(
			"documents.room", "rooms.room", "xrooms.room.lock", "rooms.lock", "rooms..lock",
			"private-private-rooms.room.lock",
		)
		_, auth := b.authorized(p.id, "private-rooms.room.lock")
		for _, channel := range []string{"rooms.room.lock", "private-rooms.room.lock"} {
			p.wantSubscribed(channel, auth)
			f := p.frame()
			if f.Event != `App\Events\DocumentLocked` || f.Channel != channel {
				t.Errorf("got %+v", f)
			}
			if !strings.Contains(f.Data, `"type":"DocumentLocked","room_id":"room"`) {
				t.Errorf("got %s", f.Data)
			}
		}
	})
}

func TestPusher_PrivateChannel(t *testing.T) {
	b := newPusherSite(t, nil).browser(t)
	p := b.connect()
	const channel = "private-documents.room"
	refused := func(want int, socket, channel string, header ...string) {
		t.Helper()
		if status, auth := b.authorized(socket, channel, header...); status != want || auth != "" {
			t.Errorf("%s, %s, %v: %d, %q", socket, channel, header, status, auth)
		}
	}
	refused(http.StatusForbidden, p.id, channel) // without a session
	refused(http.StatusUnauthorized, p.id, channel, "Cookie", server.CookieName+"=forged")
	b.take()
	refused(http.StatusForbidden, p.id, channel, "Origin", "https://evil.example")
	refused(http.StatusForbidden, p.id, channel, "Sec-Fetch-Site", "cross-site")
	for _, foreign := range []string{"private-orders.1", "documents.room", "presence-x"} {
		refused(http.StatusForbidden, p.id, foreign)
	}
	refused(http.StatusForbidden, p.id+":x", channel)
	refused(http.StatusForbidden, "", channel)

	status, auth := b.authorized(p.id, channel)
	if status != http.StatusOK || !strings.HasPrefix(auth, "key:") {
		t.Fatalf("%d, %q", status, auth)
	}
	asJSON := fmt.Sprintf(`{"socket_id":%q,"channel_name":%q}`, p.id, channel)
	for form, want := range map[string]int{
		asJSON: http.StatusOK, `{"socket_id":7}`: http.StatusForbidden, "": http.StatusForbidden,
		strings.Repeat(" ", 64<<10) + asJSON: http.StatusForbidden,
	} {
		got := b.authorize("json; charset=utf-8", form)
		if got.status != want || (want == http.StatusOK) != strings.Contains(got.body, auth) {
			t.Errorf("%.50q: %+v, want %d", form, got, want)
		}
	}
	for _, forged := range []string{
		"", "key:", auth[:len(auth)-1], auth[:strings.LastIndex(auth, ":")], strings.ToUpper(auth),
		auth + "0", auth + ":0", "other" + auth, signature("another secret", p.id, channel),
		signature(app.Secret, "1.1", channel), signature(app.Secret, p.id, "private-documents.other"),
	} {
		p.send("pusher:subscribe", map[string]string{"channel": channel, "auth": forged})
		p.wantRefused(channel, 4009)
	}
	p.wantSubscribed(channel, auth)
	p.wantEvent(channel, locked, document.Current)
}

func TestPusher_Key(t *testing.T) {
	enabled, disabled := newPusherSite(t, nil), newSite(t, nil)
	for path, method := range map[string]string{"/broadcasting/auth": http.MethodPost, "/app/": http.MethodGet} {
		disabled.browser(t).want(http.StatusNotFound, `"no_such_route"`, method, path, upgrade()...)
	}
	for path, site := range map[string]*site{"/app/other": enabled, "/app/key%20": enabled, appPath: disabled} {
		p := &pusher{socket: site.browser(t).listen(path, websocket.DialOptions{})}
		p.wantError(4001)
		if _, code := p.rest(); code != 4001 {
			t.Errorf("%s: closed with %v, want 4001", path, code)
		}
	}
}

func TestPusher_Messages(t *testing.T) {
	b := newPusherSite(t, nil).browser(t)
	t.Run("a malformed one closes the socket", func(t *testing.T) {
		for text, want := range map[string]websocket.StatusCode{
			strings.Repeat("x", 32<<10+1): websocket.StatusMessageTooBig, "x": 4200, `{"event":7}`: 4200,
			`{"event":"pusher:subscribe","data":"x"}`: 4200,
		} {
			p := b.connect()
			_ = p.conn.Write(t.Context(), websocket.MessageText, []byte(text)) // the server may close it meanwhile
			if _, code := p.rest(); code != want {
				t.Errorf("%.50s: closed with %v, want %v", text, code, want)
			}
		}
		p := b.connect()
		must.OK(t, p.conn.Write(t.Context(), websocket.MessageBinary, []byte(`{"event":"pusher:ping"}`)))
		if _, code := p.rest(); code != 4200 {
			t.Errorf("a binary frame: closed with %v, want 4200", code)
		}
	})

	t.Run("an event that clients do not send is an error", func(t *testing.T) {
		p := b.connect()
		for _, event := range []string{
			"client-typing", "client-subscribe", "client-unsubscribe", "pusher:signin", succeed, "DocumentUnlocked",
		} {
			for _, data := range []any{map[string]string{"channel": "documents.room"}, "text", nil, []int{1}} {
				p.send(event, data)
				p.wantError(4301)
			}
		}
		p.wantAlive()
		p.send("pusher:subscribe", `{"channel":"documents.room"}`) // as the server's own messages have it
		if f := p.frame(); f.Event != succeed {
			t.Errorf("got %+v", f)
		}
	})
}

// A display name is shown to those with a session.
func TestProfile(t *testing.T) {
	s := newPusherSite(t, nil)
	holder, other, stranger := s.browser(t), s.browser(t), s.browser(t)
	holder.want(http.StatusOK, "", http.MethodPost, lockPath, "Cookie", ofUser7())
	other.do(http.MethodPost, lockPath, http.NoBody) // begins a session
	get := func(b *browser) string {
		return b.do(http.MethodGet, lockPath, http.NoBody, server.ClientHeader, "tab").body
	}
	socket := func(b *browser) string { return b.listen(lockPath+"/ws", websocket.DialOptions{}).next().raw }
	for name, shown := range map[string]string{
		"GET": get(other), "a socket": socket(other), "a private channel": other.state("private-documents.room"),
	} {
		if !strings.Contains(shown, `"holder_name":"あおい","user_id":"u7"`) || strings.Contains(shown, "user-7") {
			t.Errorf("%s: %s, want the name and the id", name, shown)
		}
	}
	hidden := get(stranger) + socket(stranger) + other.state("documents.room") + s.log.String()
	if strings.Contains(hidden, "あおい") || strings.Contains(hidden, `"u7"`) {
		t.Errorf("the name is shown: %s", hidden)
	}
}

// state returns the state of a locked room that a channel begins with.
func (b *browser) state(channel string) string {
	b.t.Helper()
	p := b.connect()
	auth := ""
	if strings.HasPrefix(channel, "private-") {
		_, auth = b.authorized(p.id, channel)
	}
	p.wantSubscribed(channel, auth)
	return p.frame().Data
}
