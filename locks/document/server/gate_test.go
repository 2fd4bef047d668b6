package server_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
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

func TestGate_Answers(t *testing.T) {
	app := newApplication(t)
	s := newPusherSite(t, func(s *setup) { s.options.Authorize = app.url() })
	holder := s.browser(t)
	confirm := fmt.Sprintf("%s/confirm?token=%d", lockPath, holder.take().Token)

	refused := func(answer, status, code int, text string) {
		app.status.Store(int64(answer))
		b := s.user(t)
		p := b.connect()
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodGet} {
			b.want(status, text, method, lockPath)
		}
		b.want(status, text, http.MethodGet, confirm)
		b.want(status, text, http.MethodGet, lockPath+"/ws", upgrade()...)
		if got, auth := b.authorized(p.id, "private-documents.room"); got != status || auth != "" {
			t.Errorf("%d: a private channel: %d, %q", answer, got, auth)
		}
		p.send("pusher:subscribe", map[string]string{"channel": "documents.room"})
		p.wantRefused("documents.room", code)
		p.wantAlive()
	}
	for _, answer := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound} {
		refused(answer, http.StatusForbidden, 4009, `"not_permitted"`)
	}
	for _, answer := range []int{http.StatusFound, http.StatusInternalServerError} {
		refused(answer, http.StatusServiceUnavailable, 503, "permissions")
	}
	holder.want(http.StatusOK, "", http.MethodGet, confirm) // while the application is busy
	app.Close()
	holder.want(http.StatusOK, freed, http.MethodDelete, lockPath) // as after its sign-out
	s.browser(t).want(http.StatusServiceUnavailable, "permissions", http.MethodPost, lockPath)
}

// A room without an answer ends no other channel, and is asked about again on a new socket.
func TestGate_NoAnswer(t *testing.T) {
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
	p.wantRefused("documents.broken", http.StatusServiceUnavailable)
	s.browser(t).take()
	p.wantEvent("documents.room", locked, document.Acquired)

	alone := newPusherSite(t, func(s *setup) {
		s.options.Authorize, s.sessions = broken.URL, proved{s.sessions, 100 * time.Millisecond}
	}).browser(t).connect()
	alone.send("pusher:subscribe", map[string]string{"channel": "documents.broken"})
	alone.wantRefused("documents.broken", http.StatusServiceUnavailable)
	if _, closed := alone.rest(); closed != 4203 {
		t.Errorf("closed with %v, want 4203 when the permission would have expired", closed)
	}
}

// The application has 3 s. That it did not answer is not kept: the next request asks again.
func TestGate_AsksAgain(t *testing.T) {
	var asked atomic.Int64
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			<-r.Context().Done()
		}
	}))
	t.Cleanup(silent.Close)
	b := newSite(t, func(s *setup) { s.options.Authorize = silent.URL }).browser(t)
	b.ask(http.MethodGet, "/")
	b.want(http.StatusServiceUnavailable, "permissions", http.MethodGet, lockPath)
	b.want(http.StatusOK, "", http.MethodGet, lockPath)
}

// The application is asked once for a room and a session.
func TestGate_Questions(t *testing.T) {
	app := newApplication(t)
	s := newPusherSite(t, func(s *setup) { s.options.Authorize = app.url() })
	b := s.user(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { b.ask(http.MethodGet, lockPath, "Authorization", "Bearer x") })
	}
	all.Wait()
	b.take()
	b.listen(lockPath+"/ws", websocket.DialOptions{}).want(locked, document.Current)
	if n := app.asked.Load(); n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
	r := app.last.Load()
	cookie, _, _ := strings.Cut(r.Header.Get("Cookie"), "=")
	header := []string{cookie, r.Header.Get("Authorization"), r.Header.Get("Accept")}
	got := append([]string{r.Method, r.FormValue("room"), r.FormValue("by")}, header...)
	want := []string{http.MethodGet, "room", "doclock", server.CookieName, "Bearer x", "application/json"}
	if !slices.Equal(got, want) {
		t.Errorf("asked with %q, want %q", got, want)
	}

	b.ask(http.MethodGet, strings.Replace(lockPath, "room", "other", 1))
	stranger := s.browser(t)
	stranger.ask(http.MethodGet, lockPath) // may be another user than the next without a session
	stranger.ask(http.MethodGet, lockPath)
	if n := app.asked.Load(); n != 4 {
		t.Errorf("asked %d times, want 4: another room, and each caller without a session", n)
	}
}

// A permission is withdrawn within 10 s, and for a socket within a minute.
func TestGate_Withdrawal(t *testing.T) {
	application := newApplication(t)
	synctest.Test(t, func(t *testing.T) {
		locks := must.Get(document.New(&lease.Memory[document.Lock]{}, 0))(t)
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
		for _, want := range []int{http.StatusOK, http.StatusForbidden} { // the answer that was given, for 10 s
			if status, _, _ := visit(t, h, http.MethodGet, lockPath, cookie); status != want {
				t.Errorf("%d, want %d", status, want)
			}
			h.CloseIdle() // time passes only if nobody waits for a network
			time.Sleep(10 * time.Second)
			synctest.Wait()
		}
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

// A socket ends with the proof of its session.
func TestSocket_Proof(t *testing.T) {
	for _, life := range []time.Duration{-time.Second, 100 * time.Millisecond} {
		b := newPusherSite(t, func(s *setup) { s.sessions = proved{s.sessions, life} }).browser(t)
		b.take()
		p := b.connect()
		const channel = "private-documents.room"
		_, auth := b.authorized(p.id, channel)
		p.send("pusher:subscribe", map[string]string{"channel": channel, "auth": auth})
		plain := b.listen(lockPath+"/ws", websocket.DialOptions{})
		for want, socket := range map[websocket.StatusCode]*socket{4401: plain, 4203: p.socket} {
			text, closed := socket.rest()
			if closed != want {
				t.Errorf("valid for %v: closed with %v, want %v", life, closed, want)
			}
			if life < 0 && strings.Contains(text, locked) {
				t.Errorf("an event after the end of the proof: %s", text)
			}
		}
	}
}

// A slow application stops no socket's reading.
func TestGate_Slow(t *testing.T) {
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

// The application gets at most 100 connections.
func TestGate_Connections(t *testing.T) {
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
