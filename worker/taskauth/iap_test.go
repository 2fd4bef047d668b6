package taskauth_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/worker/taskauth"
)

const (
	resource = "/projects/123456789012/global/backendServices/42"
	person   = "operator@example.test"
)

// proxy signs as Identity-Aware Proxy does and serves the page of its keys.
type proxy struct {
	mu   sync.Mutex
	keys []*ecdsa.PrivateKey // the first one signs
}

func newProxy(t testing.TB) *proxy {
	t.Helper()
	p := &proxy{}
	p.rotate(t)
	return p
}

// rotate makes a new key; the one before it stays on the page.
func (p *proxy) rotate(t testing.TB) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = append([]*ecdsa.PrivateKey{k}, p.keys[:min(1, len(p.keys))]...)
}

func (p *proxy) signer() *ecdsa.PrivateKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[0]
}

// point is the key's: uncompressed, its coordinates 32 bytes each.
func point(k *ecdsa.PrivateKey) []byte {
	b, err := k.PublicKey.Bytes()
	if err != nil {
		panic(err)
	}
	return b
}

func keyName(k *ecdsa.PrivateKey) string {
	sum := sha256.Sum256(point(k))
	return base64.RawURLEncoding.EncodeToString(sum[:6])
}

// entry is the key as the page shows it, edited.
func entry(k *ecdsa.PrivateKey, edit map[string]string) string {
	b64 := base64.RawURLEncoding.EncodeToString
	e := map[string]string{
		"alg": "ES256", "crv": "P-256", "kid": keyName(k), "kty": "EC", "use": "sig",
		"x": b64(point(k)[1:33]), "y": b64(point(k)[33:]),
	}
	maps.Copy(e, edit)
	data, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var entries []string
	for _, k := range p.keys {
		entries = append(entries, entry(k, nil))
	}
	w.Header().Set("Cache-Control", "public, max-age=3600")
	_, _ = fmt.Fprintf(w, `{"keys":[%s]}`, strings.Join(entries, ","))
}

// es256 is the signature by k, as JOSE has it: r and s, 32 bytes each.
func es256(k *ecdsa.PrivateKey) func([]byte) []byte {
	return func(signed []byte) []byte {
		sum := sha256.Sum256(signed)
		r, s, err := ecdsa.Sign(rand.Reader, k, sum[:])
		if err != nil {
			panic(err)
		}
		return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	}
}

// assemble puts the three segments together.
func assemble(header string, claims map[string]any, sign func([]byte) []byte) string {
	payload, err := json.Marshal(claims)
	if err != nil {
		panic(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	signed := b64([]byte(header)) + "." + b64(payload)
	return signed + "." + b64(sign([]byte(signed)))
}

// asserted is the claims of a good assertion, edited; a nil value removes a claim.
func asserted(edit map[string]any) map[string]any {
	c := map[string]any{
		"iss": "https://cloud.google.com/iap", "aud": resource, "sub": "accounts.google.com:1", "email": person,
		"azp": resource, "hd": "example.test", "iat": time.Now().Unix(), "exp": time.Now().Add(10 * time.Minute).Unix(),
	}
	maps.Copy(c, edit)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

func (p *proxy) header(alg string) string {
	return fmt.Sprintf(`{"alg":%q,"kid":%q,"typ":"JWT"}`, alg, keyName(p.signer()))
}

func (p *proxy) assertion(edit map[string]any) string {
	return assemble(p.header("ES256"), asserted(edit), es256(p.signer()))
}

func through(assertions ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	for _, a := range assertions {
		r.Header.Add("X-Goog-IAP-JWT-Assertion", a)
	}
	return r
}

// newIAP is one whose network is s; log may be nil.
func newIAP(t testing.TB, s *site, log *slog.Logger) *taskauth.IAP {
	t.Helper()
	i, err := taskauth.NewIAP(t.Context(), taskauth.IAPOptions{
		Audience: resource, KeysURL: "https://keys.example.test/iap", Client: &http.Client{Transport: s}, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// watching is newIAP with Run in a goroutine until the test ends.
func watching(t testing.TB, s *site, log *slog.Logger) *taskauth.IAP {
	t.Helper()
	i := newIAP(t, s, log)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { i.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return i
}

func wantPerson(t testing.TB, i *taskauth.IAP, token string) {
	t.Helper()
	if email, err := i.Check(through(token)); email != person || err != nil {
		t.Errorf("got %q, %v, want %s", email, err, person)
	}
}

// wantNobody also holds the error to the fixed texts; text ends it.
func wantNobody(t testing.TB, i *taskauth.IAP, r *http.Request, want error, text string) {
	t.Helper()
	email, err := i.Check(r)
	if email != "" || !errors.Is(err, want) {
		t.Fatalf("got %q, %v, want %v", email, err, want)
	}
	known := slices.Contains(words, strings.Replace(err.Error(), "ES256", "RS256", 1)) ||
		err.Error() == "taskauth: unauthenticated: more than one X-Goog-Iap-Jwt-Assertion header"
	if !known || !strings.HasSuffix(err.Error(), text) {
		t.Errorf("got the text %q, want a known one that ends with %q", err, text)
	}
}
