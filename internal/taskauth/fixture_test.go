package taskauth_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
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
	made int
	keys []jose.JSONWebKey // private; the first one signs
}

// issuers makes the signers of ID tokens and of Identity-Aware Proxy, each with a key.
func issuers() (google, proxy *issuer) {
	google = &issuer{algorithm: jose.RS256, name: "https://accounts.google.com"}
	proxy = &issuer{algorithm: jose.ES256, name: "https://cloud.google.com/iap"}
	google.rotate()
	proxy.rotate()
	return google, proxy
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// newKey makes a private key.
func newKey(algorithm jose.SignatureAlgorithm) crypto.Signer {
	if algorithm == jose.RS256 {
		return must(rsa.GenerateKey(rand.Reader, 2048))
	}
	return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
}

// rotate makes a new key. The previous one stays on the page until the next rotation.
func (i *issuer) rotate() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.made++
	key := jose.JSONWebKey{
		Key: newKey(i.algorithm), KeyID: strconv.Itoa(i.made), Algorithm: string(i.algorithm), Use: "sig",
	}
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
func (i *issuer) sign(edit map[string]any) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return signWith(i.algorithm, i.keys[0], i.claims(edit))
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

func signWith(algorithm jose.SignatureAlgorithm, key, claims any) string {
	signer := must(jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, nil))
	return must(jwt.Signed(signer).Claims(claims).Serialize())
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
		proxy := must(taskauth.NewIAP(audience, s.keys(log)))
		return func(token string) error {
			email, err := proxy.Identify(request("X-Goog-IAP-JWT-Assertion", token))
			if (email == account) != (err == nil) {
				t.Errorf("the sender is %q, %v", email, err)
			}
			return err
		}
	}

	v := verifier(taskauth.Options{Accounts: []string{"other@x.test", account}, KeySource: s.keys(log)})
	return func(token string) error { return v.Check(request("Authorization", "Bearer "+token)) }
}

func request(header string, values ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/internal/tasks/analysis", http.NoBody)
	for _, value := range values {
		r.Header.Add(header, value)
	}
	return r
}

// verifier returns a Verifier of tokens for the audience.
func verifier(o taskauth.Options) *taskauth.Verifier {
	o.Audience = audience
	return must(taskauth.New(o))
}

// checkReason wants err to be a refusal with this word, or none if it is empty.
func checkReason(t *testing.T, err error, word string, what ...any) {
	t.Helper()
	switch {
	case word == "" && err == nil:
	case word != "" && errors.Is(err, taskauth.ErrUnauthenticated) && strings.Contains(err.Error(), word):
	default:
		t.Errorf("%.300v: %v, want …%s", what, err, word)
	}
}

func encoded(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
