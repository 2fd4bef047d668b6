package doclockservice

import (
	"net/http"
	"testing"
	"time"

	"taskguard/repo"
)

// Two instances share nothing but Firestore. The sweep is an hour away: an expiry is
// reported by the instances' own timers.
func TestTwoInstances(t *testing.T) {
	const ttl = time.Second
	project := embedded(t)
	one, two := start(t, project, "DOCUMENT_LOCK_TTL=1s", "SWEEP_INTERVAL=1h"), start(t, project, "DOCUMENT_LOCK_TTL=1s", "SWEEP_INTERVAL=1h")
	editor, reader := client(t), client(t)
	ask := func(i *instance, c *http.Client, method string, want int) {
		t.Helper()
		if status, body := i.ask(t, c, method, lockPath); status != want {
			t.Fatalf("%s: %d %v, want %d", method, status, body, want)
		}
	}
	ask(two, reader, http.MethodGet, http.StatusOK)
	events := two.socket(t, reader, lockPath+"/ws")
	last := next(t, events, "current")
	event := func(reason string) received {
		t.Helper()
		e := next(t, events, reason)
		if e.Version <= last.Version {
			t.Errorf("%s after %s", e.raw, last.raw)
		}
		last = e
		return e
	}
	for range 3 {
		ask(one, editor, http.MethodPost, http.StatusOK)
		event("acquired")
		ask(two, reader, http.MethodPost, http.StatusConflict)
		ask(one, editor, http.MethodDelete, http.StatusOK)
		event("released")
	}
	ask(one, editor, http.MethodPost, http.StatusOK)
	expires := event("acquired").Expires
	late := time.UnixMicro(event("expired").Version).Sub(expires) // the editor sends no heartbeat
	if late < 0 || late > ttl {                                   // a new stream would come up to 30 s later
		t.Errorf("the expiry was reported %v after it", late)
	}
	rooms := must(repo.OpenRooms(t.Context(), project, repo.Options{}))(t)
	defer func() { _ = rooms.Close() }()
	if c, err := rooms.Load(t.Context(), "room", 0); err != nil || !c.Exists {
		t.Errorf("the record is gone, so a sweep may have caused the event: %v", err)
	}
	ask(two, reader, http.MethodPost, http.StatusOK)
	event("acquired")
}
