package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"taskguard/emulator/oidc"
	"taskguard/internal/taskauth"
	"taskguard/internal/testing/examplestest"
	"taskguard/lease"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
)

const badSession = `{"success":false,"error":"invalid_session","message":"the session cookie is not valid; load the page again for a new one"}`

// memory returns a server without sockets, for tests in virtual time.
func memory(t testing.TB, sessions server.Sessions) *server.Server {
	t.Helper()
	return serverOf(t, &lease.Memory[document.Lock]{}, sessions)
}

// serverOf returns a server of the locks in store, without sockets.
func serverOf(t testing.TB, store lease.Store[document.Lock], sessions server.Sessions) *server.Server {
	t.Helper()
	locks := must(document.New(store, 0))(t)
	return server.NewServer(t.Context(), locks, nil, sessions, server.Options{})
}

// visit makes a request with a Cookie header, unless that is empty. It returns the session cookie
// that the answer sets, if any.
func visit(t testing.TB, h http.Handler, method, path, cookie string, header ...string) (status int, body string, set *http.Cookie) {
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

func TestThePageAndAPostBeginASession(t *testing.T) {
	h := memory(t, cookies(t))
	for _, at := range [][2]string{{http.MethodGet, "/"}, {http.MethodPost, lockPath + "?x"}} {
		status, body, c := visit(t, h, at[0], at[1], "other=1")
		if status != http.StatusOK || c == nil {
			t.Fatalf("%v: %d %s, cookie %v", at, status, body, c)
		}
		if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.MaxAge != 30*24*60*60 || c.Domain != "" || c.Secure {
			t.Errorf("cookie %+v", c)
		}
		if parts := strings.Split(c.Value, "."); len(parts) != 4 || parts[0] != "v1" {
			t.Errorf("cookie %q, want version.id.issued.mac", c.Value)
		}
		if _, _, again := visit(t, h, at[0], at[1], c.Name+"="+c.Value); again != nil {
			t.Errorf("%v: a valid session was replaced", at)
		}
	}
}

func TestOnlyThePageAndAPostBeginASession(t *testing.T) {
	h := memory(t, cookies(t))
	holder := begun(t, h)
	for _, at := range []struct {
		cookie, method, path string
		status               int
		body                 string
	}{
		{"", http.MethodGet, lockPath, http.StatusOK, free},
		{"", http.MethodPut, lockPath, http.StatusNotFound, notFound},
		{"", http.MethodDelete, lockPath, http.StatusOK, freeNow},
		{"", http.MethodGet, lockPath + "/confirm?token=1", http.StatusNotFound, notFound},
		{holder, http.MethodPost, lockPath, http.StatusOK, ""},
		{"", http.MethodPut, lockPath, http.StatusForbidden, ""},
		{"", http.MethodDelete, lockPath, http.StatusForbidden, ""},
	} {
		status, body, set := visit(t, h, at.method, at.path, at.cookie, server.ClientHeader, "tab")
		if status != at.status || at.body != "" && body != at.body || set != nil {
			t.Errorf("%s %s: %d %s, cookie %v", at.method, at.path, status, body, set)
		}
	}
}

// A neighbouring subdomain can set a valid cookie of its own here.
func TestTwoSessionsAtOnceAreRefused(t *testing.T) {
	h := memory(t, cookies(t))
	victim, attacker := begun(t, h), begun(t, h)
	for _, at := range [][2]string{{http.MethodPost, lockPath}, {http.MethodGet, lockPath}, {http.MethodGet, "/"}} {
		status, body, set := visit(t, h, at[0], at[1], attacker+"; "+victim)
		if at[1] != "/" && (status != http.StatusUnauthorized || !strings.Contains(body, `"two_sessions"`)) {
			t.Errorf("%v: %d %s", at, status, body)
		}
		if set != nil { // the browser would keep only the attacker's cookie
			t.Errorf("%v: cookie %v", at, set)
		}
	}
	if status, body, _ := visit(t, h, http.MethodPost, lockPath, victim+"; "+victim); status != http.StatusOK {
		t.Errorf("the same one twice: %d %s", status, body)
	}
}

func TestOverTLSTheCookieIsSecure(t *testing.T) {
	h := memory(t, cookies(t))
	for _, c := range []struct {
		url, forwarded string
		want           bool
	}{
		{"/", "https", true},
		{"/", "https, http", true}, // two front ends
		{"/", "http, https", false},
		{"https://doclock.example/", "http", true},
	} {
		if _, _, set := visit(t, h, http.MethodGet, c.url, "", "X-Forwarded-Proto", c.forwarded); set == nil || set.Secure != c.want {
			t.Errorf("%+v: %+v", c, set)
		}
	}
}

// deleted reports whether c deletes the cookie, so that the next POST begins a session.
func deleted(c *http.Cookie) bool {
	return c != nil && c.MaxAge < 0 && c.Value == "" && c.Path == "/"
}

func TestAForgedCookieIsRefused(t *testing.T) {
	h := memory(t, cookies(t))
	if _, err := server.NewCookies([]byte(strings.Repeat("x", server.MinSecret-1))); err == nil {
		t.Error("a short secret is accepted")
	}
	other := must(server.NewCookies([]byte(strings.Repeat("x", server.MinSecret))))(t)
	valid := begun(t, h)
	if status, _, _ := visit(t, h, http.MethodPost, lockPath+"?x", signed(fmt.Sprintf("v1.id.%d", time.Now().Add(time.Minute).Unix()))); status != http.StatusOK {
		t.Errorf("of an application whose clock is ahead: %d", status)
	}
	h = memory(t, cookies(t))
	parts := strings.Split(valid, ".")
	for name, cookie := range map[string]string{
		"empty":            server.CookieName + "=",
		"without a sign":   server.CookieName,
		"text":             server.CookieName + "=let me in",
		"another's secret": begun(t, memory(t, other)),
		"no mac":           strings.Join(parts[:3], "."),
		"an empty mac":     strings.Join(parts[:3], ".") + ".",
		"only a mac":       server.CookieName + "=." + parts[3],
		"another's id":     strings.Join([]string{parts[0], strings.Repeat("A", 26), parts[2], parts[3]}, "."),
		"more":             valid + "=",
		"more parts":       valid + ".x",
		"no id":            signed(fmt.Sprintf("v1..%d", time.Now().Unix())),
		"no id's encoding": signed(fmt.Sprintf("v1.%%zz.%d", time.Now().Unix())),
		"a later version":  signed(fmt.Sprintf("v2.id.%d", time.Now().Unix())),
		"no time":          signed("v1.id.x"),
		"six parts":        signed(fmt.Sprintf("v1.id.%d.YQ.YQ.x", time.Now().Unix())),
	} {
		if status, body, set := visit(t, h, http.MethodPost, lockPath, cookie); status != http.StatusUnauthorized || body != badSession || !deleted(set) {
			t.Errorf("%s: %d %s, cookie %v", name, status, body, set)
		}
		status, _, set := visit(t, h, http.MethodGet, "/", cookie)
		if status != http.StatusOK || !deleted(set) {
			t.Errorf("%s: loading the page: %d, cookie %v", name, status, set)
		}
	}
	// A neighbouring site's.
	for _, cookie := range []string{server.CookieName + "=x; " + valid, valid + "; " + server.CookieName, valid + "; " + server.CookieName + "=" + valid} {
		for _, at := range [][2]string{{http.MethodGet, lockPath}, {http.MethodPost, lockPath}, {http.MethodGet, "/"}} {
			if status, _, set := visit(t, h, at[0], at[1], cookie); status != http.StatusOK || set != nil {
				t.Errorf("%v, a valid one next to an invalid one: %d, cookie %v, want 200 and no change", at, status, set)
			}
		}
	}
}

func TestASessionEndsThirtyDaysAfterItWasRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		h := memory(t, cookies(t))
		cookie := begun(t, h)
		if status, _, _ := visit(t, h, http.MethodPost, lockPath, cookie); status != http.StatusOK {
			t.Fatalf("POST: %d", status)
		}
		time.Sleep(15*day - time.Second)
		if _, _, set := visit(t, h, http.MethodGet, lockPath, cookie); set != nil {
			t.Error("renewed before half of its life")
		}
		time.Sleep(time.Second)
		status, _, set := visit(t, h, http.MethodGet, lockPath, cookie)
		if status != http.StatusOK || set == nil {
			t.Fatalf("after half of its life: %d, cookie %v, want it renewed", status, set)
		}
		renewed := set.Name + "=" + set.Value
		if id, was := strings.Split(set.Value, ".")[1], strings.Split(cookie, ".")[1]; id != was {
			t.Errorf("it is renewed as another session")
		}
		time.Sleep(15*day - time.Second)
		if status, _, _ := visit(t, h, http.MethodGet, lockPath, cookie); status != http.StatusOK {
			t.Errorf("a second before its end: %d", status)
		}
		time.Sleep(time.Second)
		if status, body, set := visit(t, h, http.MethodGet, lockPath, cookie); status != http.StatusUnauthorized || body != badSession || !deleted(set) {
			t.Errorf("after 30 days: %d %s, cookie %v", status, body, set)
		}
		if status, _, _ := visit(t, h, http.MethodGet, lockPath, renewed); status != http.StatusOK {
			t.Errorf("the renewed one: %d", status)
		}
	})
}

const audience = "https://doclock.example.test"

// issuer returns one issuer for all tests, since a key takes long to make.
var issuer = sync.OnceValue(oidc.NewIssuer)

func mint(t testing.TB, email, audience string) string {
	t.Helper()
	token := must(issuer().Token(email, audience))(t)
	return token
}

// verifier returns a verifier of the issuer's tokens.
func verifier(t testing.TB, o taskauth.Options) *taskauth.Verifier {
	t.Helper()
	keys := httptest.NewServer(issuer())
	o.KeysURL = keys.URL
	t.Cleanup(keys.Close)
	return must(taskauth.New(o))(t)
}

func withAccounts(t testing.TB) func(*setup) {
	t.Helper()
	v := verifier(t, taskauth.Options{Audience: audience, AnyAccount: true})
	return func(s *setup) { s.sessions = server.Accounts{Verifier: v} }
}

const unauthenticated = `{"success":false,"error":"unauthenticated","message":"a valid bearer token is needed"}`

func TestTheSubjectOfATokenIsTheOwner(t *testing.T) {
	b := newSite(t, withAccounts(t)).browser(t)
	first, second := "Bearer "+mint(t, "a@x.test", audience), "Bearer "+mint(t, "b@x.test", audience)
	got, _ := b.take("Authorization", first)
	if state, err := b.site.locks.Get(t.Context(), "room", ""); err != nil || !strings.HasPrefix(state.Lock.Owner, "oidc/1") {
		t.Errorf("the owner is %q, %v", state.Lock.Owner, err)
	}
	if again, _ := b.take("Authorization", "Bearer "+mint(t, "a@x.test", audience)); again.Token != got.Token {
		t.Errorf("another token of the same account is another owner")
	}
	b.want(http.StatusForbidden, notYours, http.MethodPut, lockPath, "Authorization", second)
	if got := b.do(http.MethodGet, lockPath, http.NoBody, "Authorization", second).header["Set-Cookie"]; got != nil {
		t.Errorf("a cookie was set: %v", got)
	}
}

func TestARequestWithoutAValidTokenIsRefused(t *testing.T) {
	s := newSite(t, withAccounts(t))
	b := s.browser(t)
	valid := mint(t, "a@x.test", audience)
	for name, header := range map[string][]string{
		"none":                 nil,
		"a cookie":             {"Cookie", server.CookieName + "=" + valid},
		"another audience":     {"Authorization", "Bearer " + mint(t, "a@x.test", "https://other.example.test")},
		"altered":              {"Authorization", "Bearer " + valid[:len(valid)-8] + "AAAAAAAA"},
		"two":                  {"Authorization", "Bearer " + valid, "Authorization", "Bearer " + valid},
		"two, as subprotocols": {"Sec-WebSocket-Protocol", "bearer." + valid + ", bearer." + valid},
		"an empty subprotocol": {"Sec-WebSocket-Protocol", "doclock, bearer."},
	} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodGet} {
			b.want(http.StatusUnauthorized, unauthenticated, method, lockPath, header...)
		}
		got := b.do(http.MethodGet, lockPath+"/ws", http.NoBody, upgrade(header...)...)
		if got.status != http.StatusUnauthorized || got.body != unauthenticated || got.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: a socket: %+v", name, got)
		}
	}
	if status, _ := b.ask(http.MethodGet, "/"); status != http.StatusOK {
		t.Errorf("the page itself: %d", status)
	}
	if strings.Contains(s.log.String(), valid) {
		t.Error("the token is in the log")
	}
}

// A browser cannot set headers of a WebSocket, and needs one of its subprotocols to be accepted.
// The token is not sent back.
func TestASocketTakesTheTokenAsASubprotocol(t *testing.T) {
	b := newSite(t, withAccounts(t)).browser(t)
	token := mint(t, "a@x.test", audience)
	l := b.listen(lockPath+"/ws", websocket.DialOptions{Subprotocols: []string{"bearer." + token, server.Protocol}})
	if got := l.conn.Subprotocol(); got != server.Protocol {
		t.Errorf("subprotocol %q, want %q", got, server.Protocol)
	}
	l.want(unlocked, document.Current)
	l = b.listen(lockPath+"/ws", websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	l.want(unlocked, document.Current)
}

// fixed is a Verifier of one subject. If that is empty, it has no keys.
type fixed string

func (f fixed) Subject(*http.Request) (taskauth.Subject, error) {
	if f == "" {
		return taskauth.Subject{}, taskauth.ErrNoKeys
	}
	return taskauth.Subject{ID: string(f), Name: "A Name", User: "u1", Expires: time.Unix(1, 0)}, nil
}

func TestASubjectIsEscapedInItsOwner(t *testing.T) {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	caller, err := server.Accounts{Verifier: fixed("a/tab")}.Caller(nil, r, false)
	if want := (server.Caller{Owner: "oidc/a%2Ftab", Until: time.Unix(1, 0), Profile: document.Profile{Name: "A Name", User: "u1"}}); err != nil || caller != want {
		t.Errorf("got %+v, %v, want %+v", caller, err, want)
	}
}

func TestWithoutKeysEveryTokenIsRefused(t *testing.T) {
	newSite(t, func(s *setup) { s.sessions = server.Accounts{Verifier: fixed("")} }).browser(t).want(http.StatusServiceUnavailable,
		`{"success":false,"error":"unavailable","message":"tokens cannot be checked now; try again"}`,
		http.MethodPost, lockPath, "Authorization", "Bearer "+mint(t, "a@x.test", audience))
}

func TestAnApplicationConfirmsALockBeforeItSaves(t *testing.T) {
	locks := must(document.New(&lease.Memory[document.Lock]{}, 0))(t)
	server := httptest.NewServer(server.NewServer(t.Context(), locks, nil, cookies(t), server.Options{}))
	t.Cleanup(server.Close)
	lock, err := locks.Acquire(t.Context(), "文書 1", "session/a@x.test/tab")
	if err != nil {
		t.Fatal(err)
	}
	cookie := "other=1; " + signed(fmt.Sprintf("v1.a%%40x%%2Etest.%d", time.Now().Unix())) + "; more=2"
	for tool, program := range map[string][]string{"PHP": {"php", "confirm.php"}, "NODE": {"node", "confirm.js"}} {
		t.Run(program[0], func(t *testing.T) {
			ask := func(url, token, client string) (valid int, err error) {
				cmd := exec.CommandContext(t.Context(), examplestest.Find(t, tool, program[0])[0], program[1], url, "文書 1", token, client) //nolint:gosec // the test's own
				cmd.Dir, cmd.Env = "../../../docs/examples/"+program[0], append(os.Environ(), "COOKIE="+cookie)
				out, err := cmd.Output()
				if err == nil {
					valid, err = strconv.Atoi(strings.TrimSpace(string(out)))
				}
				return valid, err
			}
			token := fmt.Sprint(lock.Lock.Token)
			for _, token := range []string{token, ""} {
				if valid, err := ask(server.URL, token, "tab"); err != nil || valid < 1 || valid > 27_000 {
					t.Errorf("the holder, token %q: %d ms, %v", token, valid, err)
				}
			}
			for _, c := range [][2]string{{token, "other"}, {token, ""}, {"", "other"}, {"1", "tab"}} {
				if valid, err := ask(server.URL, c[0], c[1]); err != nil || valid != 0 {
					t.Errorf("%v: %d ms, %v, want 0", c, valid, err)
				}
			}
			if valid, err := ask("http://127.0.0.1:1", token, "tab"); err == nil {
				t.Errorf("without a server: %d ms", valid)
			}
		})
	}
}
