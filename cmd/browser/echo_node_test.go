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
	paths := examplestest.Find(t, "NODE", "node", "npm")
	modules := examplestest.Modules(t, paths[1], "testdata")
	t.Parallel()
	dir := t.TempDir()
	check(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
	examplestest.Copy(t, dir, "testdata/package.json", "testdata/client.js", "testdata/node.js")

	b := emulatortest.Embedded(t)
	issuer := oidc.NewIssuer()
	keys := httptest.NewServer(issuer)
	t.Cleanup(keys.Close)
	s := startEcho(t, "GOOGLE_CLOUD_PROJECT="+b.Project, "FIRESTORE_EMULATOR_HOST="+b.Listen(t), "DOCUMENT_LOCK_TTL=1h",
		"SESSION_AUTH=oidc", "SESSION_AUDIENCE=people", "SESSION_NAME_CLAIM=name", "TASK_JWKS_URL="+keys.URL)
	connect := func(c Client, token string) {
		t.Helper()
		c.Want(t, fmt.Sprintf(`void connect(Echo, %q, { Pusher, authEndpoint: %q, bearerToken: %q })`, s.URL, s.URL+"/broadcasting/auth", token), "")
	}
	var clients []Client
	for _, name := range []string{"Aoi", "Tsukuyomi"} {
		token := must(issuer.Sign(map[string]any{
			"iss": "https://accounts.google.com", "aud": "people", "sub": name, "name": name, "exp": time.Now().Add(time.Hour).Unix(),
		}))(t)
		c := startNode(t, paths[0], dir, name)
		connect(c, "forged"+token)
		c.Want(t, `watch("private", "room")`, `"refused 401"`)
		c.Want(t, `lock("POST", "room")`, "401")
		c.Want(t, `void echo.disconnect()`, "")
		connect(c, token)
		clients = append(clients, c)
	}
	checkRoom(t, s, clients[0], clients[1])
}

// startNode starts a Node with the files of dir.
func startNode(t *testing.T, program, dir, name string) Client {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "node.js")
	cmd.Dir, cmd.Stderr = dir, t.Output()
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
