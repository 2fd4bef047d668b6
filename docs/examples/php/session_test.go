package php

import (
	"os"
	"os/exec"
	"testing"

	"taskguard/internal/testing/examplestest"
)

func TestMain(m *testing.M) { os.Exit(examplestest.Main(m, "PHP")) }

func TestSession_PHP(t *testing.T) {
	examplestest.Session(t, examplestest.Find(t, "PHP", "php")[0], "session.php")
}

// The keys of $_SERVER follow the scheme of the request, or of the one to the first proxy.
func TestSession_Cookie(t *testing.T) {
	const script = `require 'session.php';
		foreach ([[], ['HTTPS' => 'off'], ['HTTPS' => 'on'], ['HTTP_X_FORWARDED_PROTO' => 'HTTPS, http'], ['HTTP_X_FORWARDED_PROTO' => 'http, https']] as $server) {
			$_SERVER = $server;
			$is = doclock_cookie_options('', 'a.example');
			echo $is['secure'] ? 'secure ' : 'plain ', $is['expires'], $is['domain'], $is['httponly'], $is['samesite'], "\n";
		}`
	php := examplestest.Find(t, "PHP", "php")[0]
	out, err := exec.CommandContext(t.Context(), php, "-r", script, "7").CombinedOutput()
	const plain, secure = "plain 1a.example1Lax\n", "secure 1a.example1Lax\n"
	if want := plain + plain + secure + secure + plain; err != nil || string(out) != want {
		t.Errorf("got %v, %s, want %s", err, out, want)
	}
}
