package taskauth_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"taskguard/internal/taskauth"
)

// Options that would admit all callers, or none, are refused.
func TestNew_Refused(t *testing.T) {
	for _, o := range []taskauth.Options{
		{Accounts: []string{account}},
		{Audience: " ", Accounts: []string{account}},
		{Audience: audience},
		{Audience: audience, Accounts: []string{account, " "}},
		{Audience: audience, Accounts: []string{account}, AnyAccount: true},
	} {
		if v, err := taskauth.New(o); err == nil || v != nil {
			t.Errorf("%+v: got %v, %v, want an error", o, v, err)
		}
	}
	if i, err := taskauth.NewIAP(" ", taskauth.KeySource{}); err == nil || i != nil {
		t.Errorf("IAP without an audience: %v, %v", i, err)
	}
}

func TestVerifier_Check(t *testing.T) {
	google, proxy := issuers()
	t.Run("a request has one token", func(t *testing.T) {
		v := verifier(taskauth.Options{Accounts: []string{account}, KeySource: (&site{handler: google}).keys(nil)})
		token := google.sign(nil)
		for _, tc := range []struct {
			values []string
			reason string
		}{
			{nil, "not one token"},
			{[]string{"Bearer " + token, "Bearer " + token}, "not one token"},
			{[]string{""}, "not a bearer token"},
			{[]string{token}, "not a bearer token"},
			{[]string{"Basic " + token}, "not a bearer token"},
			{[]string{"Bearer"}, "malformed"},
			{[]string{"bearer   " + token}, ""},
		} {
			checkReason(t, v.Check(request("Authorization", tc.values...)), tc.reason, tc.values)
		}
		iap := must(taskauth.NewIAP(audience, (&site{handler: proxy}).keys(nil)))
		assertion := proxy.sign(nil)
		_, err := iap.Identify(request("Authorization", "Bearer "+assertion))
		checkReason(t, err, "not one token", "no assertion")
		_, err = iap.Identify(request("X-Goog-IAP-JWT-Assertion", assertion, assertion))
		checkReason(t, err, "not one token", "two assertions")
	})

	for i, other := range map[*issuer]*issuer{google: proxy, proxy: google} {
		t.Run("an invalid token is refused, without a log line: "+string(i.algorithm), func(t *testing.T) {
			var log bytes.Buffer
			all := &slog.HandlerOptions{Level: slog.LevelDebug}
			check := i.check(t, &site{handler: i}, slog.New(slog.NewTextHandler(&log, all)))
			for token, reason := range i.refusals(other) {
				checkReason(t, check(token), reason, i.algorithm, token)
			}
			soon := time.Now().Add(9 * time.Second).Unix()
			for _, edit := range []map[string]any{
				nil, {"nbf": soon, "iat": soon}, {"iat": nil}, {"exp": time.Now().Add(-8 * time.Second).Unix()},
			} {
				checkReason(t, check(i.sign(edit)), "", i.algorithm, edit)
			}
			if log.Len() > 0 {
				t.Errorf("a request is logged: %s", &log)
			}
		})
	}
	t.Run("only a verified account of the list may pass", func(t *testing.T) {
		check := google.check(t, &site{handler: google}, nil)
		for _, tc := range []struct {
			claims map[string]any
			want   error
		}{
			{map[string]any{"iss": "accounts.google.com"}, nil}, // Google's issuer without https
			{map[string]any{"email_verified": nil}, taskauth.ErrUnauthenticated},
			{map[string]any{"email": strings.ToUpper(account)}, taskauth.ErrForbidden},
			{map[string]any{"email": "another@x.test"}, taskauth.ErrForbidden},
		} {
			if err := check(google.sign(tc.claims)); !errors.Is(err, tc.want) {
				t.Errorf("%v: %v, want %v", tc.claims, err, tc.want)
			}
		}
	})
}

// refusals returns a word of the error for each invalid token of i, another issuer being other.
func (i *issuer) refusals(other *issuer) map[string]string {
	const malformed, signature = "malformed", "invalid signature"
	valid, algorithm := i.sign(nil), string(i.algorithm)
	segments := strings.Split(valid, ".")
	header := func(h string) string { return encoded(h) + "." + segments[1] + "." + segments[2] }
	public := must(x509.MarshalPKIXPublicKey(i.keys[0].Public().Key))
	called := func(key any) any { return jose.JSONWebKey{Key: key, KeyID: "1"} } // the known key id
	now := time.Now()
	reasons := map[string]string{
		"let me in": malformed,
		valid + strings.Repeat("A", 8<<10-len(valid)):                       signature,
		valid + strings.Repeat("A", 8<<10+1-len(valid)):                     "too long",
		header(`{"alg":"none","kid":"1"}`):                                  malformed,
		header(`{"alg":"` + algorithm + `"}`):                               "unknown key",
		header(`{"alg":"` + algorithm + `","kid":"k"}`):                     "unknown key",
		segments[0] + "." + encoded(`{"sub":"2"}`) + "." + segments[2]:      signature,
		signWith(jose.HS256, called(public), i.claims(nil)):                 malformed,
		signWith(other.algorithm, called(other.keys[0].Key), i.claims(nil)): malformed,
		signWith(i.algorithm, called(newKey(i.algorithm)), i.claims(nil)):   signature,
	}
	for _, edit := range []struct {
		claim  string
		value  any
		reason string
	}{
		{"iss", other.name, "issuer"},
		{"iss", strings.Replace(i.name, "s", "", 1), "issuer"},
		{"iss", nil, "issuer"},
		{"aud", audience + "/", "audience"},
		{"aud", nil, "audience"},
		{"aud", []string{audience, audience + "/"}, "several audiences"},
		{"exp", now.Add(-12 * time.Second).Unix(), "expired"},
		{"exp", nil, "no expiry"},
		{"nbf", now.Add(12 * time.Second).Unix(), "not valid yet"},
		{"iat", now.Add(12 * time.Second).Unix(), "in the future"},
		{"email", nil, "no email"},
		{"email", []string{account}, signature},
	} {
		reasons[i.sign(map[string]any{edit.claim: edit.value})] = edit.reason
	}
	return reasons
}

func TestVerifier_Subject(t *testing.T) {
	google, _ := issuers()
	v := verifier(taskauth.Options{
		AnyAccount: true, NameClaim: "nickname", UserClaim: "login", KeySource: (&site{handler: google}).keys(nil),
	})
	longest := strings.Repeat("1", 255)
	for _, tc := range []struct {
		claims map[string]any
		want   taskauth.Subject
		reason string
	}{
		{
			map[string]any{"nickname": "Aoi", "name": "another", "login": "a7"},
			taskauth.Subject{ID: "1", Name: "Aoi", User: "a7"}, "",
		},
		{map[string]any{"nickname": 7, "email": nil, "email_verified": nil}, taskauth.Subject{ID: "1"}, ""},
		{map[string]any{"sub": longest, "email": "another@x.test"}, taskauth.Subject{ID: longest}, ""},
		{map[string]any{"sub": nil, "nickname": "Aoi"}, taskauth.Subject{}, "no subject"},
		{map[string]any{"sub": longest + "1"}, taskauth.Subject{}, "no subject"},
		{map[string]any{"aud": "https://other.example.test"}, taskauth.Subject{}, "audience"},
	} {
		r := request("Authorization", "Bearer "+google.sign(tc.claims))
		checkReason(t, v.Check(r), tc.reason, tc.claims)
		got, err := v.Subject(r)
		checkReason(t, err, tc.reason, tc.claims)
		if left := time.Until(got.Expires).Round(time.Minute); err == nil && left != time.Hour {
			t.Errorf("%v: it expires in %v", tc.claims, left)
		}
		if got.Expires = (time.Time{}); got != tc.want {
			t.Errorf("%v: %+v; want %+v", tc.claims, got, tc.want)
		}
	}
}

func TestKeySource(t *testing.T) {
	google, proxy := issuers()
	t.Run("the keys are Google's by default", func(t *testing.T) {
		asked := map[string]bool{}
		note := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked[r.URL.String()] = true })
		keys := taskauth.KeySource{Client: &http.Client{Transport: &site{handler: note}}}
		iap := must(taskauth.NewIAP(audience, keys))
		v := verifier(taskauth.Options{AnyAccount: true, KeySource: keys})
		_ = v.Check(request("Authorization", "Bearer "+google.sign(nil)))
		_, _ = iap.Identify(request("X-Goog-IAP-JWT-Assertion", proxy.sign(nil)))
		for _, url := range []string{
			"https://www.googleapis.com/oauth2/v3/certs", "https://www.gstatic.com/iap/verify/public_key-jwk",
		} {
			if !asked[url] {
				t.Errorf("asked for %v, want %s", asked, url)
			}
		}
	})
	t.Run("they come from a server, but not by a redirect", func(t *testing.T) {
		server := httptest.NewServer(google)
		defer server.Close()
		redirect := httptest.NewServer(http.RedirectHandler(server.URL, http.StatusFound))
		defer redirect.Close()
		defer http.DefaultClient.CloseIdleConnections()
		for url, want := range map[string]error{server.URL + "/certs": nil, redirect.URL: taskauth.ErrNoKeys} {
			v := verifier(taskauth.Options{AnyAccount: true, KeySource: taskauth.KeySource{KeysURL: url}})
			if err := v.Check(request("Authorization", "Bearer "+google.sign(nil))); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", url, err, want)
			}
		}
	})
}
