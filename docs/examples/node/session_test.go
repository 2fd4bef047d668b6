package node

import (
	"os/exec"
	"testing"

	"taskguard/internal/testing/examplestest"
)

func TestSession_Node(t *testing.T) {
	examplestest.Session(t, examplestest.Find(t, "NODE", "node")[0], "session.js")
}

func TestSession_Module(t *testing.T) {
	const script = `import { doclockCookie } from './session.js'; console.log(doclockCookie('x', 'a.example')); console.log(doclockCookie('', '', false))`
	node := examplestest.Find(t, "NODE", "node")[0]
	out, err := exec.CommandContext(t.Context(), node, "--input-type=module", "-e", script).CombinedOutput()
	const want = "doclock_session=x; Path=/; Max-Age=2592000; HttpOnly; Secure; SameSite=Lax; Domain=a.example\n" +
		"doclock_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax\n"
	if err != nil || string(out) != want {
		t.Errorf("got %v, %s, want %s", err, out, want)
	}
}
