package oidc_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"

	"taskguard/emulator/oidc"
	"taskguard/internal/testing/must"
)

// verify returns the number of keys on the page and, if one of them, named by the token,
// signed it, the token's claims.
func verify(t *testing.T, i *oidc.Issuer, token string) (keys int, claims map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	i.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/certs", http.NoBody))
	want := http.Header{
		"Cache-Control": {"public, max-age=3600, must-revalidate"}, "Content-Type": {"application/json; charset=UTF-8"},
	}
	if diff := cmp.Diff(want, w.Header()); diff != "" || w.Code != http.StatusOK {
		t.Errorf("got %d, headers (-want +got):\n%s", w.Code, diff)
	}

	var page jose.JSONWebKeySet
	must.OK(t, json.Unmarshal(w.Body.Bytes(), &page))
	for i := range page.Keys {
		k := &page.Keys[i]
		if got := fmt.Sprintf("%v %s %s", k.IsPublic(), k.Algorithm, k.Use); got != "true RS256 sig" {
			t.Errorf("got %s, want a public key of RS256 for signatures", got)
		}
	}

	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256})
	must.OK(t, err)
	if parsed.Claims(page, &claims) != nil {
		return len(page.Keys), nil
	}
	return len(page.Keys), claims
}

func TestIssuer_Token(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := oidc.NewIssuer()
		token, err := i.Token("a@p.iam.gserviceaccount.com", "https://worker.test")
		must.OK(t, err)

		keys, got := verify(t, i, token)
		sub, _ := got["sub"].(string)
		if keys != 1 {
			t.Errorf("got %d keys, want 1", keys)
		}
		if len(sub) != 21 || strings.Trim(sub, "0123456789") != "" {
			t.Errorf("got the sub %q, want 21 digits", sub)
		}
		now := float64(time.Now().Unix())
		want := map[string]any{
			"iss": "https://accounts.google.com", "aud": "https://worker.test", "sub": sub, "azp": sub,
			"email": "a@p.iam.gserviceaccount.com", "email_verified": true, "iat": now, "exp": now + 3600,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("claims (-want +got):\n%s", diff)
		}
	})
}

func TestIssuer_Rotate(t *testing.T) {
	i := oidc.NewIssuer()
	if _, err := i.Sign(map[string]any{"a": func() {}}); err == nil {
		t.Error("a claim without JSON is no error")
	}
	token, err := i.Sign(map[string]any{"a": "b"})
	must.OK(t, err)

	for n, want := range []bool{true, false} {
		i.Rotate()
		if keys, claims := verify(t, i, token); keys != 2 || (claims != nil) != want {
			t.Errorf("after rotation %d: %d keys, the old one there %v, want 2 and %v", n+1, keys, claims != nil, want)
		}
	}
}
