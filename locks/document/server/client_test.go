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
	"time"

	"github.com/coder/websocket"

	"taskguard/internal/testing/must"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
)

// upgrade returns the headers that open a WebSocket, and more.
func upgrade(more ...string) []string {
	return append([]string{
		"Connection", "Upgrade", "Upgrade", "websocket",
		"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==",
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

// read decodes the next message, and returns it.
func (s *socket) read(v any) (raw string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	_, data, err := s.conn.Read(ctx)
	must.OK(s.t, err)
	must.OK(s.t, json.Unmarshal(data, v))
	return string(data)
}

// next returns the next message.
func (s *socket) next() (m received) {
	s.t.Helper()
	m.raw = s.read(&m)
	return m
}

// want reads the next message and compares.
func (s *socket) want(kind, reason string) received {
	s.t.Helper()
	m := s.next()
	if got := [3]string{m.Type, m.Reason, m.Room}; got != [3]string{kind, reason, "room"} {
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

// rest reads until the server closes the socket. It returns the messages and the code.
func (s *socket) rest() (text string, code websocket.StatusCode) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	for {
		_, data, err := s.conn.Read(ctx)
		if ctx.Err() != nil {
			s.t.Fatal("the socket is left open")
		}
		if err != nil {
			return text, websocket.CloseStatus(err)
		}
		text += string(data)
	}
}

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
	must.OK(b.t, json.Unmarshal([]byte(f.Data), &greeting))
	if f.Event != "pusher:connection_established" || greeting.Timeout != 30 {
		b.t.Fatalf("got %+v", f)
	}
	p.id = greeting.Socket
	return p
}

// frame returns the next message.
func (p *pusher) frame() (f frame) {
	p.t.Helper()
	p.read(&f)
	return f
}

// send sends an event.
func (p *pusher) send(event string, data any) {
	p.t.Helper()
	text := must.Get(json.Marshal(map[string]any{"event": event, "data": data}))(p.t)
	must.OK(p.t, p.conn.Write(p.t.Context(), websocket.MessageText, text))
}

// subscribe subscribes, and returns the answer.
func (p *pusher) subscribe(channel, auth string) frame {
	p.t.Helper()
	p.send("pusher:subscribe", map[string]string{"channel": channel, "auth": auth})
	return p.frame()
}

// wantSubscribed subscribes, which must succeed.
func (p *pusher) wantSubscribed(channel, auth string) {
	p.t.Helper()
	if f := p.subscribe(channel, auth); f != (frame{succeed, channel, "{}"}) {
		p.t.Fatalf("%s: got %+v", channel, f)
	}
}

// watch subscribes to a channel of a free room. It reports false if there are too many.
func (p *pusher) watch(channel string) bool {
	p.t.Helper()
	f := p.subscribe(channel, "key:00:chosen") // a public channel counts for no session that the client chooses
	if f.Channel != channel {
		p.t.Fatalf("got %+v", f)
	}
	if f.Event == "pusher:subscription_error" && strings.Contains(f.Data, `"status":4301`) {
		return false
	}
	if f.Event != succeed {
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

// wantChannels watches as many channels as possible, which must be n.
func (p *pusher) wantChannels(n int) {
	p.t.Helper()
	for i := range n + 1 {
		if watched := p.watch(fmt.Sprint("documents.", i)); watched != (i < n) {
			p.t.Errorf("channel %d: %v", i, watched)
		}
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
	must.OK(p.t, json.Unmarshal([]byte(f.Data), &m))
	got := [4]string{f.Event, f.Channel, m.Type, m.Reason}
	if got != [4]string{kind, channel, kind, reason} {
		p.t.Errorf("got %q, want %s, %s on %s", got, kind, reason, channel)
	}
	return m
}

// wantError reads the next message, which must be an error with the code.
func (p *pusher) wantError(code int) {
	p.t.Helper()
	f, want := p.frame(), fmt.Sprintf(`{"code":%d,"message":"`, code)
	if f.Event != "pusher:error" || !strings.HasPrefix(f.Data, want) {
		p.t.Errorf("got %+v, want error %d", f, code)
	}
}

// wantRefused reads the next message, which must refuse a subscription to the channel. An error follows if
// the socket may never subscribe to it.
func (p *pusher) wantRefused(channel string, code int) {
	p.t.Helper()
	f := p.frame()
	if f.Event != "pusher:subscription_error" || f.Channel != channel {
		p.t.Errorf("got %+v, want the subscription to %s refused", f, channel)
	}
	if !strings.Contains(f.Data, fmt.Sprintf(`"status":%d`, code)) {
		p.t.Errorf("got %s, want the status %d", f.Data, code)
	}
	if code == 4009 {
		p.wantError(code)
	}
}

// wantForeign subscribes to each channel, which must be refused.
func (p *pusher) wantForeign(channels ...string) {
	p.t.Helper()
	for _, channel := range channels {
		p.send("pusher:subscribe", map[string]string{"channel": channel})
		p.wantRefused(channel, 4009)
	}
}

// wantAlive requires that the socket still answers, with nothing before the answer.
func (p *pusher) wantAlive() {
	p.t.Helper()
	p.send("pusher:ping", map[string]any{})
	if f := p.frame(); f != (frame{Event: "pusher:pong", Data: "{}"}) {
		p.t.Errorf("got %+v, want a pong", f)
	}
}

// authorize posts a form of that type to ask for the authorization of a channel.
func (b *browser) authorize(kind, form string, header ...string) reply {
	b.t.Helper()
	header = append(header, "Content-Type", "application/"+kind)
	return b.do(http.MethodPost, "/broadcasting/auth", strings.NewReader(form), header...)
}

// authorized asks for the authorization of a channel.
func (b *browser) authorized(socket, channel string, header ...string) (status int, auth string) {
	b.t.Helper()
	form := url.Values{"socket_id": {socket}, "channel_name": {channel}}.Encode()
	got := b.authorize("x-www-form-urlencoded", form, header...)
	var body struct{ Auth string }
	must.OK(b.t, json.Unmarshal([]byte(got.body), &body))
	return got.status, body.Auth
}

// signature is the authorization as Pusher's documentation defines it.
func signature(secret, socket, channel string) string {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(socket + ":" + channel))
	return "key:" + hex.EncodeToString(h.Sum(nil))
}

var secret = []byte("0123456789abcdef0123456789abcdef")

// cookies returns sessions with the secret of the tests.
func cookies(t testing.TB) *server.Cookies {
	t.Helper()
	return must.Get(server.NewCookies(secret))(t)
}

// ofUser7 returns the cookie that an application makes for its user 7, あおい, whose id for others is u7.
func ofUser7() string { return signed(fmt.Sprintf("v1.user-7.%d.44GC44GK44GE.dTc", time.Now().Unix())) }

// signed returns a cookie as an application makes it.
func signed(text string) string {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(server.CookieName + "\n" + text))
	return server.CookieName + "=" + text + "." + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}
