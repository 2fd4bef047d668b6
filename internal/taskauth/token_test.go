package taskauth_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// The texts of errors.
const (
	malformed     = "malformed token, or another algorithm"
	signature     = "invalid signature or claims"
	wrongAudience = "go-jose/go-jose/jwt: validation failed, invalid audience claim (aud)"
	expired       = "go-jose/go-jose/jwt: validation failed, token is expired (exp)"
	notYet        = "go-jose/go-jose/jwt: validation failed, token not valid yet (nbf)"
	inTheFuture   = "go-jose/go-jose/jwt: validation failed, token issued in the future (iat)"
)

// refusals returns the text of the error for each invalid token of i, another issuer being other.
func (i *issuer) refusals(t *testing.T, other *issuer) map[string]string {
	t.Helper()
	valid := i.sign(t, nil)
	segments := strings.Split(valid, ".")
	header := func(h string) string { return encoded(h) + "." + segments[1] + "." + segments[2] }
	algorithm := string(i.algorithm)
	public, err := x509.MarshalPKIXPublicKey(i.keys[0].Public().Key)
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, public)
	mac.Write([]byte(segments[0] + "." + segments[1]))
	called := func(key any) any { return jose.JSONWebKey{Key: key, KeyID: "1"} } // the known key id

	return map[string]string{
		"let me in":                     malformed,
		segments[0] + "." + segments[1]: malformed,
		valid + ".e30":                  malformed,
		valid + strings.Repeat("A", 8<<10-len(valid)):   signature,
		valid + strings.Repeat("A", 8<<10+1-len(valid)): "token too long",
		header(`null`):                                                              malformed,
		header(`{"alg":"none","kid":"1"}`):                                          malformed,
		header(`{"kid":"1"}`):                                                       malformed,
		header(`{"alg":"` + algorithm + `"}`):                                       "unknown key",
		header(`{"alg":"` + algorithm + `","kid":1}`):                               malformed,
		header(`{"alg":"` + algorithm + `","kid":"k"}`):                             "unknown key",
		header(`{"alg":"` + algorithm + `","kid":"1","crit":["exp"],"exp":1}`):      signature,
		header(strings.Repeat("[", 4000)):                                           malformed,
		segments[0] + "." + segments[1] + ".":                                       signature,
		valid[:len(valid)-40]:                                                       signature,
		segments[0] + "." + segments[1] + "." + encoded(string(mac.Sum(nil))):       signature,
		segments[0] + "." + segments[1] + "." + encoded(strings.Repeat("\x00", 64)): signature,
		segments[0] + "." + encoded(`{"sub":"2"}`) + "." + segments[2]:              signature,
		signWith(t, jose.HS256, called(public), i.claims(nil)):                      malformed,
		signWith(t, other.algorithm, called(other.keys[0].Key), i.claims(nil)):      malformed,
		signWith(t, i.algorithm, called(newKey(t, i.algorithm)), i.claims(nil)):     signature,
		i.sign(t, map[string]any{"iss": other.name}):                                "wrong issuer",
		i.sign(t, map[string]any{"iss": strings.Replace(i.name, "s", "", 1)}):       "wrong issuer",
		i.sign(t, map[string]any{"iss": nil}):                                       "wrong issuer",
		i.sign(t, map[string]any{"aud": audience + "/"}):                            wrongAudience,
		i.sign(t, map[string]any{"aud": nil}):                                       wrongAudience,
		i.sign(t, map[string]any{"exp": time.Now().Add(-12 * time.Second).Unix()}):  expired,
		i.sign(t, map[string]any{"exp": nil}):                                       "no expiry",
		i.sign(t, map[string]any{"exp": "4102444800"}):                              signature,
		i.sign(t, map[string]any{"nbf": time.Now().Add(12 * time.Second).Unix()}):   notYet,
		i.sign(t, map[string]any{"iat": time.Now().Add(12 * time.Second).Unix()}):   inTheFuture,
		i.sign(t, map[string]any{"email": nil}):                                     "no email",
		i.sign(t, map[string]any{"email": []string{account}}):                       signature,
	}
}

func TestAnInvalidTokenIsRefusedWithAFixedTextAndNoLogLine(t *testing.T) {
	google, proxy := issuers(t)
	for i, other := range map[*issuer]*issuer{google: proxy, proxy: google} {
		var log bytes.Buffer
		check := i.check(t, &site{handler: i}, slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		refusals := i.refusals(t, other)
		if i == google { // of the list of accounts
			for claims, want := range map[string]string{
				"unverified": "email not verified", "capitals": "account not allowed", "another": "account not allowed",
			} {
				refusals[google.sign(t, map[string]map[string]any{
					"unverified": {"email_verified": nil}, "capitals": {"email": strings.ToUpper(account)}, "another": {"email": "another@x.test"},
				}[claims])] = want
			}
		}
		for token, want := range refusals {
			if err := check(token); text(err) != want {
				t.Errorf("%s %.300s: %v, want …%s", i.algorithm, token, err, want)
			}
		}

		soon := time.Now().Add(9 * time.Second).Unix()
		for _, edit := range []map[string]any{
			nil, {"nbf": soon, "iat": soon}, {"iat": nil}, {"exp": time.Now().Add(-8 * time.Second).Unix()}, {"x": [][]any{{nil}}},
		} {
			if err := check(i.sign(t, edit)); err != nil {
				t.Errorf("%s %v: %v, want it to pass", i.algorithm, edit, err)
			}
		}
		if log.Len() > 0 {
			t.Errorf("a request is logged: %s", &log)
		}
	}
	if err := google.check(t, &site{handler: google}, nil)(google.sign(t, map[string]any{"iss": "accounts.google.com"})); err != nil {
		t.Errorf("Google's issuer without https: %v", err)
	}
}

func encoded(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
