package taskauth_test

import (
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
	"math/big"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/worker/taskauth"
)

func TestATokenPassesHoweverItsSchemeIsWritten(t *testing.T) {
	for _, scheme := range []string{"Bearer ", "bearer ", "BEARER ", "Bearer   "} {
		t.Run(scheme, func(t *testing.T) {
			checkCase(t, func(valid string) []string { return []string{scheme + valid} }, nil, "")
		})
	}
}

func TestARequestWithoutOneBearerTokenIsUnauthenticated(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		edit func(valid string) []string
	}{
		"none":           {"no token", func(string) []string { return nil }},
		"empty":          {"no token", func(string) []string { return []string{""} }},
		"scheme alone":   {"no token", func(string) []string { return []string{"Bearer"} }},
		"scheme, blanks": {"no token", func(string) []string { return []string{"Bearer   "} }},
		"garbage":        {"not a bearer token", func(string) []string { return []string{"\x00\xff garbage"} }},
		"token alone":    {"not a bearer token", func(v string) []string { return []string{v} }},
		"Basic":          {"not a bearer token", func(v string) []string { return []string{"Basic " + v} }},
		"a tab":          {"not a bearer token", func(v string) []string { return []string{"Bearer\t" + v} }},
		"twice":          {"more than one Authorization header", func(v string) []string { return []string{"Bearer " + v, "Bearer " + v} }},
		"twice, one bad": {"more than one Authorization header", func(v string) []string { return []string{"Basic x", "Bearer " + v} }},
	} {
		t.Run(name, func(t *testing.T) { checkCase(t, c.edit, taskauth.ErrUnauthenticated, c.text) })
	}
}

func TestATokenOfAnotherShapeIsUnauthenticated(t *testing.T) {
	header := func(h string) func(string) string {
		return func(valid string) string {
			_, rest, _ := strings.Cut(valid, ".")
			return base64.RawURLEncoding.EncodeToString([]byte(h)) + "." + rest
		}
	}
	// The last of a signature's 342 characters has four bits that mean nothing.
	sameBits := func(valid string) string { return valid[:len(valid)-1] + string(valid[len(valid)-1]+1) }
	cases := map[string]struct {
		text string
		edit func(valid string) string
	}{
		"words":              {"malformed token", func(string) string { return "let me in" }},
		"dots":               {"malformed token", func(string) string { return ".." }},
		"two segments":       {"malformed token", func(v string) string { return v[:strings.LastIndex(v, ".")] }},
		"four segments":      {"malformed token", func(v string) string { return v + ".e30" }},
		"no signature":       {"the signature does not hold", func(v string) string { return v[:strings.LastIndex(v, ".")+1] }},
		"half a signature":   {"the signature does not hold", func(v string) string { return v[:len(v)-170] }},
		"trailing data":      {"malformed token", func(v string) string { return v + " x" }},
		"trailing newline":   {"malformed token", func(v string) string { return v + "\n" }},
		"padding":            {"malformed token", func(v string) string { return v + "==" }},
		"the same signature": {"malformed token", sameBits},
		"oversized":          {"token too long", func(v string) string { return v + strings.Repeat("A", 8<<10) }},
		"8 KiB":              {"malformed token", func(v string) string { return v + strings.Repeat(".", 8<<10-len(v)) }},
		"8 KiB and a byte":   {"token too long", func(v string) string { return v + strings.Repeat(".", 8<<10-len(v)+1) }},
		"header null":        {"not signed with RS256", header(`null`)},
		"header array":       {"malformed token", header(`["RS256"]`)},
		"header cut":         {"malformed token", header(`{"alg":"RS256"`)},
		"header of two":      {"malformed token", header(`{"alg":"RS256","kid":"k"}{}`)},
		"alg a number":       {"malformed token", header(`{"alg":256}`)},
		"alg absent":         {"not signed with RS256", header(`{"kid":"k"}`)},
		"alg rs256":          {"not signed with RS256", header(`{"alg":"rs256","kid":"k"}`)},
		"alg RS512":          {"not signed with RS256", header(`{"alg":"RS512","kid":"k"}`)},
		"alg none":           {"not signed with RS256", header(`{"alg":"none"}`)},
		"alg twice":          {"not signed with RS256", header(`{"alg":"RS256","ALG":"ES256","kid":"k"}`)},
		"kid absent":         {"no key id", header(`{"alg":"RS256"}`)},
		"kid empty":          {"no key id", header(`{"alg":"RS256","kid":""}`)},
		"kid a number":       {"malformed token", header(`{"alg":"RS256","kid":1}`)},
		"kid unknown":        {"unknown key", header(`{"alg":"RS256","kid":"k"}`)},
		"crit":               {"critical header parameters", header(`{"alg":"RS256","kid":"k","crit":["b64"]}`)},
		"crit empty":         {"critical header parameters", header(`{"alg":"RS256","kid":"k","crit":[]}`)},
		"crit null":          {"critical header parameters", header(`{"alg":"RS256","kid":"k","crit":null}`)},
		"deep":               {"malformed token", header(strings.Repeat("[", 4000))},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			checkCase(t, func(valid string) []string { return []string{"Bearer " + c.edit(valid)} }, taskauth.ErrUnauthenticated, c.text)
		})
	}
}

func TestClaimsThatAreNotAsTheyShouldBeAreRefused(t *testing.T) {
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
		"issuer with a slash":   {"iss", is("https://accounts.google.com/"), no, "wrong issuer"},
		"issuer by http":        {"iss", is("http://accounts.google.com"), no, "wrong issuer"},
		"no issuer":             {"iss", is(nil), no, "wrong issuer"},
		"short issuer":          {"iss", is("accounts.google.com"), nil, ""},
		"other audience":        {"aud", is(audience + "/"), no, "wrong audience"},
		"audience array":        {"aud", is([]string{audience}), no, "wrong audience"},
		"no audience":           {"aud", is(nil), no, "wrong audience"},
		"empty audience":        {"aud", is(""), no, "wrong audience"},
		"expired":               {"exp", in(-time.Second), no, "expired"},
		"expires this second":   {"exp", in(0), nil, ""},
		"expired long ago":      {"exp", is(-1), no, "expired"},
		"no expiry":             {"exp", is(nil), no, "no expiry"},
		"expiry null":           {"exp", is(json.RawMessage("null")), no, "malformed token"},
		"expiry text":           {"exp", is("4102444800"), no, "malformed token"},
		"expiry 2^53":           {"exp", is(1 << 53), nil, ""},
		"expiry 1e300":          {"exp", is(1e300), no, "malformed token"},
		"expiry 1e400":          {"exp", is(json.RawMessage("1e400")), no, "malformed token"},
		"expiry fractional":     {"exp", is(4102444800.5), no, "malformed token"},
		"expiry true":           {"exp", is(true), no, "malformed token"},
		"not before later":      {"nbf", in(11 * time.Second), no, "not valid yet"},
		"not before within 10s": {"nbf", in(10 * time.Second), nil, ""},
		"not before text":       {"nbf", is("0"), no, "malformed token"},
		"issued later":          {"iat", in(11 * time.Second), no, "not valid yet"},
		"issued within 10s":     {"iat", in(10 * time.Second), nil, ""},
		"issued never":          {"iat", is(nil), nil, ""},
		"issued an object":      {"iat", is(map[string]any{}), no, "malformed token"},
		"email unverified":      {"email_verified", is(false), no, "email not verified"},
		"email verified text":   {"email_verified", is("true"), no, "email not verified"},
		"email verified 1":      {"email_verified", is(1), no, "email not verified"},
		"email verified absent": {"email_verified", is(nil), no, "email not verified"},
		"email verified array":  {"email_verified", is([]bool{true}), no, "email not verified"},
		"no email":              {"email", is(nil), no, "no email"},
		"email empty":           {"email", is(""), no, "no email"},
		"email array":           {"email", is([]string{account}), no, "no email"},
		"another account":       {"email", is("somebody@x.test"), taskauth.ErrForbidden, "account not allowed"},
		"account in capitals":   {"email", is(strings.ToUpper(account)), taskauth.ErrForbidden, "account not allowed"},
		"odd others":            {"x", is(json.RawMessage(`[[{"":null}],1e5]`)), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			checkCase(t, func(string) []string {
				claims := good(map[string]any{c.claim: c.value()})
				token, err := google().Sign(claims)
				if err != nil {
					t.Error(err)
				}
				return []string{"Bearer " + token}
			}, c.want, c.text)
		})
	}
}

// publicKey is the issuer's, as its page shows it.
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

// forge puts a payload under a header of this algorithm and the issuer's key id,
// and signs both.
func forge(alg, payload string, sign func(signed []byte) []byte) string {
	kid, _ := publicKey()
	header := `{"alg":"` + alg + `","kid":"` + kid + `","typ":"JWT"}`
	signed := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	return signed + "." + base64.RawURLEncoding.EncodeToString(sign([]byte(signed)))
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
	es256 := func(signed []byte) []byte {
		sum := sha256.Sum256(signed)
		r, s, err := ecdsa.Sign(rand.Reader, curve, sum[:])
		if err != nil {
			t.Error(err)
			return nil
		}
		return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
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
	const algorithm, signature = "not signed with RS256", "the signature does not hold"
	for name, c := range map[string]struct {
		alg, text string
		sign      func([]byte) []byte
	}{
		"none":                {"none", algorithm, bytes(0)},
		"HS256 with PEM":      {"HS256", algorithm, mac(text)},
		"HS256 with DER":      {"HS256", algorithm, mac(der)},
		"HS256 with N":        {"HS256", algorithm, mac(public.N.Bytes())},
		"HMAC called RS256":   {"RS256", signature, mac(text)},
		"ES256, short":        {"ES256", algorithm, bytes(3)},
		"ES256, proper":       {"ES256", algorithm, es256},
		"ES256 called RS256":  {"RS256", signature, es256},
		"RS256, other key":    {"RS256", signature, rs256},
		"RS256, zeros":        {"RS256", signature, bytes(256)},
		"RS256, N itself":     {"RS256", signature, func([]byte) []byte { return public.N.Bytes() }},
		"RS256, far too long": {"RS256", signature, bytes(4000)},
	} {
		t.Run(name, func(t *testing.T) {
			checkCase(t, func(string) []string {
				payload, err := json.Marshal(good(nil))
				if err != nil {
					t.Error(err)
				}
				return []string{"Bearer " + forge(c.alg, string(payload), c.sign)}
			}, taskauth.ErrUnauthenticated, c.text)
		})
	}
}

func TestAPayloadThatIsNoObjectIsUnauthenticated(t *testing.T) {
	for payload, text := range map[string]string{
		"": "malformed token", "[]": "malformed token", `"x"`: "malformed token", "{": "malformed token", "{} {}": "malformed token",
		"null": "wrong audience", "{}": "wrong audience",
	} {
		t.Run(payload, func(t *testing.T) {
			checkCase(t, func(string) []string {
				return []string{"Bearer " + forge("RS256", payload, mac(nil))}
			}, taskauth.ErrUnauthenticated, text)
		})
	}
}

// The signature covers the claims: none can be exchanged under it.
func TestAnotherPayloadUnderAGoodSignatureIsUnauthenticated(t *testing.T) {
	checkCase(t, func(valid string) []string {
		segments := strings.Split(valid, ".")
		payload, err := json.Marshal(good(map[string]any{"sub": "2"}))
		if err != nil {
			t.Error(err)
		}
		segments[1] = base64.RawURLEncoding.EncodeToString(payload)
		return []string{"Bearer " + strings.Join(segments, ".")}
	}, taskauth.ErrUnauthenticated, "the signature does not hold")
}
