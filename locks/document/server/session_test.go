package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"taskguard/internal/taskauth"
	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
)

const (
	badSession      = `"invalid_session"`
	unauthenticated = `"unauthenticated"`
)

func TestCookies_Begin(t *testing.T) {
	t.Run("the page and a POST begin a session", func(t *testing.T) {
		h := memory(t, cookies(t))
		for _, at := range [][2]string{{http.MethodGet, "/"}, {http.MethodPost, lockPath + "?x"}} {
			status, body, c := visit(t, h, at[0], at[1], "other=1")
			if status != http.StatusOK || c == nil {
				t.Fatalf("%v: %d %s, cookie %v", at, status, body, c)
			}
			attributes := c.String()[len(server.CookieName+"="+c.Value):]
			if attributes != "; Path=/; Max-Age=2592000; HttpOnly; SameSite=Lax" { // 30 days
				t.Errorf("cookie %+v", c)
			}
			if parts := strings.Split(c.Value, "."); len(parts) != 4 || parts[0] != "v1" {
				t.Errorf("cookie %q, want version.id.issued.mac", c.Value)
			}
			if _, _, again := visit(t, h, at[0], at[1], c.Name+"="+c.Value); again != nil {
				t.Errorf("%v: a valid session was replaced", at)
			}
		}
	})

	t.Run("nothing else does", func(t *testing.T) {
		h := memory(t, cookies(t))
		want := func(status int, method, path string) {
			t.Helper()
			got, body, set := visit(t, h, method, path, "", server.ClientHeader, "tab")
			if got != status || set != nil {
				t.Errorf("%s %s: %d %s, cookie %v", method, path, got, body, set)
			}
		}
		want(http.StatusOK, http.MethodGet, lockPath)
		want(http.StatusNotFound, http.MethodPut, lockPath)
		want(http.StatusOK, http.MethodDelete, lockPath)
		want(http.StatusNotFound, http.MethodGet, lockPath+"/confirm?token=1")
		visit(t, h, http.MethodPost, lockPath, begun(t, h), server.ClientHeader, "tab")
		want(http.StatusForbidden, http.MethodPut, lockPath)
		want(http.StatusForbidden, http.MethodDelete, lockPath)
	})

	t.Run("over TLS the cookie is secure", func(t *testing.T) {
		h := memory(t, cookies(t))
		for forwarded, want := range map[string]bool{"https": true, "https, http": true, "http, https": false} {
			if _, _, set := visit(t, h, http.MethodGet, "/", "", "X-Forwarded-Proto", forwarded); set.Secure != want {
				t.Errorf("%s: %+v", forwarded, set)
			}
		}
		_, _, set := visit(t, h, http.MethodGet, "https://doclock.example/", "", "X-Forwarded-Proto", "http")
		if !set.Secure {
			t.Errorf("%+v", set)
		}
	})
}

// A neighbouring subdomain can set a valid cookie of its own here.
func TestCookies_TwoSessions(t *testing.T) {
	h := memory(t, cookies(t))
	victim, attacker := begun(t, h), begun(t, h)
	for _, at := range [][2]string{{http.MethodPost, lockPath}, {http.MethodGet, lockPath}} {
		status, body, set := visit(t, h, at[0], at[1], attacker+"; "+victim)
		if status != http.StatusUnauthorized || !strings.Contains(body, `"two_sessions"`) {
			t.Errorf("%v: %d %s", at, status, body)
		}
		if set != nil { // the browser would keep only the attacker's cookie
			t.Errorf("%v: cookie %v", at, set)
		}
	}
	if _, _, set := visit(t, h, http.MethodGet, "/", attacker+"; "+victim); set != nil {
		t.Errorf("the page: cookie %v", set)
	}
	if status, body, _ := visit(t, h, http.MethodPost, lockPath, victim+"; "+victim); status != http.StatusOK {
		t.Errorf("the same one twice: %d %s", status, body)
	}
}

// A session's id may have a slash. It is not the session before the slash, with a client of the name behind it.
func TestCookies_Owner(t *testing.T) {
	h := memory(t, cookies(t))
	of := func(id string) string { return signed(fmt.Sprintf("v1.%s.%d", id, time.Now().Unix())) }
	status, body, _ := visit(t, h, http.MethodPost, lockPath, of("a"), server.ClientHeader, "b")
	if status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ := visit(t, h, http.MethodPut, lockPath, of("a%2Fb")); status != http.StatusForbidden {
		t.Errorf("another's lock: %d %s", status, body)
	}
}

// deleted reports whether c deletes the cookie, so that the next POST begins a session.
func deleted(c *http.Cookie) bool { return c != nil && c.MaxAge < 0 && c.Path == "/" }

func TestCookies_Forged(t *testing.T) {
	if _, err := server.NewCookies([]byte(strings.Repeat("x", server.MinSecret-1))); err == nil {
		t.Error("a short secret is accepted")
	}
	h := memory(t, cookies(t))
	ahead := signed(fmt.Sprintf("v1.id.%d", time.Now().Add(time.Minute).Unix()))
	if status, _, _ := visit(t, h, http.MethodPost, lockPath, ahead); status != http.StatusOK {
		t.Errorf("of an application whose clock is ahead: %d", status)
	}
	h = memory(t, cookies(t))
	other := must.Get(server.NewCookies([]byte(strings.Repeat("x", server.MinSecret))))(t)
	valid, now := begun(t, h), time.Now().Unix()
	parts := strings.Split(valid, ".")
	for name, cookie := range map[string]string{
		"empty":            server.CookieName + "=",
		"without a sign":   server.CookieName,
		"another's secret": begun(t, memory(t, other)),
		"an empty mac":     strings.Join(parts[:3], ".") + ".",
		"another's id":     strings.Replace(valid, parts[1], strings.Repeat("A", 26), 1),
		"more":             valid + "=",
		"no id":            signed(fmt.Sprintf("v1..%d", now)),
		"no id's encoding": signed(fmt.Sprintf("v1.%%zz.%d", now)),
		"a later version":  signed(fmt.Sprintf("v2.id.%d", now)),
		"no time":          signed("v1.id.x"),
		"six parts":        signed(fmt.Sprintf("v1.id.%d.YQ.YQ.x", now)),
	} {
		status, body, set := visit(t, h, http.MethodPost, lockPath, cookie)
		if status != http.StatusUnauthorized || !strings.Contains(body, badSession) {
			t.Errorf("%s: %d %s", name, status, body)
		}
		status, _, fresh := visit(t, h, http.MethodGet, "/", cookie)
		if status != http.StatusOK {
			t.Errorf("%s: loading the page: %d", name, status)
		}
		if !deleted(set) || !deleted(fresh) {
			t.Errorf("%s: cookies %v, %v", name, set, fresh)
		}
	}

	// A neighbouring site's beside a valid one.
	for _, cookie := range []string{
		server.CookieName + "=x; " + valid,
		valid + "; " + server.CookieName,
		valid + "; " + server.CookieName + "=" + valid,
	} {
		for _, at := range [][2]string{{http.MethodGet, lockPath}, {http.MethodPost, lockPath}, {http.MethodGet, "/"}} {
			if status, _, set := visit(t, h, at[0], at[1], cookie); status != http.StatusOK || set != nil {
				t.Errorf("%v: %d, cookie %v, want 200 and no change", at, status, set)
			}
		}
	}
}

// A session ends 30 days after it was renewed.
func TestCookies_Renewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		h := memory(t, cookies(t))
		cookie := begun(t, h)
		time.Sleep(15*day - time.Second)
		if _, _, set := visit(t, h, http.MethodGet, lockPath, cookie); set != nil {
			t.Error("renewed before half of its life")
		}
		time.Sleep(time.Second)
		_, _, second := visit(t, h, http.MethodGet, lockPath, cookie)
		if second == nil {
			t.Fatal("not renewed after half of its life")
		}
		renewed := second.Name + "=" + second.Value
		if strings.Split(renewed, ".")[1] != strings.Split(cookie, ".")[1] {
			t.Errorf("it is renewed as another session")
		}
		time.Sleep(15*day - time.Second)
		if status, _, _ := visit(t, h, http.MethodGet, lockPath, cookie); status != http.StatusOK {
			t.Errorf("a second before its end: %d", status)
		}
		time.Sleep(time.Second)
		status, _, set := visit(t, h, http.MethodGet, lockPath, cookie)
		if status != http.StatusUnauthorized || !deleted(set) {
			t.Errorf("after 30 days: %d, cookie %v", status, set)
		}
		if status, _, _ := visit(t, h, http.MethodGet, lockPath, renewed); status != http.StatusOK {
			t.Errorf("the renewed one: %d", status)
		}
	})
}

func TestCookies_Application(t *testing.T) {
	t.Run("its sessions are not renewed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			all := cookies(t)
			all.Application = true
			named, anonymous := ofUser7(), begun(t, memory(t, cookies(t)))
			mail := signed(fmt.Sprintf("v1.a%%40x%%2Etest.%d", time.Now().Unix()))
			time.Sleep(16 * 24 * time.Hour)
			for cookie, k := range map[string]*server.Cookies{named: cookies(t), anonymous: all} {
				status, body, set := visit(t, memory(t, k), http.MethodPost, lockPath, cookie)
				if status != http.StatusOK || set != nil {
					t.Errorf("%s: %d %s, cookie %v", cookie, status, body, set)
				}
			}
			_, _, renewed := visit(t, memory(t, cookies(t)), http.MethodPost, lockPath, mail)
			if renewed == nil || !strings.HasPrefix(renewed.Value, "v1.a@x%2Etest.") {
				t.Errorf("one without a name is renewed as %v", renewed)
			}
		})
	})

	t.Run("it alone begins sessions if it makes them", func(t *testing.T) {
		k := cookies(t)
		k.Application = true
		h := memory(t, k)
		want := func(status int, text, method, path, cookie string) {
			t.Helper()
			got, body, set := visit(t, h, method, path, cookie)
			if got != status || !strings.Contains(body, text) {
				t.Errorf("%s %s: %d %s", method, path, got, body)
			}
			if set != nil {
				t.Errorf("%s %s: cookie %v", method, path, set)
			}
		}
		want(http.StatusOK, "", http.MethodGet, "/", "")
		want(http.StatusForbidden, `"no_session"`, http.MethodPost, lockPath, "")
		want(http.StatusOK, free, http.MethodGet, lockPath, "")
		want(http.StatusOK, "", http.MethodPost, lockPath, ofUser7())
	})
}

// The subject of a token is the owner.
func TestAccounts_Owner(t *testing.T) {
	b := newSite(t, withAccounts(t)).browser(t)
	first, second := "Bearer "+mint(t, "a@x.test", audience), "Bearer "+mint(t, "b@x.test", audience)
	got := b.take("Authorization", first)
	if state := must.Get(b.site.locks.Get(t.Context(), "room", ""))(t); !strings.HasPrefix(state.Lock.Owner, "oidc/1") {
		t.Errorf("the owner is %q", state.Lock.Owner)
	}
	if again := b.take("Authorization", "Bearer "+mint(t, "a@x.test", audience)); again.Token != got.Token {
		t.Errorf("another token of the same account is another owner")
	}
	b.want(http.StatusForbidden, notYours, http.MethodPut, lockPath, "Authorization", second)
	if got := b.do(http.MethodGet, lockPath, http.NoBody, "Authorization", second).header["Set-Cookie"]; got != nil {
		t.Errorf("a cookie was set: %v", got)
	}
}

func TestAccounts_Refused(t *testing.T) {
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
		if got.status != http.StatusUnauthorized || got.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: a socket: %+v", name, got)
		}
	}
	b.want(http.StatusOK, "", http.MethodGet, "/") // the page itself
	if strings.Contains(s.log.String(), valid) {
		t.Error("the token is in the log")
	}
	newSite(t, func(s *setup) { s.sessions = server.Accounts{Verifier: subject{}} }).browser(t).want(
		http.StatusServiceUnavailable, "tokens", http.MethodPost, lockPath, "Authorization", "Bearer "+valid)
}

// A browser cannot set headers of a WebSocket, and needs one of its subprotocols to be accepted.
// The token is not sent back.
func TestAccounts_Subprotocol(t *testing.T) {
	b := newSite(t, withAccounts(t)).browser(t)
	token := mint(t, "a@x.test", audience)
	l := b.listen(lockPath+"/ws", websocket.DialOptions{Subprotocols: []string{"bearer." + token, server.Protocol}})
	if got := l.conn.Subprotocol(); got != server.Protocol {
		t.Errorf("subprotocol %q, want %q", got, server.Protocol)
	}
	l.want(unlocked, document.Current)
	header := http.Header{"Authorization": {"Bearer " + token}}
	b.listen(lockPath+"/ws", websocket.DialOptions{HTTPHeader: header}).want(unlocked, document.Current)
}

// subject is a Verifier of one subject. If its ID is empty, it has no keys.
type subject taskauth.Subject

func (s subject) Subject(*http.Request) (taskauth.Subject, error) {
	if s.ID == "" {
		return taskauth.Subject{}, taskauth.ErrNoKeys
	}
	return taskauth.Subject(s), nil
}

func TestAccounts_Caller(t *testing.T) {
	r := &http.Request{Header: http.Header{}}
	a := subject{ID: "a/tab", Name: "A Name", User: "u1", Expires: time.Unix(1, 0)}
	want := server.Caller{
		Owner: "oidc/a%2Ftab", Until: time.Unix(1, 0), Profile: document.Profile{Name: "A Name", User: "u1"},
	}
	if got := must.Get(server.Accounts{Verifier: a}.Caller(nil, r, false))(t); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	longest := strings.Repeat("x", 256)
	for name, want := range map[string]string{longest: longest, longest + "x": "", "a\nb": "", "a\xff": ""} {
		s := subject{ID: "1", Name: name, User: name}
		got := must.Get(server.Accounts{Verifier: s}.Caller(nil, r, false))(t)
		if got.Profile != (document.Profile{Name: want, User: want}) {
			t.Errorf("%q: got %q, want %q", name, got.Profile, want)
		}
	}
}

// An application confirms a lock before it saves.
func TestExamples_Confirm(t *testing.T) {
	locks := must.Get(document.New(&lease.Memory[document.Lock]{}, 0))(t)
	server := httptest.NewServer(server.NewServer(t.Context(), locks, nil, cookies(t), server.Options{}))
	t.Cleanup(server.Close)
	lock := must.Get(locks.Acquire(t.Context(), "文書 1", "session/a@x.test/tab"))(t)
	token := fmt.Sprint(lock.Lock.Token)
	cookie := "other=1; " + signed(fmt.Sprintf("v1.a%%40x%%2Etest.%d", time.Now().Unix())) + "; more=2"

	for tool, program := range map[string][]string{"PHP": {"php", "confirm.php"}, "NODE": {"node", "confirm.js"}} {
		t.Run(program[0], func(t *testing.T) {
			ask := func(url, token, client string) (valid int, err error) {
				path := examplestest.Find(t, tool, program[0])[0]
				args := []string{program[1], url, "文書 1", token, client}
				cmd := exec.CommandContext(t.Context(), path, args...) //nolint:gosec // the test's own
				cmd.Dir, cmd.Env = "../../../docs/examples/"+program[0], append(os.Environ(), "COOKIE="+cookie)
				out, err := cmd.Output()
				if err != nil {
					return 0, err
				}
				return strconv.Atoi(strings.TrimSpace(string(out)))
			}
			for _, token := range []string{token, ""} {
				if valid := must.Get(ask(server.URL, token, "tab"))(t); valid < 1 || valid > 27_000 {
					t.Errorf("the holder, token %q: %d ms", token, valid)
				}
			}
			for _, c := range [][2]string{{token, "other"}, {token, ""}, {"", "other"}, {"1", "tab"}} {
				if valid := must.Get(ask(server.URL, c[0], c[1]))(t); valid != 0 {
					t.Errorf("%v: %d ms, want 0", c, valid)
				}
			}
			if valid, err := ask("http://127.0.0.1:1", token, "tab"); err == nil {
				t.Errorf("without a server: %d ms", valid)
			}
		})
	}
}
