package browser

import (
	"fmt"
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

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/examplestest"
)

// behindNginx returns the origin of an nginx in front of an application and the document lock, with
// the example's configuration.
func behindNginx(t *testing.T, nginx string, app, locks *url.URL) (origin string) {
	example := must(os.ReadFile("../../docs/examples/proxy/nginx.conf"))(t)
	l := httptest.NewServer(nil) // chooses a port
	l.Close()
	address := l.Listener.Addr().String()
	dir := t.TempDir()
	config := "daemon off; pid nginx.pid; error_log stderr;\nevents {}\nhttp {\naccess_log off;\n"
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		config += kind + "_temp_path " + kind + ";\n"
	}
	config += strings.NewReplacer("listen 8080", "listen "+address, "127.0.0.1:8000", app.Host, "127.0.0.1:8090", locks.Host, "app/KEY", "app/app-key").Replace(string(example)) + "}\n"
	check(t, os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(config), 0o600))
	cmd := exec.CommandContext(t.Context(), nginx, "-p", dir, "-c", "nginx.conf")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	check(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() })
	for deadline := time.Now().Add(Patience); ; time.Sleep(10 * time.Millisecond) {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = conn.Close()
			return "http://" + address
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// One tab is of an application that has the document lock under its own origin, behind nginx, and
// one of an application on an allowed origin.
func TestEchoInChromiumWithCookiesOnTheEmbeddedFirestore(t *testing.T) {
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
	locks := must(url.Parse(s.URL))(t)
	app := must(url.Parse(serve(files)))(t)
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
		three.Want(t, fmt.Sprintf(`new Promise((resolve) => Object.assign(new WebSocket(%q), { onopen: () => resolve("open"), onerror: () => resolve("refused") }))`,
			"ws"+strings.TrimPrefix(s.URL, "http")+path), `"refused"`)
	}
	three.Want(t, `echo.connector.pusher.connection.state === "connected"`, "false")
	checkRoom(t, s, one, two)
}
