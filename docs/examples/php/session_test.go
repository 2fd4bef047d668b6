package php

import (
	"net/http"
	"net/http/httptest"
	"os/exec"
	"testing"

	"taskguard/internal/doclock"
	"taskguard/internal/examplestest"
)

func TestASessionMadeInPHPIsAccepted(t *testing.T) {
	examplestest.Session(t, caller, examplestest.Find(t, "PHP", "php")[0], "session.php")
}

func TestSessionPHPCanBeRequired(t *testing.T) {
	const script = `require 'session.php'; echo function_exists('clear_doclock_session') ? 'required' : 'incomplete';`
	out, err := exec.CommandContext(t.Context(), examplestest.Find(t, "PHP", "php")[0], "-r", script, "7").CombinedOutput()
	if err != nil || string(out) != "required" {
		t.Errorf("got %v, %s", err, out)
	}
}

func caller(secret string, r *http.Request) (owner, name string, err error) {
	cookies, err := doclock.NewCookies([]byte(secret))
	if err != nil {
		return "", "", err
	}
	c, err := cookies.Caller(httptest.NewRecorder(), r, false)
	return c.Owner, c.Name, err
}
