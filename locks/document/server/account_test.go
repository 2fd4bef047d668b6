package server_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"taskguard/emulator/oidc"
	"taskguard/internal/taskauth"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
)

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

func (f fixed) Subject(*http.Request) (subject, name string, err error) {
	if f == "" {
		return "", "", taskauth.ErrNoKeys
	}
	return string(f), "A Name", nil
}

func TestASubjectIsEscapedInItsOwner(t *testing.T) {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	caller, err := server.Accounts{Verifier: fixed("a/tab")}.Caller(nil, r, false)
	if want := (server.Caller{Owner: "oidc/a%2Ftab", Name: "A Name"}); err != nil || caller != want {
		t.Errorf("got %+v, %v, want %+v", caller, err, want)
	}
}

func TestWithoutKeysEveryTokenIsRefused(t *testing.T) {
	newSite(t, func(s *setup) { s.sessions = server.Accounts{Verifier: fixed("")} }).browser(t).want(http.StatusServiceUnavailable,
		`{"success":false,"error":"unavailable","message":"tokens cannot be checked now; try again"}`,
		http.MethodPost, lockPath, "Authorization", "Bearer "+mint(t, "a@x.test", audience))
}
