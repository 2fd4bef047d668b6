package taskauth_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/worker/taskauth"
)

func TestNewIAPRefusesWhatWouldLetAnybodyIn(t *testing.T) {
	for name, o := range map[string]taskauth.IAPOptions{
		"no audience":      {},
		"a blank audience": {Audience: " "},
		"a file of keys":   {Audience: resource, KeysURL: "file:///etc/keys"},
		"keys of no host":  {Audience: resource, KeysURL: "https:///iap"},
	} {
		t.Run(name, func(t *testing.T) {
			if i, err := taskauth.NewIAP(t.Context(), o); err == nil || i != nil {
				t.Fatalf("got %v, %v, want an error", i, err)
			}
		})
	}
}

func TestWhoCameThroughTheProxyIsNamed(t *testing.T) {
	p := newProxy(t)
	i := watching(t, &site{handler: p}, nil)
	wantPerson(t, i, p.assertion(nil))
	wantNobody(t, i, through(), taskauth.ErrUnauthenticated, "no token")
	wantNobody(t, i, through(""), taskauth.ErrUnauthenticated, "no token")
	valid := p.assertion(nil)
	wantNobody(t, i, through(valid, valid), taskauth.ErrUnauthenticated, "header")
	wantNobody(t, i, through("Bearer "+valid), taskauth.ErrUnauthenticated, "malformed token")
	wantNobody(t, i, through(valid+strings.Repeat("A", 8<<10)), taskauth.ErrUnauthenticated, "token too long")
	wantNobody(t, i, through(valid+strings.Repeat(".", 8<<10-len(valid))), taskauth.ErrUnauthenticated, "malformed token")
	unsigned := through()
	unsigned.Header.Set("X-Goog-Authenticated-User-Email", "accounts.google.com:"+person)
	unsigned.Header.Set("Authorization", "Bearer "+valid)
	wantNobody(t, i, unsigned, taskauth.ErrUnauthenticated, "no token")
}

// A bit that is flipped makes another signature, of the same length.
func TestNoBitOfTheProxysSignatureCanBeFlipped(t *testing.T) {
	p := newProxy(t)
	synctest.Test(t, func(t *testing.T) {
		i := watching(t, &site{handler: p}, nil)
		valid := p.assertion(nil)
		wantPerson(t, i, valid)
		end := strings.LastIndex(valid, ".") + 1
		signature, err := base64.RawURLEncoding.DecodeString(valid[end:])
		if err != nil || len(signature) != 64 {
			t.Fatalf("%d bytes, %v", len(signature), err)
		}
		for bit := range 8 * len(signature) {
			flipped := bytes.Clone(signature)
			flipped[bit/8] ^= 1 << (bit % 8)
			r := through(valid[:end] + base64.RawURLEncoding.EncodeToString(flipped))
			wantNobody(t, i, r, taskauth.ErrUnauthenticated, "the signature does not hold")
		}
	})
}

// The library slices the signature at 32 bytes unasked, and panics on fewer.
func TestAProxysSignatureOfAnotherLengthIsRefused(t *testing.T) {
	p := newProxy(t)
	synctest.Test(t, func(t *testing.T) {
		i := watching(t, &site{handler: p}, nil)
		for n := range 130 {
			if n == 64 {
				continue
			}
			sign := func(signed []byte) []byte { return append(es256(p.signer())(signed), make([]byte, 66)...)[:n] }
			wantNobody(t, i, through(assemble(p.header("ES256"), asserted(nil), sign)), taskauth.ErrUnauthenticated, "the signature does not hold")
		}
	})
}

func TestOnlyES256OfTheProxysKeyIsASignature(t *testing.T) {
	p, other := newProxy(t), newProxy(t)
	_, public := publicKey()
	zeros := func([]byte) []byte { return make([]byte, 64) }
	kid := `"kid":"` + keyName(p.signer()) + `"`
	for name, c := range map[string]struct {
		header, text string
		sign         func([]byte) []byte
	}{
		"none":                   {p.header("none"), "not signed with ES256", func([]byte) []byte { return nil }},
		"HS256 with the point":   {p.header("HS256"), "not signed with ES256", mac(point(p.signer()))},
		"HS256 with a modulus":   {p.header("HS256"), "not signed with ES256", mac(public.N.Bytes())},
		"HMAC called ES256":      {p.header("ES256"), "the signature does not hold", mac(point(p.signer()))},
		"RS256":                  {p.header("RS256"), "not signed with ES256", es256(p.signer())},
		"ES384":                  {p.header("ES384"), "not signed with ES256", es256(p.signer())},
		"es256":                  {p.header("es256"), "not signed with ES256", es256(p.signer())},
		"no algorithm":           {"{" + kid + "}", "not signed with ES256", es256(p.signer())},
		"an algorithm twice":     {`{"alg":"ES256","ALG":"RS256",` + kid + "}", "not signed with ES256", es256(p.signer())},
		"zeros":                  {p.header("ES256"), "the signature does not hold", zeros},
		"another's key":          {p.header("ES256"), "the signature does not hold", es256(other.signer())},
		"another's key and name": {other.header("ES256"), "unknown key", es256(other.signer())},
		"no key":                 {`{"alg":"ES256"}`, "no key id", es256(p.signer())},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := watching(t, &site{handler: p}, nil)
				wantNobody(t, i, through(assemble(c.header, asserted(nil), c.sign)), taskauth.ErrUnauthenticated, c.text)
			})
		})
	}
}

// Whoever does not know an extension that a token calls critical must refuse it.
func TestATokenWithCriticalParametersIsRefusedThoughItsSignatureHolds(t *testing.T) {
	p := newProxy(t)
	synctest.Test(t, func(t *testing.T) {
		i := watching(t, &site{handler: p}, nil)
		sign := func(more string) string {
			return assemble(`{"alg":"ES256","kid":"`+keyName(p.signer())+`"`+more+`}`, asserted(nil), es256(p.signer()))
		}
		wantPerson(t, i, sign(""))
		wantNobody(t, i, through(sign(`,"crit":["exp"],"exp":1`)), taskauth.ErrUnauthenticated, "critical header parameters")
	})
}

// What Google signs for a service account, and for our own queue, is no word of the
// proxy's: not on its own page of keys, and not where both pages are one.
func TestATaskAndAPersonDoNotPassForEachOther(t *testing.T) {
	p := newProxy(t)
	both := page(strings.Replace(googlePage(), "]", ","+entry(p.signer(), nil)+"]", 1))
	synctest.Test(t, func(t *testing.T) {
		i, v := watching(t, &site{handler: both}, nil), running(t, &site{handler: both}, nil)
		idToken := sign(t, google(), map[string]any{"aud": resource, "iss": "https://cloud.google.com/iap"})
		wantNobody(t, i, through(idToken), taskauth.ErrUnauthenticated, "not signed with ES256")
		wantError(t, v, p.assertion(map[string]any{"aud": audience, "iss": "https://accounts.google.com", "email": account, "email_verified": true}), taskauth.ErrUnauthenticated)
		wantPerson(t, i, p.assertion(nil))
	})
}

func TestAnAssertionsClaimsAreJudged(t *testing.T) {
	p := newProxy(t)
	in := func(d time.Duration) func() any { return func() any { return time.Now().Add(d).Unix() } }
	is := func(v any) func() any { return func() any { return v } }
	for name, c := range map[string]struct {
		claim string
		value func() any
		text  string // empty: passes
	}{
		"other issuer":         {"iss", is("https://accounts.google.com"), "wrong issuer"},
		"issuer with a slash":  {"iss", is("https://cloud.google.com/iap/"), "wrong issuer"},
		"no issuer":            {"iss", is(nil), "wrong issuer"},
		"other resource":       {"aud", is("/projects/123456789012/global/backendServices/43"), "wrong audience"},
		"a part of it":         {"aud", is("/projects/123456789012"), "wrong audience"},
		"audience array":       {"aud", is([]string{resource}), "wrong audience"},
		"no audience":          {"aud", is(nil), "wrong audience"},
		"expired":              {"exp", in(-time.Second), "expired"},
		"no expiry":            {"exp", is(nil), "no expiry"},
		"expiry text":          {"exp", is("4102444800"), "malformed token"},
		"expiry 1e300":         {"exp", is(1e300), "malformed token"},
		"issued later":         {"iat", in(11 * time.Second), "not valid yet"},
		"issued within 10s":    {"iat", in(10 * time.Second), ""},
		"issued an object":     {"iat", is(map[string]any{}), "malformed token"},
		"no email":             {"email", is(nil), "no email"},
		"email empty":          {"email", is(""), "no email"},
		"email array":          {"email", is([]string{person}), "no email"},
		"no verified, as ever": {"email_verified", is(nil), ""},
		"odd others":           {"x", is(json.RawMessage(`[[{"":null}],1e5]`)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := watching(t, &site{handler: p}, nil)
				token := p.assertion(map[string]any{c.claim: c.value()})
				if c.text == "" {
					wantPerson(t, i, token)
					return
				}
				wantNobody(t, i, through(token), taskauth.ErrUnauthenticated, c.text)
			})
		})
	}
}

func TestAnotherPayloadUnderTheProxysSignatureIsRefused(t *testing.T) {
	p := newProxy(t)
	synctest.Test(t, func(t *testing.T) {
		i := watching(t, &site{handler: p}, nil)
		mine, theirs := strings.Split(p.assertion(nil), "."), strings.Split(p.assertion(map[string]any{"email": "admin@example.test"}), ".")
		mine[1] = theirs[1]
		wantNobody(t, i, through(strings.Join(mine, ".")), taskauth.ErrUnauthenticated, "the signature does not hold")
	})
}

func TestJunkOnTheProxysPageIsNoKeyAndSpoilsNothing(t *testing.T) {
	p := newProxy(t)
	k := p.signer()
	b64 := base64.RawURLEncoding.EncodeToString
	off := slices.Clone(point(k)[33:])
	off[31] ^= 1
	for name, spoilt := range map[string]string{
		"no point":       entry(k, map[string]string{"x": "", "y": ""}),
		"zeros":          entry(k, map[string]string{"x": b64(make([]byte, 32)), "y": b64(make([]byte, 32))}),
		"off the curve":  entry(k, map[string]string{"y": b64(off)}),
		"x not base64":   entry(k, map[string]string{"x": "!!!"}),
		"x padded":       entry(k, map[string]string{"x": b64(point(k)[1:33]) + "="}),
		"x short":        entry(k, map[string]string{"x": b64(point(k)[2:33])}),
		"y long":         entry(k, map[string]string{"y": b64(append([]byte{0}, point(k)[33:]...))}),
		"huge":           entry(k, map[string]string{"x": strings.Repeat("A", 100000)}),
		"shifted":        entry(k, map[string]string{"x": b64(point(k)[1:32]), "y": b64(point(k)[32:])}),
		"another curve":  entry(k, map[string]string{"crv": "P-384"}),
		"no curve":       entry(k, map[string]string{"crv": ""}),
		"another type":   entry(k, map[string]string{"kty": "OKP"}),
		"for encryption": entry(k, map[string]string{"use": "enc"}),
		"another alg":    entry(k, map[string]string{"alg": "ES384"}),
		"no name":        entry(k, map[string]string{"kid": ""}),
		"RSA":            key(keyName(k), modulus(2048), "AQAB"),
		"null":           "null",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				alone := watching(t, &site{handler: page(`{"keys":[` + spoilt + `]}`)}, nil)
				wantNobody(t, alone, through(p.assertion(nil)), taskauth.ErrNoKeys, "no keys")
				beside := watching(t, &site{handler: page(`{"keys":[` + spoilt + "," + entry(k, nil) + `]}`)}, nil)
				wantPerson(t, beside, p.assertion(nil))
			})
		})
	}
}

func TestTheProxysKeysRotateUnnoticed(t *testing.T) {
	p := newProxy(t)
	synctest.Test(t, func(t *testing.T) {
		s := &site{handler: p}
		i := watching(t, s, nil)
		old := p.assertion(nil)
		wantPerson(t, i, old)
		p.rotate(t)
		wantPerson(t, i, p.assertion(nil))
		wantPerson(t, i, old)
		wantFetches(t, s, 2)
		for range 100 {
			wantNobody(t, i, through(newProxy(t).assertion(nil)), taskauth.ErrUnauthenticated, "unknown key")
		}
		wantFetches(t, s, 2)
	})
}

func TestADarkPageOfTheProxysKeysDecidesNothingAndLosesNone(t *testing.T) {
	p := newProxy(t)
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &site{handler: p, dark: true}
		i := watching(t, s, slog.New(slog.NewJSONHandler(&log, nil)))
		wantNobody(t, i, through(p.assertion(nil)), taskauth.ErrNoKeys, "no keys")
		s.set(func(s *site) { s.dark = false })
		time.Sleep(time.Minute)
		wantPerson(t, i, p.assertion(nil))
		s.set(func(s *site) { s.dark = true })
		time.Sleep(23 * time.Hour)
		wantPerson(t, i, p.assertion(nil))
		time.Sleep(2 * time.Hour)
		wantNobody(t, i, through(p.assertion(nil)), taskauth.ErrNoKeys, "no keys")
		synctest.Wait()
		if got := log.String(); !strings.Contains(got, "proxy keys not fetched") || !strings.Contains(got, "proxy keys fetched") || strings.Contains(got, person) {
			t.Errorf("logged %.500s", got)
		}
	})
}

func TestGooglesOwnPageIsTheProxysDefault(t *testing.T) {
	p := newProxy(t)
	asked := make(chan string, 1)
	network := &site{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.String()
		p.ServeHTTP(w, r)
	})}
	i, err := taskauth.NewIAP(t.Context(), taskauth.IAPOptions{Audience: resource, Client: &http.Client{Transport: network}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { i.Run(ctx) })
	defer func() { cancel(); running.Wait() }()
	if got, want := <-asked, "https://www.gstatic.com/iap/verify/public_key-jwk"; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	wantPerson(t, i, p.assertion(nil))
}
