package browser

import (
	"context"
	"encoding/json"
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

	"taskguard/cmd/internal/doclockservice"
	"taskguard/emulator/oidc"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
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

// application serves an application with Laravel Echo, and returns its origin.
func application(t *testing.T) (origin string) {
	modules := examplestest.Modules(t, examplestest.Find(t, "NODE", "npm")[0], "testdata")
	files := http.NewServeMux()
	files.Handle("/node_modules/", http.StripPrefix("/node_modules/", http.FileServer(http.Dir(modules))))
	for _, name := range []string{"/page.html", "/client.js"} {
		files.HandleFunc(name, func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "testdata"+name) })
	}
	server := httptest.NewServer(files)
	t.Cleanup(server.Close)
	return server.URL
}

// With cookies. One tab is of an application that has the document lock under its own origin, behind nginx, and
// one of an application on an allowed origin.
func TestEcho_Cookies(t *testing.T) {
	nginx := examplestest.Find(t, "NGINX", "nginx")[0]
	allowed, foreign, app := application(t), application(t), must.Get(url.Parse(application(t)))(t)
	t.Parallel()
	s := startEcho(t, "SESSION_SECRET=0123456789abcdef0123456789abcdef", "ALLOWED_ORIGINS="+allowed)
	under := behindNginx(t, nginx, app, must.Get(url.Parse(s.URL))(t))
	withCookies := fmt.Sprintf(`{ channelAuthorization: withCookies(%q) }`, s.URL)
	one, two := newClient(t, "-", allowed), newClient(t, "-", under)
	one.connect(s.URL, withCookies)
	two.connect(under, `{}`)
	for refused, c := range map[string]*Client{`"refused by the application"`: one, `"refused 403"`: two} {
		c.want(`watch("private", "room")`, refused)                  // no session
		c.want(`lock("POST", "of its own " + location.port)`, "200") // begins one
	}
	three := newClient(t, "-", foreign)
	three.connect(s.URL, withCookies)
	three.want(`lock("POST", "room").catch((error) => error.name)`, `"TypeError"`)
	three.want(`lock("GET", "room").catch((error) => error.name)`, `"TypeError"`)
	for _, path := range []string{"/app/app-key?protocol=7", "/api/documents/room/lock/ws"} {
		three.want(fmt.Sprintf(`opened(%q)`, "ws"+strings.TrimPrefix(s.URL, "http")+path), `"refused"`)
	}
	three.want(`echo.connector.pusher.connection.state === "connected"`, "false")
	checkRoom(t, s, one, two)
}

func TestEcho_Tokens(t *testing.T) {
	origin := application(t)
	t.Parallel()
	issuer := oidc.NewIssuer()
	keys := httptest.NewServer(issuer)
	t.Cleanup(keys.Close)
	s := startEcho(t, "SESSION_AUTH=oidc", "SESSION_AUDIENCE=people", "SESSION_NAME_CLAIM=name",
		"TASK_JWKS_URL="+keys.URL, "ALLOWED_ORIGINS="+origin)
	var clients []*Client
	for _, name := range []string{"Aoi", "Tsukuyomi"} {
		token := must.Get(issuer.Sign(map[string]any{
			"iss": "https://accounts.google.com", "aud": "people", "sub": name, "name": name,
			"exp": time.Now().Add(time.Hour).Unix(),
		}))(t)
		c := newClient(t, name, origin)
		with := func(token string) {
			c.connect(s.URL, fmt.Sprintf(`{ authEndpoint: %q, bearerToken: %q }`, s.URL+"/broadcasting/auth", token))
		}
		with("forged" + token)
		c.want(`watch("private", "room")`, `"refused 401"`)
		c.want(`lock("POST", "room")`, "401")
		c.want(`void echo.disconnect()`, "")
		with(token)
		clients = append(clients, c)
	}
	checkRoom(t, s, clients[0], clients[1])
}

// Site is a document lock service.
type Site struct {
	URL string

	t   *testing.T
	env []string
	end func() // of the instance that serves
}

// startEcho serves, on a Firestore of its own, until the test ends. Its locks live for an hour. env is more of its
// environment.
func startEcho(t *testing.T, env ...string) *Site {
	t.Helper()
	b := emulatortest.Embedded(t)
	s := &Site{t: t, env: append(env, "TASK_AUTH=iam", "PUSHER_APP_KEY=app-key", "PUSHER_APP_SECRET=app-secret",
		"GOOGLE_CLOUD_PROJECT="+b.Project, "FIRESTORE_EMULATOR_HOST="+b.Listen(t), "DOCUMENT_LOCK_TTL=1h")}
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

// Client is a tab with Laravel Echo in which testdata/client.js is loaded.
type Client struct {
	*Tab
	Name string // its display name as others see it; "-": none
}

func newClient(t *testing.T, name, origin string) *Client {
	t.Helper()
	return &Client{NewProfile(t).Open(origin + "/page.html"), name}
}

// connect connects Echo to the document lock at base.
func (c *Client) connect(base, options string) {
	c.T.Helper()
	c.want(fmt.Sprintf(`void connect(Echo.default, %q, %s)`, base, options), "")
}

// wantNext waits for these events, the next since the last call.
func (c *Client) wantNext(want ...string) {
	c.T.Helper()
	text := must.Get(json.Marshal(want))(c.T)
	next := fmt.Sprintf("events.slice(0, %d)", len(want))
	var got string
	if !until(func() bool { got = c.Eval(next); return got == string(text) }) {
		c.T.Fatalf("got %s, want %s", got, text)
	}
	c.want(fmt.Sprintf("void events.splice(0, %d)", len(want)), "")
}

// checkRoom takes a room through its life. one watches its public channel, two its private
// one; both have sessions.
func checkRoom(t *testing.T, s *Site, one, two *Client) {
	t.Helper()
	both := func(public, private string) {
		t.Helper()
		one.wantNext(public)
		two.wantNext(private)
	}
	locked := func(by *Client) {
		t.Helper()
		both("DocumentLocked room acquired -", "DocumentLocked room acquired "+by.Name)
	}
	unlocked := func(reason string) {
		t.Helper()
		event := "DocumentUnlocked room " + reason + " -"
		both(event, event)
	}
	request := func(c *Client, method string, status int) {
		t.Helper()
		c.want(fmt.Sprintf(`lock(%q, "room")`, method), fmt.Sprint(status))
	}
	one.want(`watch("public", "room")`, `"subscribed"`)
	two.want(`watch("private", "room")`, `"subscribed"`)
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
	one.wantNext("subscribed", "DocumentLocked room current -")
	two.wantNext("subscribed", "DocumentLocked room current "+two.Name)
	request(two, "DELETE", 200)
	unlocked("released")
	request(one, "POST", 200)
	locked(one)
	unlocked("expired")
	request(two, "POST", 200)
	locked(two)
}
