package node

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"taskguard/docs/examples/examplestest"
	"taskguard/worker/doclock"
)

func TestASessionMadeInNodeIsAccepted(t *testing.T) {
	examplestest.Session(t, caller, examplestest.Find(t, "NODE", "node")[0], "session.js")
}

func caller(secret string, r *http.Request) (owner, name string, err error) {
	cookies, err := doclock.NewCookies([]byte(secret))
	if err != nil {
		return "", "", err
	}
	c, err := cookies.Caller(httptest.NewRecorder(), r, false)
	return c.Owner, c.Name, err
}
