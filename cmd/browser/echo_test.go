package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/must"

	"taskguard/cmd/internal/doclockservice"
	"taskguard/emulator/oidc"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/examplestest"
)

// behindNginx returns the origin of an nginx in front of an application and the document lock, with
// the example's configuration.
func behindNginx(t *testing.T, nginx string, app, locks *url.URL) (origin string) {
	example := must.Get(os.ReadFile("../../docs/examples/proxy/nginx.conf"))(t)
	l := httptest.NewServer(nil) // chooses a port
	l.Close()
	address := l.Listener.Addr().String()
	dir := t.TempDir()
	config := "daemon off; pid nginx.pid; error_log stderr;\nevents {}\nhttp {\naccess_log off;\n"
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		config += kind + "_temp_path " + kind + ";\n"
	}
	ours := strings.NewReplacer("listen 8080", "listen "+address, "127.0.0.1:8000", app.Host,
		"127.0.0.1:8090", locks.Host, "app/KEY", "app/app-key")
	config += ours.Replace(string(example)) + "}\n"
	must.OK(t, os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(config), 0o600))
	cmd := exec.CommandContext(t.Context(), nginx, "-p", dir, "-c", "nginx.conf")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() })
	if !until(func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}) {
		t.Fatal("nginx does not listen")
	}
	return "http://" + address
}

// In Chromium, with cookies. One tab is of an application that has the document lock under its own origin, behind
// nginx, and one of an application on an allowed origin.
func TestEcho_Chromium(t *testing.T) {
	nginx := examplestest.Find(t, "NGINX", "nginx")[0]
	modules := examplestest.Modules(t, examplestest.Find(t, "NODE", "npm")[0], "testdata")
	t.Parallel()
	files := http.NewServeMux()
	files.Handle("/node_modules/", http.StripPrefix("/node_modules/", http.FileServer(http.Dir(modules))))
	for _, name := range []string{"/page.html", "/client.js"} {
		files.HandleFunc(name, func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "testdata"+name) })
	}
	serve := func(h http.Handler) (origin string) {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		return server.URL
	}
	allowed, foreign := serve(files), serve(files)
	b := emulatortest.Embedded(t)
	s := startEcho(t, "GOOGLE_CLOUD_PROJECT="+b.Project, "FIRESTORE_EMULATOR_HOST="+b.Listen(t), "DOCUMENT_LOCK_TTL=1h",
		"SESSION_SECRET=0123456789abcdef0123456789abcdef", "ALLOWED_ORIGINS="+allowed)
	locks := must.Get(url.Parse(s.URL))(t)
	app := must.Get(url.Parse(serve(files)))(t)
	under := behindNginx(t, nginx, app, locks)
	client := func(origin, base, options string) Client {
		t.Helper()
		b := NewProfile(t).Open(origin + "/page.html")
		c := Client{Name: "-", Eval: func(script string) (string, error) { return b.Eval(script), nil }}
		c.Want(t, fmt.Sprintf(`void connect(Echo.default, %q, %s)`, base, options), "")
		return c
	}
	withCookies := fmt.Sprintf(`{ channelAuthorization: withCookies(%q) }`, s.URL)
	one, two := client(allowed, s.URL, withCookies), client(under, under, `{}`)
	for refused, c := range map[string]Client{`"refused by the application"`: one, `"refused 403"`: two} {
		c.Want(t, `watch("private", "room")`, refused)                  // no session
		c.Want(t, `lock("POST", "of its own " + location.port)`, "200") // begins one
	}
	three := client(foreign, s.URL, withCookies)
	three.Want(t, `lock("POST", "room").catch((error) => error.name)`, `"TypeError"`)
	three.Want(t, `lock("GET", "room").catch((error) => error.name)`, `"TypeError"`)
	for _, path := range []string{"/app/app-key?protocol=7", "/api/documents/room/lock/ws"} {
		three.Want(t, fmt.Sprintf(`opened(%q)`, "ws"+strings.TrimPrefix(s.URL, "http")+path), `"refused"`)
	}
	three.Want(t, `echo.connector.pusher.connection.state === "connected"`, "false")
	checkRoom(t, s, one, two)
}

// In Node, with tokens.
func TestEcho_Node(t *testing.T) {
	paths := examplestest.Find(t, "NODE", "node", "npm")
	modules := examplestest.Modules(t, paths[1], "testdata")
	t.Parallel()
	dir := t.TempDir()
	must.OK(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
	examplestest.Copy(t, dir, "testdata/package.json", "testdata/client.js", "testdata/node.js")

	b := emulatortest.Embedded(t)
	issuer := oidc.NewIssuer()
	keys := httptest.NewServer(issuer)
	t.Cleanup(keys.Close)
	s := startEcho(t, "GOOGLE_CLOUD_PROJECT="+b.Project, "FIRESTORE_EMULATOR_HOST="+b.Listen(t), "DOCUMENT_LOCK_TTL=1h",
		"SESSION_AUTH=oidc", "SESSION_AUDIENCE=people", "SESSION_NAME_CLAIM=name", "TASK_JWKS_URL="+keys.URL)
	connect := func(c Client, token string) {
		t.Helper()
		options := fmt.Sprintf(`{ Pusher, authEndpoint: %q, bearerToken: %q }`, s.URL+"/broadcasting/auth", token)
		c.Want(t, fmt.Sprintf(`void connect(Echo, %q, %s)`, s.URL, options), "")
	}
	var clients []Client
	for _, name := range []string{"Aoi", "Tsukuyomi"} {
		token := must.Get(issuer.Sign(map[string]any{
			"iss": "https://accounts.google.com", "aud": "people", "sub": name, "name": name,
			"exp": time.Now().Add(time.Hour).Unix(),
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
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
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

// Site is a document lock service.
type Site struct {
	URL string

	t   *testing.T
	env []string
	end func() // of the instance that serves
}

// startEcho serves until the test ends. env is the service's environment.
func startEcho(t *testing.T, env ...string) *Site {
	t.Helper()
	s := &Site{t: t, env: append(env, "TASK_AUTH=iam", "PUSHER_APP_KEY=app-key", "PUSHER_APP_SECRET=app-secret")}
	s.serve("127.0.0.1:0")
	t.Cleanup(func() { s.end() })
	return s
}

// Restart stops the instance, and starts one with more variables at the same address.
func (s *Site) Restart(env ...string) {
	s.t.Helper()
	s.end()
	s.env = append(s.env, env...)
	s.serve(strings.TrimPrefix(s.URL, "http://"))
}

func (s *Site) serve(address string) {
	s.t.Helper()
	env := map[string]string{}
	for _, e := range s.env {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	cfg := must.Get(doclockservice.ParseConfig(lookup))(s.t)
	l := must.Get((&net.ListenConfig{}).Listen(s.t.Context(), "tcp", address))(s.t)
	s.URL = "http://" + l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- doclockservice.Serve(ctx, cfg, l, slog.New(slog.DiscardHandler)) }()
	s.end = func() {
		stop()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
		s.end = func() {}
	}
}

// Client is a client of a Site in which testdata/client.js is loaded.
type Client struct {
	Name string // its display name as others see it; "-": none
	Eval func(script string) (value string, err error)
}

// Want evaluates script, and compares its value's JSON.
func (c Client) Want(t *testing.T, script, want string) {
	t.Helper()
	if got, err := c.Eval(script); got != want || err != nil {
		t.Fatalf("%s: got %s, %v, want %s", script, got, err, want)
	}
}

// wantEvents waits for these events, the next since the last call.
func (c Client) wantEvents(t *testing.T, want ...string) {
	t.Helper()
	text := must.Get(json.Marshal(want))(t)
	next := fmt.Sprintf("events.slice(0, %d)", len(want))
	var got string
	if !until(func() bool {
		got = must.Get(c.Eval(next))(t)
		return got == string(text)
	}) {
		t.Fatalf("got %s, want %s", got, text)
	}
	c.Want(t, fmt.Sprintf("void events.splice(0, %d)", len(want)), "")
}

// checkRoom takes a room through its life. one watches its public channel, two its private
// one; both have sessions. The locks of s live for an hour.
func checkRoom(t *testing.T, s *Site, one, two Client) {
	t.Helper()
	both := func(public, private string) {
		t.Helper()
		one.wantEvents(t, public)
		two.wantEvents(t, private)
	}
	locked := func(by Client) {
		t.Helper()
		both("DocumentLocked room acquired -", "DocumentLocked room acquired "+by.Name)
	}
	unlocked := func(reason string) {
		t.Helper()
		event := "DocumentUnlocked room " + reason + " -"
		both(event, event)
	}
	request := func(c Client, method string, status int) {
		t.Helper()
		c.Want(t, fmt.Sprintf(`lock(%q, "room")`, method), fmt.Sprint(status))
	}
	one.Want(t, `watch("public", "room")`, `"subscribed"`)
	two.Want(t, `watch("private", "room")`, `"subscribed"`)
	both("subscribed", "subscribed")
	unlocked("current")
	request(one, "POST", 200)
	locked(one)
	request(two, "POST", 409)
	request(two, "PUT", 403)
	request(one, "PUT", 200)
	request(one, "DELETE", 200)
	unlocked("released")
	request(two, "POST", 200)
	locked(two)

	s.Restart("DOCUMENT_LOCK_TTL=2s")
	one.wantEvents(t, "subscribed", "DocumentLocked room current -")
	two.wantEvents(t, "subscribed", "DocumentLocked room current "+two.Name)
	request(two, "DELETE", 200)
	unlocked("released")
	request(one, "POST", 200)
	locked(one)
	unlocked("expired")
	request(two, "POST", 200)
	locked(two)
}
