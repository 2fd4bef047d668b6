package taskauth_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/worker/taskauth"
)

// anybody is a verifier that lets every account pass, with keys at hand.
func anybody(t testing.TB) *taskauth.Verifier {
	t.Helper()
	v, err := taskauth.New(taskauth.Options{
		Audience: audience, AnyAccount: true,
		KeysURL: "https://keys.example.test/certs", Client: &http.Client{Transport: &site{handler: google()}},
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
			for _, email := range []any{account, "somebody@x.test", nil} {
				token := sign(t, google(), map[string]any{"sub": want, "email": email, "email_verified": nil})
				if got, err := v.Subject(request("Bearer " + token)); got != want || err != nil {
					t.Errorf("email %v: got %q, %v, want %s", email, got, err, want)
				}
				wantPass(t, v, token)
			}
		}
	})
}

func TestSubjectReturnsNothingWhereCheckRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := anybody(t)
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
			{"iss", "https://accounts.example.test", "wrong issuer"},
			{"exp", time.Now().Add(-time.Minute).Unix(), "expired"},
		} {
			r := request("Bearer " + sign(t, google(), map[string]any{c.claim: c.value}))
			sub, err := v.Subject(r)
			if sub != "" || !errors.Is(err, taskauth.ErrUnauthenticated) || !slices.Contains(words, err.Error()) || !strings.HasSuffix(err.Error(), c.text) {
				t.Errorf("%s %v: got %q, %v, want …%s", c.claim, c.value, sub, err, c.text)
			}
			if err := v.Check(r); err == nil {
				t.Errorf("%s %v: Check lets it pass", c.claim, c.value)
			}
		}
	})
}

// A list of accounts stays a list for Subject, too.
func TestTheSubjectOfAnAccountThatIsNotListedIsForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := running(t, &site{handler: google()}, nil)
		if sub, err := v.Subject(request("Bearer " + sign(t, google(), map[string]any{"email": "somebody@x.test"}))); sub != "" || !errors.Is(err, taskauth.ErrForbidden) {
			t.Errorf("got %q, %v, want forbidden", sub, err)
		}
		if sub, err := v.Subject(request("Bearer " + mint(t, google()))); sub == "" || err != nil {
			t.Errorf("got %q, %v, want the account's", sub, err)
		}
	})
}
