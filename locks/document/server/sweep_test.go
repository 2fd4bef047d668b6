package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/taskauth"
	"taskguard/internal/testing/emulatortest"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
)

// TestASweepDeletesOnlyExpiredLocks also lets the ticker sweep.
func TestASweepDeletesOnlyExpiredLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rooms, log := newRooms(t), &emulatortest.Log{}
		locks := must(document.New(rooms, 0))(t)
		kept := func(room string) bool { return must(rooms.Load(t.Context(), room))(t).Exists }
		take := func(room string) { must(locks.Acquire(t.Context(), room, "session/1"))(t) }
		h := server.NewServer(t.Context(), locks, nil, cookies(t), server.Options{Finder: rooms, Log: slog.New(slog.NewTextHandler(log, nil))})
		for i := range 3 {
			take(fmt.Sprint(i))
		}
		time.Sleep(31 * time.Second)
		take("live")
		for _, want := range []string{`{"swept":3}`, `{"swept":0}`} {
			if status, body, _ := visit(t, h, http.MethodPost, "/internal/sweep", ""); status != http.StatusOK || body != want {
				t.Errorf("%d %s, want %s", status, body, want)
			}
		}
		if kept("0") || !kept("live") {
			t.Errorf("the expired one is kept: %v, the live one: %v", kept("0"), kept("live"))
		}
		ctx, cancel := context.WithCancel(t.Context())
		var sweeping sync.WaitGroup
		sweeping.Go(func() { h.SweepEvery(ctx, time.Minute) })
		time.Sleep(61 * time.Second)
		if kept("live") || strings.Count(log.String(), "expired locks swept") != 2 || !strings.Contains(log.String(), "swept=3") {
			t.Errorf("it is kept: %v; log: %s", kept("live"), log)
		}
		cancel()
		sweeping.Wait()
	})
}

// failing is a Finder whose query fails.
type failing struct{}

func (failing) Lapsed(context.Context, int) ([]document.Change, error) {
	return nil, errors.New(`repo: query "secret room": no index; projects/p/databases/d/documents/documentLocks/secret room`)
}

func TestASweepThatFailsInPartIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &emulatortest.Log{}
		h := server.NewServer(t.Context(), nil, nil, cookies(t), server.Options{Finder: failing{}, Log: slog.New(slog.NewTextHandler(log, nil))})
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
		defer cancel()
		if h.SweepEvery(ctx, time.Minute); strings.Count(log.String(), "no index") != 2 || strings.Contains(log.String(), "secret room") {
			t.Errorf("after two failures the log is: %s", log)
		}
	})
	s := newSite(t, func(s *setup) { s.options.Finder = failing{} })
	s.browser(t).want(http.StatusServiceUnavailable,
		`{"success":false,"error":"unavailable","message":"not all expired locks were swept; try again"}`, http.MethodPost, "/internal/sweep")
	if log := s.log.String(); !strings.Contains(log, "no index") || strings.Contains(log, "secret room") {
		t.Errorf("the log lacks the reason, or holds a room: %s", log)
	}
}

func TestASweepIsForTheAccountsThatMayCall(t *testing.T) {
	v := verifier(t, taskauth.Options{Audience: audience, Accounts: []string{"scheduler@x.test"}})
	b := newSite(t, func(s *setup) { s.options.Tasks = v }).browser(t)
	const path = "/internal/sweep"
	b.want(http.StatusUnauthorized, unauthenticated, http.MethodPost, path)
	b.want(http.StatusForbidden, `{"success":false,"error":"forbidden","message":"this account may not call"}`,
		http.MethodPost, path, "Authorization", "Bearer "+mint(t, "other@x.test", audience))
	b.want(http.StatusOK, `{"swept":0}`, http.MethodPost, path, "Authorization", "Bearer "+mint(t, "scheduler@x.test", audience))
}
