package examplestest

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"taskguard/locks/document/server"
)

// users are the ids, and for some of them the names, of sessions.
var users = [][]string{
	{"user_7-x"}, {"8", "つくよみ, A. \"B\" <c>"}, {"a.b+c@x.test"}, {"7.1800000000"}, {"あ/%41;~!*'() ="},
}

// Session checks the sessions that an example command makes for the document lock.
func Session(t *testing.T, command ...string) {
	t.Helper()
	const secret = "secretsecretsecretsecretsecretsecret"
	caller := func(secret string, r *http.Request) (server.Caller, error) {
		cookies, err := server.NewCookies([]byte(secret))
		if err != nil {
			return server.Caller{}, err
		}
		return cookies.Caller(httptest.NewRecorder(), r, false)
	}
	run := func(user ...string) ([]byte, error) {
		args := slices.Concat(command[1:], user)
		cmd := exec.CommandContext(t.Context(), command[0], args...) //nolint:gosec // the test's own
		cmd.Env = append(os.Environ(), "SESSION_SECRET="+secret)
		return cmd.Output()
	}
	if out, err := run(""); err == nil {
		t.Errorf("an empty id gives %s", out)
	}

	for _, user := range users {
		out, err := run(user...)
		if err != nil {
			t.Fatal(err)
		}

		r := &http.Request{Header: http.Header{"Cookie": {strings.TrimSpace(string(out))}}}
		want := append(user, "")[1]
		if got, err := caller(secret, r); err != nil || got.Owner != "session/"+url.PathEscape(user[0]) || got.Name != want {
			t.Errorf("%s: got %+v, %v, want %q", out, got, err, user)
		}
		if got, _ := caller(secret+"x", r); got.Owner != "" {
			t.Errorf("%s is accepted with another secret", out)
		}
	}
}
