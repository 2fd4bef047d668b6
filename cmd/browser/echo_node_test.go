package browser

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"taskguard/emulator/oidc"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/examplestest"
)

func TestEchoInNodeWithTokensOnTheEmbeddedFirestore(t *testing.T) {
	tools := findNode(t)
	b := emulatortest.Embedded(t)
	tools.check(t, b.Project, b.Listen(t))
}

func TestEchoInNodeWithTokensOnGooglesEmulator(t *testing.T) {
	tools := findNode(t)
	tools.check(t, emulatortest.Project(), emulatortest.Google(t))
}

// node is a Node with the packages of testdata.
type node struct{ program, dir string }

func findNode(t *testing.T) node {
	t.Helper()
	paths := examplestest.Find(t, "NODE", "node", "npm")
	dir := t.TempDir()
	check(t, os.Symlink(examplestest.Modules(t, paths[1], "testdata"), filepath.Join(dir, "node_modules")))
	examplestest.Copy(t, dir, "testdata/package.json", "testdata/client.js", "testdata/node.js")
	return node{paths[0], dir}
}

// check runs checkRoom with the bearer tokens of two people.
func (n node) check(t *testing.T, project, firestore string) {
	issuer := must(oidc.NewIssuer())(t)
	keys := httptest.NewServer(issuer)
	t.Cleanup(keys.Close)
	s := startEcho(t, "GOOGLE_CLOUD_PROJECT="+project, "FIRESTORE_EMULATOR_HOST="+firestore, "DOCUMENT_LOCK_TTL=1h",
		"SESSION_AUTH=oidc", "SESSION_AUDIENCE=people", "SESSION_NAME_CLAIM=name", "TASK_JWKS_URL="+keys.URL)
	connect := func(c Client, token string) {
		t.Helper()
		c.Want(t, fmt.Sprintf(`void connect(Echo, %q, { Pusher, authEndpoint: %q, bearerToken: %q })`, s.URL, s.URL+"/broadcasting/auth", token), "")
	}
	var clients []Client
	for _, name := range []string{"Aoi", "Tsukuyomi"} {
		token, err := issuer.Sign(map[string]any{
			"iss": "https://accounts.google.com", "aud": "people", "sub": name, "name": name, "exp": time.Now().Add(time.Hour).Unix(),
		})
		if err != nil {
			t.Fatal(err)
		}
		c := n.client(t, name)
		connect(c, "forged"+token)
		c.Want(t, `watch("private", "room")`, `"refused 401"`)
		c.Want(t, `lock("POST", "room")`, "401")
		c.Want(t, `void echo.disconnect()`, "")
		connect(c, token)
		clients = append(clients, c)
	}
	checkRoom(t, s, clients[0], clients[1])
}

// client starts a Node.
func (n node) client(t *testing.T, name string) Client {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), n.program, "node.js")
	cmd.Dir, cmd.Stderr = n.dir, t.Output()
	in := must(cmd.StdinPipe())(t)
	out := must(cmd.StdoutPipe())(t)
	check(t, cmd.Start())
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	lines := bufio.NewReader(out)
	return Client{Name: name, Eval: func(script string) (string, error) {
		text, err := json.Marshal(script)
		if err != nil {
			return "", err
		}
		if _, err := fmt.Fprintf(in, "%s\n", text); err != nil {
			return "", err
		}
		line, err := lines.ReadBytes('\n')
		var result struct{ Value, Error string }
		if err == nil {
			err = json.Unmarshal(line, &result)
		}
		if err == nil && result.Error != "" {
			err = errors.New(result.Error)
		}
		return result.Value, err
	}}
}
