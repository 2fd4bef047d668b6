package taskauth_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"go.uber.org/goleak"

	"taskguard/internal/taskauth"
)

const (
	audience = "https://worker.example.test"
	account  = "invoker@project.iam.gserviceaccount.com"
	keysURL  = "https://keys.example.test/certs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// issuer signs tokens as one of Google's signers does, and serves the page of its keys.
type issuer struct {
	algorithm jose.SignatureAlgorithm
	name      string // iss

	mu   sync.Mutex
	keys []jose.JSONWebKey // private; the first one signs
}

// issuers makes the signers of ID tokens and of Identity-Aware Proxy, each with a key.
func issuers(t testing.TB) (google, proxy *issuer) {
	t.Helper()
	google = &issuer{algorithm: jose.RS256, name: "https://accounts.google.com"}
	proxy = &issuer{algorithm: jose.ES256, name: "https://cloud.google.com/iap"}
	google.rotate(t)
	proxy.rotate(t)
	return google, proxy
}

// newKey makes a private key.
func newKey(t testing.TB, algorithm jose.SignatureAlgorithm) (key crypto.Signer) {
	t.Helper()
	var err error
	if algorithm == jose.RS256 {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// rotate makes a new key. The previous one stays on the page until the next rotation.
func (i *issuer) rotate(t testing.TB) {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	id := "1"
	if len(i.keys) > 0 {
		n, _ := strconv.Atoi(i.keys[0].KeyID)
		id = strconv.Itoa(n + 1)
	}
	key := jose.JSONWebKey{Key: newKey(t, i.algorithm), KeyID: id, Algorithm: string(i.algorithm), Use: "sig"}
	i.keys = append([]jose.JSONWebKey{key}, i.keys[:min(1, len(i.keys))]...)
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var page jose.JSONWebKeySet
	for n := range i.keys {
		page.Keys = append(page.Keys, i.keys[n].Public())
	}
	_ = json.NewEncoder(w).Encode(page)
}

// sign signs the claims of a valid token, with the values of edit. A nil value removes a claim.
func (i *issuer) sign(t testing.TB, edit map[string]any) string {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	return signWith(t, i.algorithm, i.keys[0], i.claims(edit))
}

func (i *issuer) claims(edit map[string]any) map[string]any {
	all := map[string]any{
		"iss": i.name, "aud": audience, "sub": "1", "email": account, "email_verified": true,
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}
	maps.Copy(all, edit)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	return all
}

func signWith(t testing.TB, algorithm jose.SignatureAlgorithm, key, claims any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// site is the network. It answers the fetches of the keys and counts them.
type site struct {
	mu      sync.Mutex
	fetches int
	handler http.Handler // nil: unreachable
	slow    time.Duration
}

func (s *site) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.fetches++
	handler, slow := s.handler, s.slow
	s.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if handler == nil {
		return nil, errors.New("dial tcp: lookup keys.example.test: no such host")
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Result(), nil
}

// set changes what the site answers, and returns the number of fetches until then.
func (s *site) set(handler http.Handler, slow time.Duration) (fetches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler, s.slow = handler, slow
	return s.fetches
}

func (s *site) keys(log *slog.Logger) taskauth.KeySource {
	return taskauth.KeySource{KeysURL: keysURL, Client: &http.Client{Transport: s}, Log: log}
}

// check returns the check of the tokens of i, whose keys come from s; log may be nil.
func (i *issuer) check(t testing.TB, s *site, log *slog.Logger) func(token string) error {
	t.Helper()
	if i.algorithm == jose.ES256 {
		proxy, err := taskauth.NewIAP(audience, s.keys(log))
		if err != nil {
			t.Fatal(err)
		}
		return func(token string) error {
			email, err := proxy.Identify(request("X-Goog-IAP-JWT-Assertion", token))
			if (email == account) != (err == nil) {
				t.Errorf("the sender is %q, %v", email, err)
			}
			return err
		}
	}

	v, err := taskauth.New(taskauth.Options{Audience: audience, Accounts: []string{"other@x.test", account}, KeySource: s.keys(log)})
	if err != nil {
		t.Fatal(err)
	}
	return func(token string) error { return v.Check(request("Authorization", "Bearer "+token)) }
}

func request(header string, values ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/internal/tasks/analysis", http.NoBody)
	for _, value := range values {
		r.Header.Add(header, value)
	}
	return r
}

func TestNewRefusesOptionsThatAdmitAllOrNone(t *testing.T) {
	accounts := []string{account}
	for name, o := range map[string]taskauth.Options{
		"no audience":      {Accounts: accounts},
		"a blank audience": {Audience: " ", Accounts: accounts},
		"no accounts":      {Audience: audience},
		"a blank account":  {Audience: audience, Accounts: []string{account, " "}},
		"some and any":     {Audience: audience, Accounts: accounts, AnyAccount: true},
	} {
		if v, err := taskauth.New(o); err == nil || v != nil {
			t.Errorf("%s: got %v, %v, want an error", name, v, err)
		}
	}
	if i, err := taskauth.NewIAP(" ", taskauth.KeySource{}); err == nil || i != nil {
		t.Errorf("IAP without an audience: %v, %v", i, err)
	}
}

func TestARequestNeedsOneToken(t *testing.T) {
	google, proxy := issuers(t)
	v, err := taskauth.New(taskauth.Options{Audience: audience, Accounts: []string{account}, KeySource: (&site{handler: google}).keys(nil)})
	if err != nil {
		t.Fatal(err)
	}
	iap, err := taskauth.NewIAP(audience, (&site{handler: proxy}).keys(nil))
	if err != nil {
		t.Fatal(err)
	}

	token, assertion := google.sign(t, nil), proxy.sign(t, nil)
	for _, c := range []struct {
		values []string
		text   string
	}{
		{nil, "not one token"},
		{[]string{"Bearer " + token, "Bearer " + token}, "not one token"},
		{[]string{""}, "not a bearer token"},
		{[]string{token}, "not a bearer token"},
		{[]string{"Basic " + token}, "not a bearer token"},
		{[]string{"\x00\xff garbage"}, "not a bearer token"},
		{[]string{"Bearer"}, malformed},
		{[]string{"bearer   " + token}, ""},
	} {
		if err := v.Check(request("Authorization", c.values...)); text(err) != c.text {
			t.Errorf("%q: %v, want …%s", c.values, err, c.text)
		}
	}
	if _, err := iap.Identify(request("Authorization", "Bearer "+assertion)); text(err) != "not one token" {
		t.Errorf("no assertion: %v", err)
	}
	if _, err := iap.Identify(request("X-Goog-IAP-JWT-Assertion", assertion, assertion)); text(err) != "not one token" {
		t.Errorf("two assertions: %v", err)
	}
}

func TestTheKeysAreGooglesByDefault(t *testing.T) {
	asked := map[string]bool{}
	keys := taskauth.KeySource{Client: &http.Client{Transport: &site{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked[r.URL.String()] = true
		w.WriteHeader(http.StatusNotFound)
	})}}}
	google, proxy := issuers(t)
	v, err := taskauth.New(taskauth.Options{Audience: audience, AnyAccount: true, KeySource: keys})
	if err != nil {
		t.Fatal(err)
	}
	iap, err := taskauth.NewIAP(audience, keys)
	if err != nil {
		t.Fatal(err)
	}
	_ = v.Check(request("Authorization", "Bearer "+google.sign(t, nil)))
	_, _ = iap.Identify(request("X-Goog-IAP-JWT-Assertion", proxy.sign(t, nil)))
	if !asked["https://www.googleapis.com/oauth2/v3/certs"] || !asked["https://www.gstatic.com/iap/verify/public_key-jwk"] || len(asked) != 2 {
		t.Errorf("asked for %v", asked)
	}
}

// text returns the text of an error without the sentinel that it begins with; "": nil.
func text(err error) string {
	for _, sentinel := range []error{taskauth.ErrUnauthenticated, taskauth.ErrForbidden} {
		if errors.Is(err, sentinel) {
			return strings.TrimPrefix(err.Error(), sentinel.Error()+": ")
		}
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func TestSubjectReturnsTheTextOfTheNameClaim(t *testing.T) {
	google, _ := issuers(t)
	v, err := taskauth.New(taskauth.Options{
		Audience: audience, AnyAccount: true, NameClaim: "nickname", UserClaim: "login", KeySource: (&site{handler: google}).keys(nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		claims map[string]any
		want   taskauth.Subject
		text   string
	}{
		{map[string]any{"nickname": "Aoi", "name": "another", "login": "a7"}, taskauth.Subject{ID: "1", Name: "Aoi", User: "a7"}, ""},
		{map[string]any{"nickname": 7, "email": nil, "email_verified": nil}, taskauth.Subject{ID: "1"}, ""},
		{map[string]any{"sub": strings.Repeat("1", 255), "email": "another@x.test"}, taskauth.Subject{ID: strings.Repeat("1", 255)}, ""},
		{map[string]any{"sub": nil, "nickname": "Aoi"}, taskauth.Subject{}, "no subject"},
		{map[string]any{"sub": 1}, taskauth.Subject{}, signature},
		{map[string]any{"sub": strings.Repeat("1", 256)}, taskauth.Subject{}, "no subject"},
		{map[string]any{"aud": "https://other.example.test"}, taskauth.Subject{}, wrongAudience},
	} {
		r := request("Authorization", "Bearer "+google.sign(t, c.claims))
		got, err := v.Subject(r)
		if left := time.Until(got.Expires); err == nil && (left < time.Minute || left > 2*time.Hour) {
			t.Errorf("%v: it expires in %v", c.claims, left)
		}
		got.Expires = time.Time{}
		if got != c.want || text(err) != c.text || text(v.Check(r)) != c.text {
			t.Errorf("%v: %+v, %v; want %+v, …%s", c.claims, got, err, c.want, c.text)
		}
	}
}

func TestTheKeysComeFromAServerButNotByARedirect(t *testing.T) {
	google, _ := issuers(t)
	server := httptest.NewServer(google)
	defer server.Close()
	redirect := httptest.NewServer(http.RedirectHandler(server.URL, http.StatusFound))
	defer redirect.Close()
	defer http.DefaultClient.CloseIdleConnections()
	for url, want := range map[string]error{server.URL + "/certs": nil, redirect.URL: taskauth.ErrNoKeys} {
		v, err := taskauth.New(taskauth.Options{Audience: audience, Accounts: []string{account}, KeySource: taskauth.KeySource{KeysURL: url}})
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Check(request("Authorization", "Bearer "+google.sign(t, nil))); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", url, err, want)
		}
	}
}
