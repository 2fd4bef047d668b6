package server_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"taskguard/internal/taskauth"
	"taskguard/lease"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
)

const (
	appPath = "/app/key?protocol=7&client=js&version=8.6.0"
	succeed = "pusher_internal:subscription_succeeded"
)

var app = server.Pusher{Key: "key", Secret: "a secret of the application"}

// newPusherSite starts a server with the Pusher protocol; adapt may be nil.
func newPusherSite(t testing.TB, adapt func(*setup)) *site {
	t.Helper()
	return newSite(t, func(s *setup) {
		s.options.Pusher = app
		if adapt != nil {
			adapt(s)
		}
	})
}

// pusher is a client of the Pusher protocol.
type pusher struct {
	*socket
	id string // of the socket
}

// frame is a message to a client; Data is JSON in a string.
type frame struct{ Event, Channel, Data string }

// connect opens a socket of the Pusher protocol and reads its greeting.
func (b *browser) connect() *pusher {
	b.t.Helper()
	p := &pusher{socket: b.listen(appPath, websocket.DialOptions{})}
	var greeting struct {
		Socket  string `json:"socket_id"`
		Timeout int    `json:"activity_timeout"`
	}
	f := p.frame()
	if err := json.Unmarshal([]byte(f.Data), &greeting); err != nil || f.Event != "pusher:connection_established" || greeting.Timeout != 30 {
		b.t.Fatalf("got %+v, %v", f, err)
	}
	p.id = greeting.Socket
	return p
}

// frame returns the next message.
func (p *pusher) frame() (f frame) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	_, data, err := p.conn.Read(ctx)
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return f
}

// send sends an event.
func (p *pusher) send(event string, data any) {
	p.t.Helper()
	text, err := json.Marshal(map[string]any{"event": event, "data": data})
	if err == nil {
		err = p.conn.Write(p.t.Context(), websocket.MessageText, text)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// subscribe subscribes, and returns the answer.
func (p *pusher) subscribe(channel, auth string) frame {
	p.t.Helper()
	p.send("pusher:subscribe", map[string]string{"channel": channel, "auth": auth})
	return p.frame()
}

// watch subscribes to a channel of a free room. It reports false if there are too many.
func (p *pusher) watch(channel string) bool {
	p.t.Helper()
	f := p.subscribe(channel, "key:00:chosen") // a public channel counts for no session that the client chooses
	if f.Event == "pusher:subscription_error" && f.Channel == channel && strings.Contains(f.Data, `"status":4301`) {
		return false
	}
	if f.Event != succeed || f.Channel != channel {
		p.t.Fatalf("got %+v", f)
	}
	p.wantEvent(channel, unlocked, document.Current)
	return true
}

// mustWatch calls watch until another subscription has ended.
func (p *pusher) mustWatch(channel string) {
	p.t.Helper()
	for !p.watch(channel) {
		time.Sleep(time.Millisecond)
	}
}

func (p *pusher) unsubscribe(channel string) {
	p.t.Helper()
	p.send("pusher:unsubscribe", map[string]string{"channel": channel})
}

// wantEvent reads the next message and compares.
func (p *pusher) wantEvent(channel, kind, reason string) (m received) {
	p.t.Helper()
	f := p.frame()
	err := json.Unmarshal([]byte(f.Data), &m)
	if err != nil || f.Event != kind || f.Channel != channel || m.Type != kind || m.Reason != reason {
		p.t.Errorf("got %+v, %v, want %s, %s on %s", f, err, kind, reason, channel)
	}
	return m
}

// wantError reads the next message, which must be an error with the code.
func (p *pusher) wantError(code int) {
	p.t.Helper()
	if f := p.frame(); f.Event != "pusher:error" || !strings.HasPrefix(f.Data, fmt.Sprintf(`{"code":%d,"message":"`, code)) {
		p.t.Errorf("got %+v, want error %d", f, code)
	}
}

// wantRefused reads the next messages, which must refuse a subscription to the channel.
func (p *pusher) wantRefused(channel string) {
	p.t.Helper()
	if f := p.frame(); f.Event != "pusher:subscription_error" || f.Channel != channel || !strings.Contains(f.Data, `"status":4009`) {
		p.t.Errorf("got %+v, want the subscription to %s refused", f, channel)
	}
	p.wantError(4009)
}

// wantAlive requires that the socket still answers, with nothing before the answer.
func (p *pusher) wantAlive() {
	p.t.Helper()
	p.send("pusher:ping", map[string]any{})
	if f := p.frame(); f != (frame{Event: "pusher:pong", Data: "{}"}) {
		p.t.Errorf("got %+v, want a pong", f)
	}
}

// authorized asks for the authorization of a channel.
func (b *browser) authorized(socket, channel string, header ...string) (status int, auth string) {
	b.t.Helper()
	form := url.Values{"socket_id": {socket}, "channel_name": {channel}}.Encode()
	got := b.do(http.MethodPost, "/broadcasting/auth", strings.NewReader(form), append(header, "Content-Type", "application/x-www-form-urlencoded")...)
	var body struct{ Auth string }
	if err := json.Unmarshal([]byte(got.body), &body); err != nil {
		b.t.Fatal(err, got)
	}
	return got.status, body.Auth
}

// signature is the authorization as Pusher's documentation defines it.
func signature(secret, socket, channel string) string {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(socket + ":" + channel))
	return "key:" + hex.EncodeToString(h.Sum(nil))
}

func TestAChannelHasTheEventsOfItsRoomAndTheStateFirst(t *testing.T) {
	s := newPusherSite(t, func(s *setup) { s.ttl = 2 * time.Second })
	b := s.browser(t)
	p := b.connect()
	const channel = "documents.room"
	if f := p.subscribe(channel, ""); f != (frame{succeed, channel, "{}"}) {
		t.Fatalf("got %+v", f)
	}
	p.wantEvent(channel, unlocked, document.Current) // perhaps freed while the client was away
	got, _ := b.take()
	if m := p.wantEvent(channel, locked, document.Acquired); *m.Holder != got.Holder || m.Room != "room" || !m.Expires.Equal(got.ExpiresAt) {
		t.Errorf("got %+v, want holder %s, %v", m, got.Holder, got.ExpiresAt)
	}
	late := s.browser(t).connect()
	late.subscribe(channel, "")
	late.wantEvent(channel, locked, document.Current)
	b.want(http.StatusOK, freed, http.MethodDelete, lockPath)
	for _, each := range []*pusher{p, late} {
		each.wantEvent(channel, unlocked, document.Released)
	}
	late.unsubscribe(channel)
	late.subscribe("documents.other", "") // begins after the end of the first: a ping would be answered before
	late.wantEvent("documents.other", unlocked, document.Current)
	b.take()
	p.wantEvent(channel, locked, document.Acquired)
	p.wantEvent(channel, unlocked, document.Expired)
	late.wantAlive()
}

func TestAnEscapedChannelNamesItsRoom(t *testing.T) {
	s := newPusherSite(t, nil)
	p := s.browser(t).connect()
	const channel = "documents.=E6=96=87=E6=9B=B8=2E 1"
	for _, foreign := range []string{
		channel, "documents.", "documents.=", "documents.=2", "documents.=GG", "documents.=2F", "documents.a=00b", "documents.=FF", "documents.a/b",
		"documents.%41", "Documents.room", "orders.1", "presence-documents.room", "private-encrypted-documents.room", "", "documents." + strings.Repeat("x", 155),
	} {
		p.send("pusher:subscribe", map[string]string{"channel": foreign})
		p.wantRefused(foreign)
	}
	for channel, room := range map[string]string{
		"documents.=E6=96=87=E6=9B=B8=201": "文書 1", "documents.a@b,c;d.e_f-G=3D": "a@b,c;d.e_f-G=", "documents." + strings.Repeat("x", 154): strings.Repeat("x", 154),
	} {
		must(s.locks.Acquire(t.Context(), room, "another"))(t)
		if f := p.subscribe(channel, ""); f != (frame{succeed, channel, "{}"}) {
			t.Fatalf("%s: got %+v", channel, f)
		}
		if m := p.wantEvent(channel, locked, document.Current); m.Room != room {
			t.Errorf("%s: got room %s, want %s", channel, m.Room, room)
		}
	}
}

func TestChannelsAndEventsHaveTheApplicationsNames(t *testing.T) {
	b := newPusherSite(t, func(s *setup) {
		s.options.Pusher.Channel, s.options.Pusher.Namespace = "rooms.{room}.lock", `App\Events`
	}).browser(t)
	b.take()
	p := b.connect()
	for _, foreign := range []string{"documents.room", "rooms.room", "xrooms.room.lock", "rooms.lock", "rooms..lock", "private-private-rooms.room.lock"} {
		p.send("pusher:subscribe", map[string]string{"channel": foreign})
		p.wantRefused(foreign)
	}
	_, auth := b.authorized(p.id, "private-rooms.room.lock")
	for _, channel := range []string{"rooms.room.lock", "private-rooms.room.lock"} {
		p.subscribe(channel, auth)
		if f := p.frame(); f.Event != `App\Events\DocumentLocked` || f.Channel != channel || !strings.Contains(f.Data, `"type":"DocumentLocked","room_id":"room"`) {
			t.Errorf("got %+v", f)
		}
	}
}

func TestAPrivateChannelNeedsASession(t *testing.T) {
	s := newPusherSite(t, nil)
	b := s.browser(t)
	p := b.connect()
	const channel = "private-documents.room"
	if status, auth := b.authorized(p.id, channel); status != http.StatusForbidden || auth != "" {
		t.Errorf("without a session: %d, %q", status, auth)
	}
	if status, _ := b.authorized(p.id, channel, "Cookie", server.CookieName+"=forged"); status != http.StatusUnauthorized {
		t.Errorf("a forged session: %d", status)
	}
	b.take()
	for _, header := range [][]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
		if status, auth := b.authorized(p.id, channel, header...); status != http.StatusForbidden || auth != "" {
			t.Errorf("%v: %d, %q", header, status, auth)
		}
	}
	for _, wrong := range [][2]string{{p.id, "private-orders.1"}, {p.id, "documents.room"}, {p.id, "presence-x"}, {p.id + ":x", channel}, {"", channel}} {
		if status, auth := b.authorized(wrong[0], wrong[1]); status != http.StatusForbidden || auth != "" {
			t.Errorf("%q: %d, %q", wrong, status, auth)
		}
	}
	const reason = "presence and encrypted channels are not served; use a private channel"
	for _, other := range []string{"presence-documents.room", "private-encrypted-documents.room"} {
		form := strings.NewReader("socket_id=1.1&channel_name=" + other)
		if got := b.do(http.MethodPost, "/broadcasting/auth", form, "Content-Type", "application/x-www-form-urlencoded"); got.status != http.StatusForbidden || !strings.Contains(got.body, reason) {
			t.Errorf("%s: %+v", other, got)
		}
		if f := p.subscribe(other, ""); f.Event != "pusher:subscription_error" || !strings.Contains(f.Data, reason) {
			t.Errorf("%s: %+v", other, f)
		}
		p.wantError(4009)
	}
	status, auth := b.authorized(p.id, channel)
	if status != http.StatusOK || !strings.HasPrefix(auth, "key:") {
		t.Fatalf("%d, %q", status, auth)
	}
	for form, want := range map[string]int{
		`{"socket_id":"` + p.id + `","channel_name":"` + channel + `"}`: http.StatusOK,
		`{"socket_id":7}`: http.StatusForbidden, "": http.StatusForbidden, strings.Repeat(" ", 64<<10) + `{"socket_id":"` + p.id + `","channel_name":"` + channel + `"}`: http.StatusForbidden,
	} {
		got := b.do(http.MethodPost, "/broadcasting/auth", strings.NewReader(form), "Content-Type", "application/json; charset=utf-8")
		if got.status != want || (want == http.StatusOK) != strings.Contains(got.body, auth) {
			t.Errorf("%.50q: %+v, want %d", form, got, want)
		}
	}
	for _, forged := range []string{
		"", "key:", auth[:len(auth)-1], auth[:strings.LastIndex(auth, ":")], strings.ToUpper(auth), auth + "0", auth + ":0", "other" + auth, signature("another secret", p.id, channel),
		signature(app.Secret, "1.1", channel), signature(app.Secret, p.id, "private-documents.other"),
	} {
		p.send("pusher:subscribe", map[string]string{"channel": channel, "auth": forged})
		p.wantRefused(channel)
	}
	if f := p.subscribe(channel, auth); f != (frame{succeed, channel, "{}"}) {
		t.Fatalf("got %+v", f)
	}
	p.wantEvent(channel, locked, document.Current)
}

func TestASocketWithoutTheKeyIsRefused(t *testing.T) {
	enabled, disabled := newPusherSite(t, nil), newSite(t, nil)
	for path, method := range map[string]string{"/broadcasting/auth": http.MethodPost, "/app/": http.MethodGet} {
		disabled.browser(t).want(http.StatusNotFound, `{"success":false,"error":"no_such_route","message":"no such route"}`, method, path, upgrade()...)
	}
	for _, c := range []struct {
		site *site
		path string
	}{
		{enabled, "/app/other"}, {enabled, "/app/key%20"}, {disabled, appPath},
	} {
		p := &pusher{socket: c.site.browser(t).listen(c.path, websocket.DialOptions{})}
		p.wantError(4001)
		if got := p.closed(); got != 4001 {
			t.Errorf("%s: closed with %v, want 4001", c.path, got)
		}
	}
}

func TestABadMessageClosesTheSocket(t *testing.T) {
	b := newPusherSite(t, nil).browser(t)
	for name, c := range map[string]struct {
		kind websocket.MessageType
		text string
		want websocket.StatusCode
	}{
		"over 32 KiB":    {websocket.MessageText, strings.Repeat("x", 32<<10+1), websocket.StatusMessageTooBig},
		"no JSON":        {websocket.MessageText, "x", 4200},
		"another type":   {websocket.MessageText, `{"event":7}`, 4200},
		"no channel":     {websocket.MessageText, `{"event":"pusher:subscribe","data":"x"}`, 4200},
		"a binary frame": {websocket.MessageBinary, `{"event":"pusher:ping"}`, 4200},
	} {
		p := b.connect()
		_ = p.conn.Write(t.Context(), c.kind, []byte(c.text)) // the server may close it meanwhile
		if got := p.closed(); got != c.want {
			t.Errorf("%s: closed with %v, want %v", name, got, c.want)
		}
	}
	p := b.connect()
	for _, event := range []string{
		"client-typing", "client-subscribe", "client-unsubscribe", "pusher:signin", "pusher_internal:subscription_succeeded", "DocumentUnlocked",
	} {
		for _, data := range []any{map[string]string{"channel": "documents.room"}, "text", nil, []int{1}} {
			p.send(event, data)
			p.wantError(4301)
		}
	}
	p.wantAlive()
	p.send("pusher:subscribe", `{"channel":"documents.room"}`) // as the server's own messages have it
	if f := p.frame(); f != (frame{succeed, "documents.room", "{}"}) {
		t.Errorf("got %+v", f)
	}
}

const tooManyConnections = `{"success":false,"error":"unavailable","message":"too many connections here; try again"}`

func TestSubscriptionsAreBounded(t *testing.T) {
	s := newPusherSite(t, func(s *setup) { s.options.MaxSockets = 22 })
	b := s.browser(t)
	b.ask(http.MethodGet, "/") // begins a session
	p := b.connect()
	for i := range 25 {
		if watched := p.watch(fmt.Sprint("documents.", i)); watched != (i < 20) {
			t.Errorf("channel %d: %v", i, watched)
		}
	}
	if !p.watch("documents.0") { // instead of the first
		t.Error("a channel cannot be subscribed to again")
	}
	p.wantAlive()
	other := s.browser(t).connect() // the last that fits
	if other.watch("documents.0") {
		t.Error("an instance has 23 sockets and channels")
	}
	other.wantAlive()
	b.want(http.StatusServiceUnavailable, tooManyConnections, http.MethodGet, lockPath+"/ws", upgrade()...)
	p.unsubscribe("documents.0")
	p.wantAlive()
	other.mustWatch("documents.0")
}

func TestASessionHasFiveChannelsForEachOfItsSockets(t *testing.T) {
	s := newPusherSite(t, func(s *setup) { s.options.SessionSockets = 1 })
	user, other := s.browser(t), s.browser(t)
	user.ask(http.MethodGet, "/") // begins a session
	other.ask(http.MethodGet, "/")
	p, q := user.connect(), other.connect()
	for i := range 6 {
		if watched := p.watch(fmt.Sprint("documents.", i)); watched != (i < 5) {
			t.Errorf("channel %d: %v", i, watched)
		}
	}
	if !q.watch("documents.5") {
		t.Error("another session has no channel")
	}
	const private = "private-documents.6"
	strange := s.browser(t).connect() // the same user's, who has left out the cookie
	_, auth := user.authorized(strange.id, private)
	if f := strange.subscribe(private, auth); !strings.Contains(f.Data, "LimitReached") {
		t.Errorf("a sixth channel, of a socket without the session: %+v", f)
	}
	p.unsubscribe("documents.0")
	for f := (frame{}); f.Event != succeed; {
		f = strange.subscribe(private, auth)
	}
	if p.watch("documents.5") {
		t.Error("a private channel of a socket without a session counts for nobody")
	}
	strange.wantEvent(private, unlocked, document.Current)
	strange.unsubscribe(private)
	p.mustWatch("documents.5")
}

func TestClientsWithoutASessionHaveHalfOfTheSockets(t *testing.T) {
	s := newPusherSite(t, func(s *setup) { s.options.MaxSockets = 8 })
	stranger, user := s.browser(t), s.browser(t)
	user.ask(http.MethodGet, "/") // begins a session
	first := stranger.listen(lockPath+"/ws", websocket.DialOptions{})
	p := stranger.connect()
	for i := range 3 {
		if watched := p.watch(fmt.Sprint("documents.", i)); watched != (i < 2) {
			t.Errorf("channel %d: %v", i, watched)
		}
	}
	for _, path := range []string{lockPath + "/ws", appPath} {
		stranger.want(http.StatusServiceUnavailable, tooManyConnections, http.MethodGet, path, upgrade()...)
	}

	const private = "private-documents.c"
	if f := p.subscribe(private, signature(app.Secret, p.id, private)); !strings.Contains(f.Data, "LimitReached") {
		t.Errorf("signed by the application, for no session that is known: %+v", f)
	}
	_, auth := user.authorized(p.id, private)
	if f := p.subscribe(private, auth); f.Event != succeed {
		t.Errorf("signed for a session: %+v", f)
	}
	p.wantEvent(private, unlocked, document.Current)
	user.listen(lockPath+"/ws", websocket.DialOptions{}).next()
	if !user.connect().watch("documents.a") {
		t.Error("a session has no channel")
	}

	check(t, first.conn.Close(websocket.StatusNormalClosure, ""))
	for _, channel := range []string{"documents.c", "documents.d"} { // in place of the socket, then of the channel
		p.mustWatch(channel)
		p.unsubscribe(channel)
	}
}

func TestASubscriptionThatFailsClosesTheSocketAndIsNotCounted(t *testing.T) {
	b := newPusherSite(t, func(s *setup) {
		s.store, s.options.SessionSockets = refusing{s.store, lease.ErrRefused}, 1
	}).browser(t)
	p := b.connect()
	p.send("pusher:subscribe", map[string]string{"channel": "documents.room"})
	p.wantError(4100)
	if got := p.closed(); got != 4100 {
		t.Errorf("closed with %v, want 4100", got)
	}

	b.ask(http.MethodGet, "/") // begins a session
	for range 2 {
		if status, body := b.ask(http.MethodGet, lockPath+"/ws", upgrade()...); status != http.StatusInternalServerError {
			t.Errorf("%d %s, want 500", status, body)
		}
	}
}

func TestAnotherOriginIsServedOnlyIfItIsNamed(t *testing.T) {
	const allowed = "https://app.example"
	b := newPusherSite(t, func(s *setup) { s.options.Origins = []string{allowed, "http://localhost:5173"} }).browser(t)
	b.take()
	for _, origin := range []string{"https://app.example.evil", "https://app.example:8443", "http://app.example", "null", strings.Replace(b.site.url, "://", "://evil-", 1)} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
			got := b.do(method, lockPath, http.NoBody, "Origin", origin, "Sec-Fetch-Site", "cross-site", "Access-Control-Request-Headers", "x-lock-client")
			if refused := got.status == http.StatusForbidden || method == http.MethodOptions; !refused || got.header.Get("Vary") != "Origin" || got.header.Get("Access-Control-Allow-Origin")+got.header.Get("Access-Control-Allow-Headers") != "" {
				t.Errorf("%s from %q: %d, %v", method, origin, got.status, got.header)
			}
		}
		for _, path := range []string{lockPath + "/ws", appPath} {
			b.want(http.StatusForbidden, crossSite, http.MethodGet, path, upgrade("Origin", origin)...)
		}
	}

	from := []string{"Origin", allowed, "Sec-Fetch-Site", "same-site"}
	const requested = "traceparent,x-lock-client,x-xsrf-token"
	h := b.do(http.MethodOptions, lockPath, http.NoBody, append(from, "Access-Control-Request-Method", "PUT", "Access-Control-Request-Headers", requested)...).header
	if !strings.Contains(h.Get("Access-Control-Allow-Methods"), "PUT") || h.Get("Access-Control-Allow-Headers") != requested || h.Get("Access-Control-Max-Age") != "600" {
		t.Errorf("preflight: %v", h)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodGet, http.MethodDelete} {
		got := b.do(method, lockPath, http.NoBody, from...)
		if h := got.header; got.status != http.StatusOK || h.Get("Access-Control-Allow-Origin") != allowed || h.Get("Access-Control-Allow-Credentials") != "true" || h.Get("Vary") != "Origin" {
			t.Errorf("%s: %+v", method, got)
		}
	}
	header := http.Header{"Origin": {allowed}}
	b.listen(lockPath+"/ws", websocket.DialOptions{HTTPHeader: header}).want(unlocked, document.Current)
	b.listen(appPath, websocket.DialOptions{HTTPHeader: header})
}

func TestADisplayNameIsShownToThoseWithASession(t *testing.T) {
	s := newPusherSite(t, nil)
	cookie := []string{"Cookie", ofUser7()}
	holder, other, stranger := s.browser(t), s.browser(t), s.browser(t)
	if got := holder.do(http.MethodPost, lockPath, http.NoBody, cookie...); got.status != http.StatusOK {
		t.Fatal(got)
	}
	other.do(http.MethodPost, lockPath, http.NoBody) // begins a session
	for name, c := range map[string]struct {
		text  string
		shown bool
	}{
		"GET":                      {other.do(http.MethodGet, lockPath, http.NoBody).body, true},
		"GET without a session":    {stranger.do(http.MethodGet, lockPath, http.NoBody, server.ClientHeader, "tab").body, false},
		"a socket":                 {other.listen(lockPath+"/ws", websocket.DialOptions{}).next().raw, true},
		"a socket without session": {stranger.listen(lockPath+"/ws", websocket.DialOptions{}).next().raw, false},
		"a private channel":        {other.state(t, "private-documents.room"), true},
		"a public channel":         {other.state(t, "documents.room"), false},
	} {
		if shown := strings.Contains(c.text, `"holder_name":"あおい","user_id":"u7"`); shown != c.shown || strings.Contains(c.text, "user-7") {
			t.Errorf("%s: %s, want the name and the id: %t", name, c.text, c.shown)
		}
	}
	if strings.Contains(s.log.String(), "あおい") {
		t.Errorf("the name is in the log: %s", s.log)
	}
}

// ofUser7 returns the cookie that an application makes for its user 7, あおい, whose id for others is u7.
func ofUser7() string { return signed(fmt.Sprintf("v1.user-7.%d.44GC44GK44GE.dTc", time.Now().Unix())) }

// signed returns a cookie as an application makes it.
func signed(text string) string {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(server.CookieName + "\n" + text))
	return server.CookieName + "=" + text + "." + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

func TestASessionOfTheApplicationIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := cookies(t)
		all.Application = true
		named, anonymous := ofUser7(), begun(t, memory(t, cookies(t)))
		mail := signed(fmt.Sprintf("v1.a%%40x%%2Etest.%d", time.Now().Unix()))
		time.Sleep(16 * 24 * time.Hour)
		for cookie, k := range map[string]*server.Cookies{named: cookies(t), anonymous: all} {
			if status, body, set := visit(t, memory(t, k), http.MethodPost, lockPath, cookie); status != http.StatusOK || set != nil {
				t.Errorf("%s: %d %s, cookie %v", cookie, status, body, set)
			}
		}
		_, _, renewed := visit(t, memory(t, cookies(t)), http.MethodPost, lockPath, mail)
		if renewed == nil || !strings.HasPrefix(renewed.Value, "v1.a@x%2Etest.") {
			t.Errorf("one without a name is renewed as %v", renewed)
		}
	})
}

func TestOnlyTheApplicationBeginsSessionsIfItMakesThem(t *testing.T) {
	s := newPusherSite(t, func(s *setup) {
		k := cookies(t)
		k.Application, s.sessions = true, k
	})
	b := s.browser(t)
	if got := b.do(http.MethodGet, "/", http.NoBody); got.status != http.StatusOK || got.header["Set-Cookie"] != nil {
		t.Errorf("the page: %d, %v", got.status, got.header)
	}
	got := b.do(http.MethodPost, lockPath, http.NoBody)
	if want := `{"success":false,"error":"no_session","message":"a session is needed"}`; got.status != http.StatusForbidden || got.body != want || got.header["Set-Cookie"] != nil {
		t.Errorf("POST: %+v, want %s", got, want)
	}
	b.want(http.StatusOK, free, http.MethodGet, lockPath)
	if got := b.do(http.MethodPost, lockPath, http.NoBody, "Cookie", ofUser7()); got.status != http.StatusOK || got.header["Set-Cookie"] != nil {
		t.Errorf("POST of a user: %+v", got)
	}
}

// state returns the state of a locked room that a channel begins with.
func (b *browser) state(t *testing.T, channel string) string {
	t.Helper()
	p := b.connect()
	auth := ""
	if strings.HasPrefix(channel, "private-") {
		_, auth = b.authorized(p.id, channel)
	}
	p.subscribe(channel, auth)
	return p.frame().Data
}

func TestANameThatCannotBeShownIsNone(t *testing.T) {
	for name, want := range map[string]string{"Ann": "Ann", strings.Repeat("x", 256): strings.Repeat("x", 256), strings.Repeat("x", 257): "", "a\nb": "", "a\xff": ""} {
		caller, err := server.Accounts{Verifier: named(name)}.Caller(nil, &http.Request{Header: http.Header{}}, false)
		if err != nil || caller.Profile != (document.Profile{Name: want, User: want}) {
			t.Errorf("%q: got %q, %v, want %q", name, caller.Profile, err, want)
		}
	}
}

// named is a Verifier of one subject with this name.
type named string

func (n named) Subject(*http.Request) (taskauth.Subject, error) {
	return taskauth.Subject{ID: "1", Name: string(n), User: string(n)}, nil
}
