package taskauth_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"taskguard/emulator/oidc"
	"taskguard/internal/taskauth"
)

const (
	audience = "https://worker.example.test"
	account  = "invoker@project.iam.gserviceaccount.com"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// google returns one issuer for all tests that do not rotate its keys, since a key takes long to
// make.
var google = sync.OnceValue(func() *oidc.Issuer {
	i, err := oidc.NewIssuer()
	if err != nil {
		panic(err)
	}
	return i
})

// site is the network. It answers the fetches of the keys and counts them.
type site struct {
	mu          sync.Mutex
	fetches     int
	handler     http.Handler
	unreachable bool
	slow        time.Duration
	broken      bool // after the headers
}

func (s *site) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.fetches++
	handler, unreachable, slow, broken := s.handler, s.unreachable, s.slow, s.broken
	s.mu.Unlock()
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	if unreachable {
		return nil, errors.New("dial tcp: lookup keys.example.test: no such host")
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	resp := w.Result()
	if broken {
		resp.Body = io.NopCloser(iotest.ErrReader(errors.New("read tcp: connection reset by example")))
	}
	return resp, nil
}

func (s *site) set(change func(*site)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *site) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fetches
}

// page returns a handler that answers text.
func page(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })
}

// newVerifier returns a verifier with the network s; log may be nil.
func newVerifier(t testing.TB, s *site, log *slog.Logger) *taskauth.Verifier {
	t.Helper()
	v, err := taskauth.New(taskauth.Options{
		Audience: audience, Accounts: []string{"other@x.test", account},
		KeySource: taskauth.KeySource{KeysURL: "https://keys.example.test/certs", Client: &http.Client{Transport: s}, Log: log},
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// running calls newVerifier, and Run until the test ends.
func running(t testing.TB, s *site, log *slog.Logger) *taskauth.Verifier {
	t.Helper()
	v := newVerifier(t, s, log)
	run(t, v.Run)
	return v
}

// run runs f in a goroutine until the end of the test.
func run(t testing.TB, f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

func request(authorization ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/internal/tasks/analysis", http.NoBody)
	for _, a := range authorization {
		r.Header.Add("Authorization", a)
	}
	return r
}

// good returns the claims of a valid token, with the values of edit. A nil value removes a claim.
func good(edit map[string]any) map[string]any {
	c := map[string]any{
		"iss": "https://accounts.google.com", "aud": audience, "sub": "1", "email": account, "email_verified": true,
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}
	maps.Copy(c, edit)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

func sign(t testing.TB, i *oidc.Issuer, edit map[string]any) string {
	t.Helper()
	token, err := i.Sign(good(edit))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func mint(t testing.TB, i *oidc.Issuer) string {
	t.Helper()
	token, err := i.Token(account, audience)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func wantPass(t testing.TB, v *taskauth.Verifier, token string) {
	t.Helper()
	if err := v.Check(request("Bearer " + token)); err != nil {
		t.Errorf("got %v, want it to pass", err)
	}
}

func wantError(t testing.TB, v *taskauth.Verifier, token string, want error) {
	t.Helper()
	if err := v.Check(request("Bearer " + token)); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

// knownTexts are all texts that an error of Check may have.
var knownTexts = []string{
	"taskauth: unauthenticated: no token",
	"taskauth: unauthenticated: more than one token",
	"taskauth: unauthenticated: not a bearer token",
	"taskauth: unauthenticated: token too long",
	"taskauth: unauthenticated: malformed token, or another algorithm",
	"taskauth: unauthenticated: unknown key",
	"taskauth: unauthenticated: invalid signature or claims",
	"taskauth: unauthenticated: wrong audience",
	"taskauth: unauthenticated: no expiry",
	"taskauth: unauthenticated: expired",
	"taskauth: unauthenticated: not valid yet",
	"taskauth: unauthenticated: wrong issuer",
	"taskauth: unauthenticated: no subject",
	"taskauth: unauthenticated: no email",
	"taskauth: unauthenticated: email not verified",
	"taskauth: forbidden: account not allowed",
	"taskauth: no keys",
}

func TestNewRefusesOptionsThatAdmitAllOrNone(t *testing.T) {
	for name, o := range map[string]taskauth.Options{
		"no audience":      {Accounts: []string{account}},
		"a blank audience": {Audience: " ", Accounts: []string{account}},
		"no accounts":      {Audience: audience},
		"an empty account": {Audience: audience, Accounts: []string{account, ""}},
		"some and any":     {Audience: audience, Accounts: []string{account}, AnyAccount: true},
		"any, no audience": {AnyAccount: true},
		"a file of keys":   {Audience: audience, Accounts: []string{account}, KeySource: taskauth.KeySource{KeysURL: "file:///etc/keys"}},
		"keys of ftp":      {Audience: audience, Accounts: []string{account}, KeySource: taskauth.KeySource{KeysURL: "ftp://keys.test/"}},
		"keys of no host":  {Audience: audience, Accounts: []string{account}, KeySource: taskauth.KeySource{KeysURL: "https:///certs"}},
		"keys of no URL":   {Audience: audience, Accounts: []string{account}, KeySource: taskauth.KeySource{KeysURL: "https://h:port\x7f"}},
	} {
		if v, err := taskauth.New(o); err == nil || v != nil {
			t.Errorf("%s: got %v, %v, want an error", name, v, err)
		}
	}
}

// checkCase checks a request after the keys were fetched. Neither the error nor the log may contain
// a text of the request.
func checkCase(t *testing.T, edit func(valid string) []string, want error, text string) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		v := running(t, &site{handler: google()}, slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		valid := mint(t, google())
		wantPass(t, v, valid)
		log.Reset()
		values := edit(valid)
		err := v.Check(request(values...))
		synctest.Wait()
		if !errors.Is(err, want) || err == nil != (want == nil) {
			t.Fatalf("got %v, want %v", err, want)
		}
		if err != nil && (!slices.Contains(knownTexts, err.Error()) || !strings.HasSuffix(err.Error(), text)) {
			t.Errorf("got the text %q, want a known one that ends with %q", err, text)
		}
		if log.Len() > 0 {
			t.Errorf("a request is logged: %s", &log)
		}
	})
}

func TestTheKeysComeFromAServerButNotByARedirect(t *testing.T) {
	server := httptest.NewServer(google())
	defer server.Close()
	redirect := httptest.NewServer(http.RedirectHandler(server.URL, http.StatusFound))
	defer redirect.Close()
	for url, want := range map[string]error{server.URL + "/certs": nil, redirect.URL: taskauth.ErrNoKeys} {
		v, err := taskauth.New(taskauth.Options{Audience: audience, Accounts: []string{account}, KeySource: taskauth.KeySource{KeysURL: url}})
		if err != nil {
			t.Fatal(err)
		}
		run(t, v.Run)
		wantError(t, v, mint(t, google()), want)
	}
}
