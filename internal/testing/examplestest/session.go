package examplestest

import (
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// users are the ids, and for some of them the names, of sessions.
var users = [][]string{
	{"user_7-x"}, {"8", "つくよみ, A. \"B\" <c>"}, {"a.b+c@x.test"}, {"7.1800000000"}, {"あ/%41;~!*'() ="},
}

// Session checks the sessions that an example command makes for the document lock. caller
// returns the owner and the name of a request's session, which is signed with secret.
func Session(
	t *testing.T, caller func(secret string, r *http.Request) (owner, name string, err error), command ...string,
) {
	t.Helper()
	secret := strings.Repeat("secret", 6)
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
		owner, name, err := caller(secret, r)
		if want := append(user, "")[1]; err != nil || owner != "session/"+url.PathEscape(user[0]) || name != want {
			t.Errorf("%s: got %q, %q, %v, want %q", out, owner, name, err, user)
		}
		if owner, _, _ := caller(secret+"x", r); owner != "" {
			t.Errorf("%s is accepted with another secret", out)
		}
	}
}
