package taskauth_test

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
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

func TestARequestWithoutOneBearerTokenIsUnauthenticated(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		edit func(valid string) []string
	}{
		"none":            {"no token", func(string) []string { return nil }},
		"only the scheme": {"no token", func(string) []string { return []string{"Bearer"} }},
		"garbage":         {"not a bearer token", func(string) []string { return []string{"\x00\xff garbage"} }},
		"only the token":  {"not a bearer token", func(v string) []string { return []string{v} }},
		"Basic":           {"not a bearer token", func(v string) []string { return []string{"Basic " + v} }},
		"twice":           {"more than one token", func(v string) []string { return []string{"Bearer " + v, "Bearer " + v} }},
	} {
		t.Run(name, func(t *testing.T) { checkCase(t, c.edit, taskauth.ErrUnauthenticated, c.text) })
	}
}

const (
	malformed = "malformed token, or another algorithm"
	signature = "invalid signature or claims"
)

func TestAMalformedTokenIsUnauthenticated(t *testing.T) {
	header := func(h string) func(string) string {
		return func(valid string) string {
			_, rest, _ := strings.Cut(valid, ".")
			return base64.RawURLEncoding.EncodeToString([]byte(h)) + "." + rest
		}
	}
	cases := map[string]struct {
		text string
		edit func(valid string) string
	}{
		"text":             {"", func(string) string { return "let me in" }},
		"dots":             {"", func(string) string { return ".." }},
		"two segments":     {"", func(v string) string { return v[:strings.LastIndex(v, ".")] }},
		"four segments":    {"", func(v string) string { return v + ".e30" }},
		"no signature":     {signature, func(v string) string { return v[:strings.LastIndex(v, ".")+1] }},
		"half a signature": {signature, func(v string) string { return v[:len(v)-170] }},
		"8 KiB":            {"", func(v string) string { return v + strings.Repeat(".", 8<<10-len(v)) }},
		"8 KiB and a byte": {"token too long", func(v string) string { return v + strings.Repeat(".", 8<<10-len(v)+1) }},
		"header null":      {"", header(`null`)},
		"header cut":       {"", header(`{"alg":"RS256"`)},
		"alg a number":     {"", header(`{"alg":256}`)},
		"alg absent":       {"", header(`{"kid":"k"}`)},
		"alg rs256":        {"", header(`{"alg":"rs256","kid":"k"}`)},
		"alg RS512":        {"", header(`{"alg":"RS512","kid":"k"}`)},
		"alg twice":        {"", header(`{"alg":"RS256","alg":"ES256","kid":"k"}`)},
		"kid absent":       {"unknown key", header(`{"alg":"RS256"}`)},
		"kid a number":     {"", header(`{"alg":"RS256","kid":1}`)},
		"kid unknown":      {"unknown key", header(`{"alg":"RS256","kid":"k"}`)},
		"deep":             {"", header(strings.Repeat("[", 4000))},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			checkCase(t, func(valid string) []string { return []string{"Bearer " + c.edit(valid)} }, taskauth.ErrUnauthenticated, cmp.Or(c.text, malformed))
		})
	}
}

func TestInvalidClaimsAreRefused(t *testing.T) {
	in := func(d time.Duration) func() any { return func() any { return time.Now().Add(d).Unix() } }
	is := func(v any) func() any { return func() any { return v } }
	no := taskauth.ErrUnauthenticated
	for name, c := range map[string]struct {
		claim string
		value func() any
		want  error
		text  string
	}{
		"other issuer":          {"iss", is("https://accounts.example.test"), no, "wrong issuer"},
		"issuer by http":        {"iss", is("http://accounts.google.com"), no, "wrong issuer"},
		"no issuer":             {"iss", is(nil), no, "wrong issuer"},
		"short issuer":          {"iss", is("accounts.google.com"), nil, ""},
		"other audience":        {"aud", is(audience + "/"), no, "wrong audience"},
		"several audiences":     {"aud", is([]string{audience, "https://other.example.test"}), no, "wrong audience"},
		"no audience":           {"aud", is(nil), no, "wrong audience"},
		"expired":               {"exp", in(-time.Second), no, "expired"},
		"expires this second":   {"exp", in(0), nil, ""},
		"no expiry":             {"exp", is(nil), no, "no expiry"},
		"expiry text":           {"exp", is("4102444800"), no, signature},
		"not before later":      {"nbf", in(11 * time.Second), no, "not valid yet"},
		"not before within 10s": {"nbf", in(10 * time.Second), nil, ""},
		"issued later":          {"iat", in(11 * time.Second), no, "not valid yet"},
		"issued within 10s":     {"iat", in(10 * time.Second), nil, ""},
		"issued never":          {"iat", is(nil), nil, ""},
		"email unverified":      {"email_verified", is(false), no, "email not verified"},
		"email verified text":   {"email_verified", is("true"), no, signature},
		"email verified absent": {"email_verified", is(nil), no, "email not verified"},
		"no email":              {"email", is(nil), no, "no email"},
		"email array":           {"email", is([]string{account}), no, signature},
		"another account":       {"email", is("another@x.test"), taskauth.ErrForbidden, "account not allowed"},
		"account in capitals":   {"email", is(strings.ToUpper(account)), taskauth.ErrForbidden, "account not allowed"},
		"odd others":            {"x", is(json.RawMessage(`[[{"":null}],1e5]`)), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			checkCase(t, func(string) []string {
				return []string{"Bearer " + sign(t, google(), map[string]any{c.claim: c.value()})}
			}, c.want, c.text)
		})
	}
}

// publicKey returns the issuer's key from its page.
var publicKey = sync.OnceValues(func() (kid string, key *rsa.PublicKey) {
	w := httptest.NewRecorder()
	google().ServeHTTP(w, nil)
	var page struct{ Keys []struct{ Kid, N, E string } }
	if err := json.NewDecoder(w.Body).Decode(&page); err != nil {
		panic(err)
	}
	n, err := base64.RawURLEncoding.DecodeString(page.Keys[0].N)
	if err != nil {
		panic(err)
	}
	return page.Keys[0].Kid, &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: 65537}
})

// assemble signs a payload under a header.
func assemble(header, payload string, sign func(signed []byte) []byte) string {
	b64 := base64.RawURLEncoding.EncodeToString
	signed := b64([]byte(header)) + "." + b64([]byte(payload))
	return signed + "." + b64(sign([]byte(signed)))
}

// forge assembles a token under the issuer's key id.
func forge(alg, payload string, sign func(signed []byte) []byte) string {
	kid, _ := publicKey()
	return assemble(`{"alg":"`+alg+`","kid":"`+kid+`","typ":"JWT"}`, payload, sign)
}

func mac(key []byte) func([]byte) []byte {
	return func(signed []byte) []byte {
		h := hmac.New(sha256.New, key)
		h.Write(signed)
		return h.Sum(nil)
	}
}

func TestAForgedSignatureIsUnauthenticated(t *testing.T) {
	_, public := publicKey()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rs256 := func(signed []byte) []byte {
		sum := sha256.Sum256(signed)
		signature, err := rsa.SignPKCS1v15(nil, other, crypto.SHA256, sum[:])
		if err != nil {
			t.Error(err)
		}
		return signature
	}
	bytes := func(n int) func([]byte) []byte { return func([]byte) []byte { return make([]byte, n) } }
	for name, c := range map[string]struct {
		alg, text string
		sign      func([]byte) []byte
	}{
		"none":               {"none", malformed, bytes(0)},
		"HS256 with PEM":     {"HS256", malformed, mac(text)},
		"HMAC called RS256":  {"RS256", signature, mac(text)},
		"ES256, proper":      {"ES256", malformed, es256(curve)},
		"ES256 called RS256": {"RS256", signature, es256(curve)},
		"RS256, other key":   {"RS256", signature, rs256},
		"RS256, zeros":       {"RS256", signature, bytes(256)},
	} {
		t.Run(name, func(t *testing.T) {
			checkCase(t, func(string) []string {
				return []string{"Bearer " + forge(c.alg, encode(good(nil)), c.sign)}
			}, taskauth.ErrUnauthenticated, c.text)
		})
	}
}

func TestAnotherPayloadUnderAGoodSignatureIsUnauthenticated(t *testing.T) {
	checkCase(t, func(valid string) []string {
		segments := strings.Split(valid, ".")
		segments[1] = base64.RawURLEncoding.EncodeToString([]byte(encode(good(map[string]any{"sub": "2"}))))
		return []string{"Bearer " + strings.Join(segments, ".")}
	}, taskauth.ErrUnauthenticated, signature)
}

// anybody returns a verifier that admits every account, with keys.
func anybody(t testing.TB) *taskauth.Verifier {
	t.Helper()
	v, err := taskauth.New(taskauth.Options{
		Audience: audience, AnyAccount: true, NameClaim: "nickname",
		KeySource: taskauth.KeySource{KeysURL: "https://keys.example.test/certs", Client: &http.Client{Transport: &site{handler: google()}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, v.Run)
	return v
}

func TestSubjectReturnsTheIDOfAnyAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := anybody(t)
		for _, want := range []string{"123", strings.Repeat("1", 255)} {
			for _, email := range []any{account, "another@x.test", nil} {
				token := sign(t, google(), map[string]any{"sub": want, "email": email, "email_verified": nil})
				if got, _, err := v.Subject(request("Bearer " + token)); got != want || err != nil {
					t.Errorf("email %v: got %q, %v, want %s", email, got, err, want)
				}
				wantPass(t, v, token)
			}
		}
	})
}

func TestSubjectReturnsTheTextOfTheNameClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := anybody(t)
		for claim, want := range map[any]string{"Aoi": "Aoi", nil: "", 7: ""} {
			_, got, err := v.Subject(request("Bearer " + sign(t, google(), map[string]any{"nickname": claim, "name": "another"})))
			if got != want || err != nil {
				t.Errorf("%v: got %q, %v, want %q", claim, got, err, want)
			}
		}
	})
}

func TestSubjectReturnsNothingWithoutAnIDOrWhereCheckRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, named := anybody(t), running(t, &site{handler: google()}, nil)
		for _, c := range []struct {
			claim string
			value any
			text  string
		}{
			{"sub", nil, "no subject"},
			{"sub", "", "no subject"},
			{"sub", 1, signature},
			{"sub", strings.Repeat("1", 256), "no subject"},
			{"aud", "https://other.example.test", "wrong audience"},
		} {
			r := request("Bearer " + sign(t, google(), map[string]any{c.claim: c.value}))
			for _, v := range []*taskauth.Verifier{all, named} {
				sub, _, err := v.Subject(r)
				if sub != "" || !errors.Is(err, taskauth.ErrUnauthenticated) || !slices.Contains(knownTexts, err.Error()) || !strings.HasSuffix(err.Error(), c.text) {
					t.Errorf("%s %v: got %q, %v, want …%s", c.claim, c.value, sub, err, c.text)
				}
			}
			if err := all.Check(r); err == nil {
				t.Errorf("%s %v: Check lets it pass", c.claim, c.value)
			}
		}
	})
}
