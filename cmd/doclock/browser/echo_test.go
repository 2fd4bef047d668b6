package browser

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"taskguard/cmd/doclock/echo"
	"taskguard/docs/examples/examplestest"
	"taskguard/emulator/emulatortest"
)

func TestEchoInChromiumWithCookiesOnTheEmbeddedFirestore(t *testing.T) {
	b := emulatortest.Embedded(t)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- b.Server.Serve(l) }()
	t.Cleanup(func() { b.Server.Close(); <-ended })
	checkEcho(t, b.Project, l.Addr().String())
}

func TestEchoInChromiumWithCookiesOnGooglesEmulator(t *testing.T) {
	checkEcho(t, emulatortest.Project(), emulatortest.Google(t))
}

// checkEcho runs echo.Check with the tab of an application that has the document lock
// under its own origin, and with that of one on an allowed origin.
func checkEcho(t *testing.T, project, firestore string) {
	modules := examplestest.Install(t, examplestest.Find(t, "NODE", "npm")[0], "../echo/testdata")
	files := http.NewServeMux()
	files.Handle("/node_modules/", http.StripPrefix("/node_modules/", http.FileServer(http.Dir(modules))))
	for _, name := range []string{"/page.html", "/client.js"} {
		files.HandleFunc(name, func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "../echo/testdata"+name) })
	}
	serve := func(h http.Handler) (origin string) {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		return server.URL
	}
	mounted := http.NewServeMux()
	mounted.Handle("/page.html", files)
	mounted.Handle("/client.js", files)
	mounted.Handle("/node_modules/", files)
	under, allowed, foreign := serve(mounted), serve(files), serve(files)
	s := echo.Start(t, "GOOGLE_CLOUD_PROJECT="+project, "FIRESTORE_EMULATOR_HOST="+firestore, "DOCUMENT_LOCK_TTL=1h",
		"SESSION_SECRET=0123456789abcdef0123456789abcdef", "ALLOWED_ORIGINS="+allowed)
	target, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	mounted.Handle("/", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host
	}})
	client := func(origin, base, options string) echo.Client {
		t.Helper()
		b := newProfile(t).open(origin + "/page.html")
		c := echo.Client{Name: "-", Eval: func(script string) (string, error) { return b.Eval(script), nil }}
		c.Want(t, fmt.Sprintf(`void connect(Echo.default, %q, %s)`, base, options), "")
		return c
	}
	withCookies := fmt.Sprintf(`{ channelAuthorization: withCookies(%q) }`, s.URL)
	one, two := client(allowed, s.URL, withCookies), client(under, under, `{}`)
	for refused, c := range map[string]echo.Client{`"refused by the application"`: one, `"refused 403"`: two} {
		c.Want(t, `watch("private", "room")`, refused) // no session
		c.Want(t, `lock("POST", "of its own " + location.port)`, "200") // begins one
	}
	three := client(foreign, s.URL, withCookies)
	three.Want(t, `lock("POST", "room").catch((error) => error.name)`, `"TypeError"`)
	three.Want(t, `lock("GET", "room").catch((error) => error.name)`, `"TypeError"`)
	for _, path := range []string{"/app/app-key?protocol=7", "/api/documents/room/lock/ws"} {
		three.Want(t, fmt.Sprintf(`new Promise((resolve) => Object.assign(new WebSocket(%q), { onopen: () => resolve("open"), onerror: () => resolve("refused") }))`,
			"ws"+strings.TrimPrefix(s.URL, "http")+path), `"refused"`)
	}
	three.Want(t, `echo.connector.pusher.connection.state`, `"connecting"`)
	echo.Check(t, s, one, two)
}
