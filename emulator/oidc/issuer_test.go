package oidc_test

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskguard/emulator/oidc"
)

func newIssuer(t *testing.T) *oidc.Issuer {
	t.Helper()
	i, err := oidc.NewIssuer()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func decode(t *testing.T, segment string) []byte {
	t.Helper()
	data, err := base64.RawURLEncoding.Strict().DecodeString(segment)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func object(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	return m
}

// verify returns the number of keys on the page and whether one of them, named by
// the token, signed it.
func verify(t *testing.T, i *oidc.Issuer, token string) (keys int, signed bool) {
	t.Helper()
	segments := strings.Split(token, ".")
	header := object(t, decode(t, segments[0]))
	sum := sha256.Sum256([]byte(segments[0] + "." + segments[1]))
	var page struct {
		Keys []struct{ Kty, Alg, Use, Kid, N, E string }
	}
	w := httptest.NewRecorder()
	i.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/certs", http.NoBody))
	resp := w.Result()
	defer resp.Body.Close()
	if got, want := resp.Header.Get("Cache-Control"), "public, max-age=3600, must-revalidate"; got != want || resp.StatusCode != http.StatusOK {
		t.Errorf("got %d with %q, want 200 with %q", resp.StatusCode, got, want)
	}
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		t.Fatal(err)
	}
	for _, k := range page.Keys {
		if k.Kty != "RSA" || k.Alg != "RS256" || k.Use != "sig" || header["alg"] != k.Alg {
			t.Errorf("got %+v and %v, want RSA, RS256, for signatures", k, header)
		}
		public := &rsa.PublicKey{N: new(big.Int).SetBytes(decode(t, k.N)), E: int(new(big.Int).SetBytes(decode(t, k.E)).Int64())}
		if k.Kid == header["kid"] {
			signed = rsa.VerifyPKCS1v15(public, crypto.SHA256, sum[:], decode(t, segments[2])) == nil
		}
	}
	return len(page.Keys), signed
}

func TestATokenHasTheClaimsOfGoogles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		token, err := i.Token("a@p.iam.gserviceaccount.com", "https://worker.test")
		if err != nil {
			t.Fatal(err)
		}
		got := object(t, decode(t, strings.Split(token, ".")[1]))
		sub, _ := got["sub"].(string)
		if len(sub) != 21 || strings.Trim(sub, "0123456789") != "" {
			t.Errorf("got sub %q, want 21 digits", sub)
		}
		now := float64(time.Now().Unix())
		want := map[string]any{
			"iss": "https://accounts.google.com", "aud": "https://worker.test", "sub": sub, "azp": sub,
			"email": "a@p.iam.gserviceaccount.com", "email_verified": true, "iat": now, "exp": now + 3600,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("claims (-want +got):\n%s", diff)
		}
		if keys, signed := verify(t, i, token); keys != 1 || !signed {
			t.Errorf("got %d keys, signed %v, want the one key to have signed it", keys, signed)
		}
	})
}

func TestAKeyIsServedForOneRotation(t *testing.T) {
	i := newIssuer(t)
	token, err := i.Sign(map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range []bool{true, false} {
		if err := i.Rotate(); err != nil {
			t.Fatal(err)
		}
		if keys, signed := verify(t, i, token); keys != 2 || signed != want {
			t.Errorf("after rotation %d: got %d keys, the old one there %v, want 2 and %v", n+1, keys, signed, want)
		}
	}
}
