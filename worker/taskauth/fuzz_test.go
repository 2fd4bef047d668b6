package taskauth_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/worker/taskauth"
)

// FuzzCheck puts anything into Authorization: nothing passes without the header and
// the claims that were signed, and errors have fixed texts.
func FuzzCheck(f *testing.F) {
	v := newVerifier(f, &site{handler: google()}, nil)
	run(f, v.Run)
	valid := sign(f, google(), map[string]any{"exp": time.Now().Add(100 * 24 * time.Hour).Unix()})
	if err := v.Check(request("Bearer " + valid)); err != nil {
		f.Fatal(err)
	}
	segments := strings.Split(valid, ".")
	for _, seed := range []string{
		"", "Bearer", "Basic x", "Bearer ..", "Bearer " + valid, "bearer  " + valid, "Bearer " + valid + "=",
		"Bearer " + withKeyID("k"), "Bearer " + forge("none", "{}", mac(nil)), "Bearer " + forge("ES256", `{"aud":"`+audience+`"}`, mac(nil)),
		"Bearer " + forge("RS256", `{"aud":["`+audience+`"],"exp":1e300}`, mac(nil)),
		"Bearer " + segments[0] + ".e30." + segments[2], "Bearer " + segments[0] + "." + segments[1] + ".",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		err := v.Check(request(value))
		if _, token, _ := strings.Cut(value, " "); err == nil && !strings.Contains(token, segments[0]+"."+segments[1]+".") {
			t.Fatalf("%q passed", value)
		}
		if err != nil && (!errors.Is(err, taskauth.ErrUnauthenticated) || !slices.Contains(words, err.Error())) {
			t.Errorf("got %q, want one of the fixed texts", err)
		}
	})
}

// FuzzPage serves anything as the page of keys: a token that its key did not sign
// never passes, and nothing panics. The key of the valid token is not on it.
func FuzzPage(f *testing.F) {
	for _, entry := range junk() {
		if len(entry) < 10000 {
			f.Add(`{"keys":[` + entry + `]}`)
		}
	}
	kid, _ := publicKey()
	f.Add(`{"keys":[` + key(kid, modulus(2048), "AQAB") + `]}`)
	f.Add("")
	forged := forge("RS256", `{"aud":"`+audience+`","exp":4102444800,"iss":"accounts.google.com","email":"`+account+`","email_verified":true}`,
		func([]byte) []byte { return make([]byte, 256) })
	f.Fuzz(func(t *testing.T, text string) {
		v := running(t, &site{handler: page(text)}, nil)
		if err := v.Check(request("Bearer " + forged)); err == nil {
			t.Fatal("a token with a signature of zeros passed")
		}
	})
}
