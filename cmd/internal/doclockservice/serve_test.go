package doclockservice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"taskguard/internal/telemetry"
	"taskguard/internal/testing/emulatortest"
)

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	goleak.VerifyTestMain(m)
}

// hang is how long a test waits for something that should happen at once.
const hang = 30 * time.Second

func listen(t testing.TB) net.Listener {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// embedded starts an embedded Firestore for the services of a test.
func embedded(t *testing.T) (project string) {
	t.Helper()
	b := emulatortest.Embedded(t)
	t.Setenv("FIRESTORE_EMULATOR_HOST", b.Listen(t))
	return b.Project
}

// instance is a service inside the test's process.
type instance struct {
	url      string
	log      *emulatortest.Log
	l        net.Listener
	stop     context.CancelFunc
	returned chan error
}

// start serves until the test ends; more are variables.
func start(t testing.TB, project string, more ...string) *instance {
	t.Helper()
	cfg := must(parse(append([]string{secret, "TASK_AUTH=iam", "GOOGLE_CLOUD_PROJECT=" + project}, more...)...))(t)
	i := &instance{log: &emulatortest.Log{}, l: listen(t), returned: make(chan error, 1)}
	i.url = "http://" + i.l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	i.stop = stop
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		i.returned <- Serve(ctx, cfg, i.l, telemetry.NewLogger(i.log, "json", 0))
	}()
	t.Cleanup(func() { stop(); <-ended })
	return i
}

// wait waits for Serve to return.
func (i *instance) wait(t testing.TB) error {
	t.Helper()
	select {
	case err := <-i.returned:
		return err
	case <-time.After(hang):
		t.Fatal("Serve does not return")
		return nil
	}
}

// client returns a client that keeps its session, also with another instance.
func client(t testing.TB) *http.Client {
	t.Helper()
	jar := must(cookiejar.New(nil))(t)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport, Timeout: hang}
}

// ask makes a request about the room of that id and decodes the answer.
func (i *instance) ask(t testing.TB, c *http.Client, method, path string) (status int, body map[string]any) {
	t.Helper()
	r := must(http.NewRequestWithContext(t.Context(), method, i.url+path, http.NoBody))(t)
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return resp.StatusCode, body
}

// received is a message of a socket.
type received struct {
	Expires time.Time `json:"expires_at"`
	Reason  string
	Version int64

	raw string
}

// socket receives all messages of a socket.
func (i *instance) socket(t testing.TB, c *http.Client, path string) <-chan received {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), i.url+path, &websocket.DialOptions{HTTPClient: &http.Client{Jar: c.Jar, Transport: c.Transport}}) //nolint:bodyclose // the library closes it
	if err != nil {
		t.Fatal(err)
	}
	to := make(chan received, 1000)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(to)
		for {
			_, data, err := conn.Read(context.Background())
			m := received{raw: string(data)}
			if err != nil || json.Unmarshal(data, &m) != nil {
				return
			}
			to <- m
		}
	})
	t.Cleanup(func() { _ = conn.CloseNow(); reading.Wait() })
	return to
}

// next is the next message, of the reason wanted.
func next(t testing.TB, events <-chan received, reason string) received {
	t.Helper()
	select {
	case m := <-events:
		if m.Reason != reason {
			t.Fatalf("got %q, want %s", m.raw, reason)
		}
		return m
	case <-time.After(hang):
		t.Fatalf("no message, want %s", reason)
		return received{}
	}
}

const lockPath = "/api/documents/room/lock"

func TestServeAnswersUntilItIsStoppedAndClosesItsSockets(t *testing.T) {
	i := start(t, embedded(t), "LOCKS_PER_SESSION=2", "SOCKETS_PER_SESSION=1")
	c := client(t)
	for status := 0; status != http.StatusOK; {
		status, _ = i.ask(t, c, http.MethodGet, "/health/ready")
	}
	if status, body := i.ask(t, c, http.MethodPost, lockPath); status != http.StatusOK {
		t.Fatal(status, body)
	}
	for room, want := range []int{http.StatusOK, http.StatusTooManyRequests} { // one lock more is allowed
		if status, body := i.ask(t, c, http.MethodPost, fmt.Sprintf("/api/documents/%d/lock", room)); status != want {
			t.Errorf("lock %d: %d %v, want %d", room+2, status, body, want)
		}
	}
	dial := func() (*websocket.Conn, *http.Response, error) {
		return websocket.Dial(t.Context(), i.url+lockPath+"/ws", &websocket.DialOptions{HTTPClient: &http.Client{Jar: c.Jar}})
	}
	conn, _, err := dial() //nolint:bodyclose // the library closes it
	check(t, err)
	//nolint:bodyclose // the library has read it
	if _, resp, err := dial(); err == nil || resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a second socket: %v", err)
	}
	i.stop()
	time.AfterFunc(200*time.Millisecond, func() { _ = conn.CloseNow() }) // nothing reads the server's close
	if err := i.wait(t); err != nil {
		t.Error(err)
	}
	log := i.log.String()
	for text, want := range map[string]bool{
		`"operation":"subscribe","outcome":"ok"`: true, "0123456789abcdef": false, "cut off": false,
		`"pusher":false`: true, "anybody who reaches this process may call": true,
	} {
		if strings.Contains(log, text) != want {
			t.Errorf("the log has %s: %v, want %v: %s", text, !want, want, log)
		}
	}
}

func TestTheApplicationDecidesWhoUsesARoom(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("room") != "mine" {
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	t.Cleanup(app.Close)
	i, c := start(t, embedded(t), "AUTHORIZE_URL="+app.URL), client(t)
	for room, want := range map[string]int{"mine": http.StatusOK, "another's": http.StatusForbidden} {
		if status, body := i.ask(t, c, http.MethodPost, "/api/documents/"+url.PathEscape(room)+"/lock"); status != want {
			t.Errorf("%s: %d %v, want %d", room, status, body, want)
		}
	}
}

func TestServeReturnsWhenItsListenerFailsAndFirestoreIsUnavailable(t *testing.T) {
	t.Setenv("FIRESTORE_EMULATOR_HOST", listen(t).Addr().String()) // accepts, and never answers
	i := start(t, "unavailable")
	_ = i.l.Close()
	if err := i.wait(t); !errors.Is(err, net.ErrClosed) {
		t.Errorf("error = %v, want the listener's", err)
	}
}

func TestAPartThatIsRefusedEndsServe(t *testing.T) {
	t.Setenv("FIRESTORE_EMULATOR_HOST", "127.0.0.1:1")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "malformed")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, spoil := range map[string]func(c *Config){
		"TTL": func(c *Config) { c.TTL = -1 }, "tasks": func(c *Config) { c.Tasks.Mode = "oidc" }, "people": func(c *Config) { c.Sessions = authOIDC },
		"cookies": func(c *Config) { c.Secret = "" }, "traces": func(c *Config) { c.Telemetry.Traces = "http://127.0.0.1:1" },
	} {
		cfg, l := must(parse(secret, "TASK_AUTH=iam", "GOOGLE_CLOUD_PROJECT=p"))(t), listen(t)
		spoil(&cfg)
		if err := Serve(ended, cfg, l, slog.New(slog.DiscardHandler)); err == nil || !errors.Is(l.Close(), net.ErrClosed) {
			t.Errorf("%s: %v; want an error, and the listener closed", name, err)
		}
	}
}

func TestTheSweepRunsByItself(t *testing.T) {
	i := start(t, embedded(t), "DOCUMENT_LOCK_TTL=1s", "SWEEP_INTERVAL=50ms")
	c := client(t)
	if status, body := i.ask(t, c, http.MethodPost, lockPath); status != http.StatusOK {
		t.Fatal(status, body)
	}
	for deadline := time.Now().Add(hang); !strings.Contains(i.log.String(), `"swept":1`); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("nothing is swept: %s", i.log)
		}
	}
}

func TestOnlyTheApplicationMakesSessions(t *testing.T) {
	i := start(t, embedded(t), "SESSION_AUTH=application", "SWEEP_INTERVAL=0")
	if status, body := i.ask(t, client(t), http.MethodPost, lockPath); status != http.StatusForbidden || body["error"] != "no_session" {
		t.Errorf("%d %v, want no_session", status, body)
	}
}

func TestTokensAreCheckedWithTheKeysAndASweepNeedsOneIfConfigured(t *testing.T) {
	firestore := embedded(t)
	for name, c := range map[string]struct {
		auth  []string
		path  string // of a request with a token
		sweep int    // the status of a sweep without one
	}{
		"people": {[]string{"SESSION_AUTH=oidc", "SESSION_SECRET=", "SESSION_AUDIENCE=a"}, lockPath, http.StatusOK},
		"tasks":  {[]string{"TASK_AUTH=oidc", "TASK_AUDIENCE=a", "TASK_SERVICE_ACCOUNTS=a@b.c"}, "/internal/sweep", http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			var fetched atomic.Bool
			keys := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fetched.Store(true) }))
			defer keys.Close()
			i := start(t, firestore, append(c.auth, "TASK_JWKS_URL="+keys.URL)...)
			r := must(http.NewRequestWithContext(t.Context(), http.MethodPost, i.url+c.path, http.NoBody))(t)
			r.Header.Set("Authorization", "Bearer eyJhbGciOiJSUzI1NiJ9.e30.AAAA")
			resp, err := client(t).Do(r)
			check(t, err)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusServiceUnavailable || !fetched.Load() || !strings.Contains(i.log.String(), "keys not fetched") {
				t.Errorf("with a token and no key: %d, the keys are fetched: %v; %s", resp.StatusCode, fetched.Load(), i.log)
			}
			if status, body := i.ask(t, client(t), http.MethodPost, "/internal/sweep"); status != c.sweep {
				t.Errorf("sweep: %d %v, want %d", status, body, c.sweep)
			}
			i.stop()
			check(t, i.wait(t))
		})
	}
}

// check fails the test on an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns the value of a call that has to succeed.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}
