package server_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"taskguard/lease"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
)

const (
	notPermitted = `{"success":false,"error":"not_permitted","message":"the application does not let this session use the room"}`
	notAsked     = `{"success":false,"error":"unavailable","message":"permissions cannot be checked now; try again"}`
)

// application answers whether a session may use a room: with its status, and 200 at /login.
type application struct {
	*httptest.Server
	status, asked atomic.Int64
	last          atomic.Pointer[http.Request]
}

func newApplication(t testing.TB) *application {
	t.Helper()
	a := &application{}
	a.status.Store(http.StatusNoContent)
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/login" {
			return
		}
		a.asked.Add(1)
		a.last.Store(r)
		w.Header().Set("Location", "/login")
		w.WriteHeader(int(a.status.Load()))
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *application) url() string { return a.URL + "/may-lock?by=doclock" }

func TestARoomIsForThoseWhomTheApplicationPermits(t *testing.T) {
	app := newApplication(t)
	s := newPusherSite(t, func(s *setup) { s.options.Authorize = app.url() })
	holder := s.browser(t)
	got, _ := holder.take()
	confirm := fmt.Sprintf("%s/confirm?token=%d", lockPath, got.Token)

	for status, want := range map[int]string{
		http.StatusUnauthorized: notPermitted, http.StatusForbidden: notPermitted,
		http.StatusNotFound: notPermitted, http.StatusFound: notAsked, http.StatusInternalServerError: notAsked,
	} {
		app.status.Store(int64(status))
		b := s.browser(t)
		p := b.connect()
		b.ask(http.MethodGet, "/") // begins a session
		code := http.StatusForbidden
		if want == notAsked {
			code = http.StatusServiceUnavailable
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodGet} {
			b.want(code, want, method, lockPath)
		}
		b.want(code, want, http.MethodGet, confirm)
		b.want(code, want, http.MethodGet, lockPath+"/ws", upgrade()...)
		if got, auth := b.authorized(p.id, "private-documents.room"); got != code || auth != "" {
			t.Errorf("%d: a private channel: %d, %q", status, got, auth)
		}
		p.send("pusher:subscribe", map[string]string{"channel": "documents.room"})
		if want == notPermitted {
			p.wantRefused("documents.room")
		} else {
			p.wantPostponed("documents.room")
		}
		p.wantAlive()
	}
	if status, body := holder.ask(http.MethodGet, confirm); status != http.StatusOK { // while the application is busy
		t.Errorf("the holder: %d %s", status, body)
	}
	app.Close()
	if status, body := holder.ask(http.MethodDelete, lockPath); status != http.StatusOK { // as after its sign-out
		t.Errorf("the holder's release: %d %s", status, body)
	}
	s.browser(t).want(http.StatusServiceUnavailable, notAsked, http.MethodPost, lockPath)
}

// wantPostponed reads the next message, which must refuse a channel because the application does not answer.
func (p *pusher) wantPostponed(channel string) {
	p.t.Helper()
	f := p.frame()
	if f.Event != "pusher:subscription_error" || f.Channel != channel || !strings.Contains(f.Data, `"status":503`) {
		p.t.Errorf("got %+v, want the subscription to %s refused with 503", f, channel)
	}
}

func TestARoomWithoutAnAnswerEndsNoOtherChannelAndIsAskedAboutAgainOnANewSocket(t *testing.T) {
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("room") == "broken" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(broken.Close)
	s := newPusherSite(t, func(s *setup) { s.options.Authorize = broken.URL })
	p := s.browser(t).connect()
	p.mustWatch("documents.room")
	p.send("pusher:subscribe", map[string]string{"channel": "documents.broken"})
	p.wantPostponed("documents.broken")
	s.browser(t).take()
	p.wantEvent("documents.room", locked, document.Acquired)

	brief := func(s *setup) {
		s.options.Authorize, s.sessions = broken.URL, proved{s.sessions, 100 * time.Millisecond}
	}
	alone := newPusherSite(t, brief).browser(t).connect()
	alone.send("pusher:subscribe", map[string]string{"channel": "documents.broken"})
	alone.wantPostponed("documents.broken")
	if _, closed := alone.rest(); closed != 4203 {
		t.Errorf("closed with %v, want 4203 when the permission would have expired", closed)
	}
}

func TestTheApplicationIsAskedOnceForARoomAndASession(t *testing.T) {
	app := newApplication(t)
	s := newPusherSite(t, func(s *setup) { s.options.Authorize = app.url() })
	b := s.browser(t)
	b.ask(http.MethodGet, "/")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { b.ask(http.MethodGet, lockPath, "Authorization", "Bearer x") })
	}
	all.Wait()
	b.take()
	b.listen(lockPath+"/ws", websocket.DialOptions{}).want(locked, document.Current)
	r := app.last.Load()
	if n := app.asked.Load(); n != 1 || r.Method != http.MethodGet || r.FormValue("room") != "room" || r.FormValue("by") != "doclock" {
		t.Errorf("asked %d times, %s %s; want once, for the room", n, r.Method, r.URL)
	}
	if h := r.Header; !strings.HasPrefix(h.Get("Cookie"), server.CookieName+"=") || h.Get("Authorization") != "Bearer x" || h.Get("Accept") != "application/json" {
		t.Errorf("asked with %v", h)
	}

	b.ask(http.MethodGet, strings.Replace(lockPath, "room", "other", 1))
	stranger := s.browser(t)
	stranger.ask(http.MethodGet, lockPath) // may be another user than the next without a session
	stranger.ask(http.MethodGet, lockPath)
	if n := app.asked.Load(); n != 4 {
		t.Errorf("asked %d times, want 4: another room, and each caller without a session", n)
	}
}

func TestAPermissionIsWithdrawnWithinTenSecondsAndForASocketWithinAMinute(t *testing.T) {
	application := newApplication(t)
	synctest.Test(t, func(t *testing.T) {
		locks := must(document.New(&lease.Memory[document.Lock]{}, 0))(t)
		o := server.Options{Authorize: application.url(), Pusher: app}
		h := server.NewServer(context.Background(), locks, nil, cookies(t), o)
		cookie := begun(t, h)
		visit(t, h, http.MethodGet, lockPath, cookie)
		form := strings.NewReader("socket_id=1.1&channel_name=private-documents.room")
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/broadcasting/auth", form)
		r.Header = http.Header{"Cookie": {cookie}, "Content-Type": {"application/x-www-form-urlencoded"}}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		body := strings.TrimSpace(w.Body.String())
		parts := strings.Split(strings.Trim(body, `"}`), ":")
		until, _ := strconv.ParseInt(parts[len(parts)-1], 10, 64)
		if want := time.Now().Add(time.Minute).UnixMilli(); until != want {
			t.Errorf("%s: a private channel is authorized until %d, want %d", body, until, want)
		}

		application.status.Store(http.StatusForbidden)
		if status, _, _ := visit(t, h, http.MethodGet, lockPath, cookie); status != http.StatusOK {
			t.Errorf("at once: %d, want the answer that was given", status)
		}
		h.CloseIdle() // time passes only if nobody waits for a network
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if status, _, _ := visit(t, h, http.MethodGet, lockPath, cookie); status != http.StatusForbidden {
			t.Errorf("10 s later: %d", status)
		}
		h.CloseIdle()
	})
}

// proved are sessions whose proof expires soon, or has expired.
type proved struct {
	server.Sessions
	life time.Duration
}

func (p proved) Caller(w http.ResponseWriter, r *http.Request, begin bool) (server.Caller, error) {
	c, err := p.Sessions.Caller(w, r, begin)
	c.Until = time.Now().Add(p.life)
	return c, err
}

func TestASocketEndsWithTheProofOfItsSession(t *testing.T) {
	for _, life := range []time.Duration{-time.Second, 100 * time.Millisecond} {
		s := newPusherSite(t, func(s *setup) { s.sessions = proved{s.sessions, life} })
		b := s.browser(t)
		b.take()
		p := b.connect()
		const channel = "private-documents.room"
		_, auth := b.authorized(p.id, channel)
		p.send("pusher:subscribe", map[string]string{"channel": channel, "auth": auth})
		for code, socket := range map[websocket.StatusCode]*socket{4401: b.listen(lockPath+"/ws", websocket.DialOptions{}), 4203: p.socket} {
			text, closed := socket.rest()
			if closed != code || life < 0 && strings.Contains(text, locked) {
				t.Errorf("valid for %v: got %s, closed with %v, want %v and no event afterwards", life, text, closed, code)
			}
		}
	}
}

// rest reads until the socket is closed. It returns the messages and the code.
func (s *socket) rest() (text string, code websocket.StatusCode) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	for {
		_, data, err := s.conn.Read(ctx)
		if err != nil {
			return text, websocket.CloseStatus(err)
		}
		text += string(data)
	}
}

func TestASlowApplicationStopsNoSocketsReading(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-answer:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(slow.Close)
	p := newPusherSite(t, func(s *setup) { s.options.Authorize = slow.URL }).browser(t).connect()
	p.send("pusher:subscribe", map[string]string{"channel": "documents.room"})
	<-asked
	p.wantAlive()
	close(answer)
	if f := p.frame(); f.Event != succeed {
		t.Errorf("after the answer: %+v, want %s", f, succeed)
	}
}

func TestTheApplicationHasABoundedNumberOfConnections(t *testing.T) {
	var now, most atomic.Int64
	busy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		time.Sleep(50 * time.Millisecond)
	}))
	t.Cleanup(busy.Close)
	s := newSite(t, func(s *setup) { s.options.Authorize = busy.URL })
	var all sync.WaitGroup
	for i := range 250 {
		b := s.browser(t)
		all.Go(func() { b.ask(http.MethodGet, fmt.Sprint("/api/documents/", i, "/lock")) })
	}
	all.Wait()
	if n := most.Load(); n > 100 {
		t.Errorf("%d requests at once, want at most 100", n)
	}
}
