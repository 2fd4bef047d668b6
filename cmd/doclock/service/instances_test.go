package service

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/emulator/emulatortest"
	"taskguard/repo"
)

// Two instances share nothing but Firestore. The sweep is an hour away: what is
// told of an expiry is told by the instances' own timers.
func TestTwoInstances(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { twoInstances(t, embedded(t)) })
	t.Run("google", func(t *testing.T) {
		setenv(t, emulatortest.Google(t))
		twoInstances(t, emulatortest.Project())
	})
}

func twoInstances(t *testing.T, project string) {
	const ttl = 2 * time.Second
	one, two := start(t, project, "DOCUMENT_LOCK_TTL=2s", "SWEEP_INTERVAL=1h"), start(t, project, "DOCUMENT_LOCK_TTL=2s", "SWEEP_INTERVAL=1h")
	editor, reader := client(t), client(t)
	if status, body := two.ask(t, reader, http.MethodGet, lockPath); status != http.StatusOK {
		t.Fatal(status, body)
	}
	events := two.socket(t, reader, lockPath+"/ws")
	said := []told{next(t, events, "current")}

	var latencies []time.Duration
	for range 20 {
		asked := time.Now()
		if status, body := one.ask(t, editor, http.MethodPost, lockPath); status != http.StatusOK {
			t.Fatal(status, body)
		}
		said = append(said, next(t, events, "acquired"))
		latencies = append(latencies, said[len(said)-1].at.Sub(asked))
		if status, body := two.ask(t, reader, http.MethodPost, lockPath); status != http.StatusConflict {
			t.Fatal("the other instance lets another in:", status, body)
		}
		if status, body := one.ask(t, editor, http.MethodDelete, lockPath); status != http.StatusOK {
			t.Fatal(status, body)
		}
		said = append(said, next(t, events, "released"))
	}
	slices.Sort(latencies)
	t.Logf("announced on the other instance: median %v, slowest %v after it was asked for", latencies[len(latencies)/2], latencies[len(latencies)-1])

	if status, body := one.ask(t, editor, http.MethodPost, lockPath); status != http.StatusOK {
		t.Fatal(status, body)
	}
	taken := next(t, events, "acquired")
	gone := next(t, events, "expired") // the editor is silent from here on
	said = append(said, taken, gone)
	late := time.UnixMicro(gone.Version).Sub(taken.Expires)
	if late < 0 || late > ttl { // a poll would come up to 30 s later, a sweep an hour
		t.Errorf("told %v after the lock's end, want about at it", late)
	}
	t.Logf("an expiry after %v was told %v after its time, by the store's clock", ttl, late)
	unswept(t, project)
	if status, body := two.ask(t, reader, http.MethodPost, lockPath); status != http.StatusOK {
		t.Errorf("after the expiry: %d %v, want the room free", status, body)
	}
	said = append(said, next(t, events, "acquired"))
	orderedAndSilent(t, said, session(t, editor, one), session(t, reader, two))
}

// unswept checks that the expired record is still there.
func unswept(t *testing.T, project string) {
	t.Helper()
	rooms, err := repo.OpenRooms(t.Context(), project, repo.RoomOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rooms.Close() }()
	if c, err := rooms.Load(t.Context(), "room"); err != nil || !c.Exists {
		t.Errorf("the record is gone, so a sweep may have told of it: %v", err)
	}
}

// orderedAndSilent checks that versions grow and that no message holds a session.
func orderedAndSilent(t *testing.T, said []told, cookies ...string) {
	t.Helper()
	for i, m := range said {
		if i > 0 && m.Version <= said[i-1].Version {
			t.Errorf("%s after %s", m.raw, said[i-1].raw)
		}
		for _, cookie := range cookies {
			parts := strings.Split(cookie, ".")
			if strings.Contains(m.raw, parts[1]) || strings.Contains(m.raw, parts[3]) {
				t.Errorf("%s holds a session", m.raw)
			}
		}
	}
}

// session is c's cookie: one for all instances, which share the secret.
func session(t *testing.T, c *http.Client, i *instance) string {
	t.Helper()
	u, err := url.Parse(i.url)
	if err != nil {
		t.Fatal(err)
	}
	for _, cookie := range c.Jar.Cookies(u) {
		return cookie.Value
	}
	t.Fatal("no session")
	return ""
}
