package taskauth_test

import (
	"bytes"
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
	"testing/synctest"
	"time"

	"taskguard/internal/taskauth"
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

// rotate makes a new key. The previous one stays on the page.
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

// point returns the public key, uncompressed, with coordinates of 32 bytes.
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

// entry returns the key's entry on the page, with the values of edit.
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

// es256 returns a function that signs with k as JOSE does: r and s, 32 bytes each.
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

// asserted returns the claims of a valid assertion, with the values of edit. A nil value removes a
// claim.
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
	return assemble(p.header("ES256"), encode(asserted(edit)), es256(p.signer()))
}

func encode(claims map[string]any) string {
	data, err := json.Marshal(claims)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func through(assertions ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	for _, a := range assertions {
		r.Header.Add("X-Goog-IAP-JWT-Assertion", a)
	}
	return r
}

// watching returns an IAP with the network s, and calls Run until the test ends.
func watching(t testing.TB, s *site) *taskauth.IAP {
	t.Helper()
	i, err := taskauth.NewIAP(resource, taskauth.KeySource{KeysURL: "https://keys.example.test/iap", Client: &http.Client{Transport: s}})
	if err != nil {
		t.Fatal(err)
	}
	run(t, i.Run)
	return i
}

func wantPerson(t testing.TB, i *taskauth.IAP, token string) {
	t.Helper()
	if email, err := i.Identify(through(token)); email != person || err != nil {
		t.Errorf("got %q, %v, want %s", email, err, person)
	}
}

// wantRefused wants an error that is want, with one of the fixed texts, which ends with text.
func wantRefused(t testing.TB, i *taskauth.IAP, r *http.Request, want error, text string) {
	t.Helper()
	email, err := i.Identify(r)
	if email != "" || !errors.Is(err, want) {
		t.Fatalf("got %q, %v, want %v", email, err, want)
	}
	if !slices.Contains(knownTexts, err.Error()) || !strings.HasSuffix(err.Error(), text) {
		t.Errorf("got the text %q, want a known one that ends with %q", err, text)
	}
}

func TestNewIAPRefusesArgumentsThatAdmitAll(t *testing.T) {
	for audience, url := range map[string]string{"": "", " ": "", resource: "file:///etc/keys"} {
		if i, err := taskauth.NewIAP(audience, taskauth.KeySource{KeysURL: url}); err == nil || i != nil {
			t.Errorf("%q, %q: got %v, %v, want an error", audience, url, i, err)
		}
	}
}

func TestIAPNamesTheSender(t *testing.T) {
	p := newProxy(t)
	synctest.Test(t, func(t *testing.T) {
		i := watching(t, &site{handler: p})
		valid := p.assertion(nil)
		wantPerson(t, i, valid)
		wantRefused(t, i, through(), taskauth.ErrUnauthenticated, "no token")
		wantRefused(t, i, through(valid, valid), taskauth.ErrUnauthenticated, "more than one token")
		wantRefused(t, i, through("Bearer "+valid), taskauth.ErrUnauthenticated, malformed)
		wantRefused(t, i, through(valid+strings.Repeat("A", 8<<10)), taskauth.ErrUnauthenticated, "token too long")
		unsigned := through()
		unsigned.Header.Set("X-Goog-Authenticated-User-Email", "accounts.google.com:"+person)
		unsigned.Header.Set("Authorization", "Bearer "+valid)
		wantRefused(t, i, unsigned, taskauth.ErrUnauthenticated, "no token")
		mine, theirs := strings.Split(valid, "."), strings.Split(p.assertion(map[string]any{"email": "admin@example.test"}), ".")
		mine[1] = theirs[1]
		wantRefused(t, i, through(strings.Join(mine, ".")), taskauth.ErrUnauthenticated, signature)
	})
}

func TestOnlyAnES256SignatureByTheProxysKeyIsAccepted(t *testing.T) {
	p, other := newProxy(t), newProxy(t)
	es, kid := es256(p.signer()), `"kid":"`+keyName(p.signer())+`"`
	bytes := func(n int) func([]byte) []byte {
		return func(signed []byte) []byte { return append(es(signed), make([]byte, 66)...)[:n] }
	}
	flipped := func(signed []byte) []byte {
		s := es(signed)
		s[63] ^= 1
		return s
	}
	synctest.Test(t, func(t *testing.T) {
		i := watching(t, &site{handler: p})
		for name, c := range map[string]struct {
			header, text string
			sign         func([]byte) []byte
		}{
			"none":                   {p.header("none"), malformed, bytes(0)},
			"HS256 with the point":   {p.header("HS256"), malformed, mac(point(p.signer()))},
			"HMAC called ES256":      {p.header("ES256"), signature, mac(point(p.signer()))},
			"RS256":                  {p.header("RS256"), malformed, es},
			"ES384":                  {p.header("ES384"), malformed, es},
			"no algorithm":           {"{" + kid + "}", malformed, es},
			"zeros":                  {p.header("ES256"), signature, func([]byte) []byte { return make([]byte, 64) }},
			"a flipped bit":          {p.header("ES256"), signature, flipped},
			"no byte":                {p.header("ES256"), signature, bytes(0)},
			"31 bytes":               {p.header("ES256"), signature, bytes(31)},
			"63 bytes":               {p.header("ES256"), signature, bytes(63)},
			"65 bytes":               {p.header("ES256"), signature, bytes(65)},
			"another's key":          {p.header("ES256"), signature, es256(other.signer())},
			"another's key and name": {other.header("ES256"), "unknown key", es256(other.signer())},
			"a critical extension":   {`{"alg":"ES256",` + kid + `,"crit":["exp"],"exp":1}`, signature, es},
		} {
			t.Log(name)
			wantRefused(t, i, through(assemble(c.header, encode(asserted(nil)), c.sign)), taskauth.ErrUnauthenticated, c.text)
		}
	})
}

// The result is the same if both signers' keys are on one page.
func TestAnIDTokenIsNoAssertionNorTheReverse(t *testing.T) {
	p := newProxy(t)
	both := page(strings.Replace(googlePage(), "]", ","+entry(p.signer(), nil)+"]", 1))
	synctest.Test(t, func(t *testing.T) {
		i, v := watching(t, &site{handler: both}), running(t, &site{handler: both}, nil)
		idToken := sign(t, google(), map[string]any{"aud": resource, "iss": "https://cloud.google.com/iap"})
		wantRefused(t, i, through(idToken), taskauth.ErrUnauthenticated, malformed)
		wantError(t, v, p.assertion(map[string]any{"aud": audience, "iss": "https://accounts.google.com", "email": account, "email_verified": true}), taskauth.ErrUnauthenticated)
		wantPerson(t, i, p.assertion(nil))
	})
}

func TestTheClaimsOfAnAssertionAreChecked(t *testing.T) {
	p := newProxy(t)
	synctest.Test(t, func(t *testing.T) {
		i := watching(t, &site{handler: p})
		in := func(d time.Duration) any { return time.Now().Add(d).Unix() }
		for _, c := range []struct {
			claim string
			value any
			text  string // empty: passes
		}{
			{"iss", "https://accounts.google.com", "wrong issuer"},
			{"aud", "/projects/123456789012/global/backendServices/43", "wrong audience"},
			{"aud", "/projects/123456789012", "wrong audience"},
			{"exp", in(-time.Second), "expired"},
			{"exp", nil, "no expiry"},
			{"iat", in(11 * time.Second), "not valid yet"},
			{"iat", in(10 * time.Second), ""},
			{"email", nil, "no email"},
			{"email_verified", nil, ""},
		} {
			token := p.assertion(map[string]any{c.claim: c.value})
			if c.text == "" {
				wantPerson(t, i, token)
				continue
			}
			wantRefused(t, i, through(token), taskauth.ErrUnauthenticated, c.text)
		}
	})
}

func TestIAPLogsItsKeysAndDefaultsToGooglesPage(t *testing.T) {
	p := newProxy(t)
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		asked := ""
		i, err := taskauth.NewIAP(resource, taskauth.KeySource{
			Log: slog.New(slog.NewJSONHandler(&log, nil)),
			Client: &http.Client{Transport: &site{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = r.URL.String()
				p.ServeHTTP(w, r)
			})}},
		})
		if err != nil {
			t.Fatal(err)
		}
		run(t, i.Run)
		wantPerson(t, i, p.assertion(nil))
		synctest.Wait()
		if want := "https://www.gstatic.com/iap/verify/public_key-jwk"; asked != want || !strings.Contains(log.String(), "proxy keys fetched") {
			t.Errorf("asked %s, want %s; logged %s", asked, want, &log)
		}
	})
}
