package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

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

// wantNext waits for these events, the next since the last call.
func (b *Tab) wantNext(want ...string) {
	b.T.Helper()
	text := must(json.Marshal(want))(b.T)
	b.Is(fmt.Sprintf("JSON.stringify(events.slice(0, %d)) === %q", len(want), text))
	b.Eval(fmt.Sprintf("void events.splice(0, %d)", len(want)))
}

// checkRoom takes a room through its life. one watches its public channel, two its private
// one; both have sessions. The locks of s live for an hour.
func checkRoom(s *Site, one, two *Tab) {
	s.t.Helper()
	both := func(event string) {
		s.t.Helper()
		one.wantNext(event)
		two.wantNext(event)
	}
	request := func(b *Tab, method string, status int) {
		s.t.Helper()
		b.want(fmt.Sprintf(`lock(%q, "room")`, method), fmt.Sprint(status))
	}
	one.want(`watch("public", "room")`, `"subscribed"`)
	two.want(`watch("private", "room")`, `"subscribed"`)
	both("subscribed")
	both("DocumentUnlocked room current")
	request(one, "POST", 200)
	both("DocumentLocked room acquired")
	request(two, "POST", 409)
	request(two, "PUT", 403)
	request(one, "PUT", 200)
	request(one, "DELETE", 200)
	both("DocumentUnlocked room released")
	request(two, "POST", 200)
	both("DocumentLocked room acquired")

	s.Restart("DOCUMENT_LOCK_TTL=2s")
	both("subscribed")
	both("DocumentLocked room current")
	request(two, "DELETE", 200)
	both("DocumentUnlocked room released")
	request(one, "POST", 200)
	both("DocumentLocked room acquired")
	both("DocumentUnlocked room expired")
	request(two, "POST", 200)
	both("DocumentLocked room acquired")
}
