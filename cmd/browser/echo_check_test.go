package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/doclockservice"
)

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
	cfg := must(doclockservice.ParseConfig(func(name string) (string, bool) { v, ok := env[name]; return v, ok }))(s.t)
	l := must((&net.ListenConfig{}).Listen(s.t.Context(), "tcp", address))(s.t)
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
	text := must(json.Marshal(want))(t)
	next := fmt.Sprintf("events.slice(0, %d)", len(want))
	for deadline := time.Now().Add(Patience); ; time.Sleep(20 * time.Millisecond) {
		got, err := c.Eval(next)
		if got == string(text) {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("got %s, %v, want %s", got, err, text)
		}
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
