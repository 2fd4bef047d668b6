package php

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"taskguard/docs/examples/examplestest"
	"taskguard/worker/doclock"
)

func TestASessionMadeInPHPIsAccepted(t *testing.T) {
	examplestest.Session(t, caller, examplestest.Find(t, "PHP", "php")[0], "session.php")
}

func caller(secret string, r *http.Request) (owner, name string, err error) {
	cookies, err := doclock.NewCookies([]byte(secret))
	if err != nil {
		return "", "", err
	}
	c, err := cookies.Caller(httptest.NewRecorder(), r, false)
	return c.Owner, c.Name, err
}
