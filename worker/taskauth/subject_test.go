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
	v, err := taskauth.New(t.Context(), taskauth.Options{
		Audience: audience, AnyAccount: true,
		KeysURL: "https://keys.example.test/certs", Client: &http.Client{Transport: &site{handler: google()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, v)
	return v
}

func TestTheSubjectOfAnyAccountIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := anybody(t)
		for _, email := range []any{account, "somebody@x.test", nil} {
			token := sign(t, google(), map[string]any{"sub": "123", "email": email, "email_verified": nil})
			if got, err := v.Subject(request("Bearer " + token)); got != "123" || err != nil {
				t.Errorf("email %v: got %q, %v, want 123", email, got, err)
			}
			wantPass(t, v, token)
		}
	})
}

func TestASubjectOf255BytesIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := strings.Repeat("1", 255)
		if got, err := anybody(t).Subject(request("Bearer " + sign(t, google(), map[string]any{"sub": want}))); got != want || err != nil {
			t.Errorf("got %q, %v, want all of it", got, err)
		}
	})
}

func TestTheSubjectIsAnsweredOnlyWhereCheckPasses(t *testing.T) {
	in := func(d time.Duration) any { return time.Now().Add(d).Unix() }
	for name, c := range map[string]struct {
		claim string
		value any
		text  string
	}{
		"no subject":            {"sub", nil, "no subject"},
		"an empty subject":      {"sub", "", "no subject"},
		"a number":              {"sub", 1, "the signature does not hold"},
		"a subject of 256":      {"sub", strings.Repeat("1", 256), "no subject"},
		"another audience":      {"aud", "https://other.example.test", "wrong audience"},
		"an audience in a list": {"aud", []string{audience}, "wrong audience"},
		"another issuer":        {"iss", "https://accounts.example.test", "wrong issuer"},
		"expired":               {"exp", in(-time.Minute - 50*365*24*time.Hour), "expired"},
		"without expiry":        {"exp", nil, "no expiry"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := anybody(t)
				r := request("Bearer " + sign(t, google(), map[string]any{c.claim: c.value}))
				sub, err := v.Subject(r)
				if sub != "" || !errors.Is(err, taskauth.ErrUnauthenticated) || !slices.Contains(words, err.Error()) || !strings.HasSuffix(err.Error(), c.text) {
					t.Errorf("got %q, %v, want …%s", sub, err, c.text)
				}
				if err := v.Check(r); err == nil {
					t.Error("Check lets it pass")
				}
			})
		})
	}
}

func TestASubjectWithoutATokenIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := anybody(t)
		forged := forge("RS256", `{"sub":"1","aud":"`+audience+`","exp":4102444800,"iss":"accounts.google.com"}`, mac(nil))
		for _, r := range []*http.Request{request(), request("Basic x"), request("Bearer " + forged)} {
			if sub, err := v.Subject(r); sub != "" || !errors.Is(err, taskauth.ErrUnauthenticated) {
				t.Errorf("got %q, %v", sub, err)
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
