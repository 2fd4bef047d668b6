package server_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

func TestTheSocketsOfASessionAreBounded(t *testing.T) {
	s := newPusherSite(t, func(s *setup) { s.options.SessionSockets = 2 })
	mine, other := s.browser(t), s.browser(t)
	for _, b := range []*browser{mine, other} {
		b.ask(http.MethodGet, "/") // begins a session
	}
	const pusherPath = "/app/key?protocol=7"
	first := mine.listen(lockPath+"/ws", websocket.DialOptions{})
	mine.connect()
	for _, path := range []string{lockPath + "/ws", pusherPath} {
		if got := mine.do(http.MethodGet, path, http.NoBody, upgrade()...); got.status != http.StatusTooManyRequests || !strings.Contains(got.body, `"too_many_sockets"`) {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	other.listen(lockPath+"/ws", websocket.DialOptions{})
	for range 3 { // without a session
		s.browser(t).listen(lockPath+"/ws", websocket.DialOptions{})
	}
	check(t, first.conn.Close(websocket.StatusNormalClosure, ""))
	for end := time.Now().Add(hang); ; time.Sleep(time.Millisecond) { // until the server has noticed
		if got := mine.do(http.MethodGet, lockPath+"/ws", http.NoBody, upgrade()...); got.status == http.StatusSwitchingProtocols {
			break
		} else if time.Now().After(end) {
			t.Fatalf("a closed socket is counted: %d %s", got.status, got.body)
		}
	}
}
