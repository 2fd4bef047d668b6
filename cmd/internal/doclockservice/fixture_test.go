package doclockservice

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"taskguard/internal/telemetry"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
)

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	goleak.VerifyTestMain(m)
}

// hang is how long a test waits for something that should happen at once.
const hang = 30 * time.Second

func listen(t testing.TB) net.Listener {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
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

// start serves until the test ends, with more settings.
func start(t testing.TB, project, more string) *instance {
	t.Helper()
	cfg := must.Get(parse(cookies + " GOOGLE_CLOUD_PROJECT=" + project + " " + more))(t)
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
	jar := must.Get(cookiejar.New(nil))(t)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport, Timeout: hang}
}

// ask makes a request about the room of that id and decodes the answer.
func (i *instance) ask(t testing.TB, c *http.Client, method, path string) (status int, body map[string]any) {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), method, i.url+path, http.NoBody))(t)
	resp, err := c.Do(r)
	must.OK(t, err)
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return resp.StatusCode, body
}

// want makes a request, which must have that status.
func (i *instance) want(t testing.TB, c *http.Client, status int, method, path string) {
	t.Helper()
	if got, body := i.ask(t, c, method, path); got != status {
		t.Fatalf("%s %s: %d %v, want %d", method, path, got, body, status)
	}
}

// dial opens a socket of the room.
func (i *instance) dial(t testing.TB, c *http.Client) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	own := &http.Client{Jar: c.Jar, Transport: c.Transport} // without a timeout
	return websocket.Dial(t.Context(), i.url+lockPath+"/ws", &websocket.DialOptions{HTTPClient: own})
}

// await waits until the log has the text.
func (i *instance) await(t testing.TB, text string) {
	t.Helper()
	for deadline := time.Now().Add(hang); !strings.Contains(i.log.String(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log lacks %s: %s", text, i.log)
		}
	}
}

const lockPath = "/api/documents/room/lock"
