package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/taskauth"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
)

func TestSweep(t *testing.T) {
	t.Run("a request deletes expired locks", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			rooms := newRooms(t)
			locks := must.Get(document.New(rooms, 0))(t)
			kept := func(room string) bool { return must.Get(rooms.Load(t.Context(), room, lease.OnlyLease))(t).Exists }
			h := server.NewServer(t.Context(), locks, nil, cookies(t), server.Options{Finder: rooms})
			for i := range 3 {
				must.Get(locks.Acquire(t.Context(), fmt.Sprint(i), "session/1"))(t)
			}
			time.Sleep(31 * time.Second)
			must.Get(locks.Acquire(t.Context(), "live", "session/1"))(t)
			for _, want := range []string{`{"swept":3}`, `{"swept":0}`} {
				if _, body, _ := visit(t, h, http.MethodPost, "/internal/sweep", ""); body != want {
					t.Errorf("%s, want %s", body, want)
				}
			}
			if kept("0") || !kept("live") {
				t.Errorf("the expired one is kept: %v, the live one: %v", kept("0"), kept("live"))
			}
		})
	})

	t.Run("a failure is logged without a room", func(t *testing.T) {
		s := newSite(t, func(s *setup) { s.options.Finder = failing{} })
		s.browser(t).want(http.StatusServiceUnavailable, "swept", http.MethodPost, "/internal/sweep")
		synctest.Test(t, func(t *testing.T) {
			log := slog.New(slog.NewTextHandler(s.log, nil))
			h := server.NewServer(t.Context(), nil, nil, cookies(t), server.Options{Finder: failing{}, Log: log})
			ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
			defer cancel()
			h.SweepEvery(ctx, time.Minute)
		})
		log := s.log.String()
		if n := strings.Count(log, "no index"); n != 3 || strings.Contains(log, "secret room") {
			t.Errorf("after three failures %d lines have the reason: %s", n, log)
		}
	})

	t.Run("it is for the accounts that may call", func(t *testing.T) {
		v := verifier(t, taskauth.Options{Audience: audience, Accounts: []string{"scheduler@x.test"}})
		b := newSite(t, func(s *setup) { s.options.Tasks = v }).browser(t)
		const path = "/internal/sweep"
		b.want(http.StatusUnauthorized, unauthenticated, http.MethodPost, path)
		other, scheduler := mint(t, "other@x.test", audience), mint(t, "scheduler@x.test", audience)
		b.want(http.StatusForbidden, `"forbidden"`, http.MethodPost, path, "Authorization", "Bearer "+other)
		b.want(http.StatusOK, `{"swept":0}`, http.MethodPost, path, "Authorization", "Bearer "+scheduler)
	})
}

// failing is a Finder whose query fails.
type failing struct{}

func (failing) Lapsed(context.Context, int) ([]document.Change, error) {
	return nil, errors.New(`repo: query "secret room": no index; ` +
		`projects/p/databases/d/documents/documentLocks/secret room`)
}
