package node

import (
	"os/exec"
	"testing"

	"taskguard/internal/testing/examplestest"
)

func TestASessionMadeInNodeIsAccepted(t *testing.T) {
	examplestest.Session(t, examplestest.Find(t, "NODE", "node")[0], "session.js")
}

func TestSessionJSIsAModule(t *testing.T) {
	const script = `import { doclockCookie } from './session.js'; console.log(doclockCookie('x', 'a.example')); console.log(doclockCookie('', '', false))`
	out, err := exec.CommandContext(t.Context(), examplestest.Find(t, "NODE", "node")[0], "--input-type=module", "-e", script).CombinedOutput()
	const want = "doclock_session=x; Path=/; Max-Age=2592000; HttpOnly; Secure; SameSite=Lax; Domain=a.example\n" +
		"doclock_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax\n"
	if err != nil || string(out) != want {
		t.Errorf("got %v, %s, want %s", err, out, want)
	}
}
