package doclock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/lease/documentlock"
	"taskguard/worker/taskauth"
)

// kept says whether the room's record exists.
func (s *site) kept(t testing.TB, room string) bool {
	t.Helper()
	c, err := s.rooms.Load(t.Context(), room)
	if err != nil {
		t.Fatal(err)
	}
	return c.Exists
}

func TestASweepDeletesWhatHasExpiredAndNothingElse(t *testing.T) {
	s := newSite(t, func(s *setup) { s.ttl = time.Second })
	b := s.browser(t)
	for i := range 3 {
		if status, body := b.ask(http.MethodPost, fmt.Sprintf("/api/documents/%d/lock", i)); status != http.StatusOK {
			t.Fatal(status, body)
		}
	}
	time.Sleep(1100 * time.Millisecond)
	b.take()
	b.want(http.StatusOK, `{"swept":3}`, http.MethodPost, "/internal/sweep")
	b.want(http.StatusOK, `{"swept":0}`, http.MethodPost, "/internal/sweep")
	if s.kept(t, "0") || !s.kept(t, "room") {
		t.Errorf("an expired one is kept: %v, the live one: %v", s.kept(t, "0"), s.kept(t, "room"))
	}
	if !strings.Contains(s.log.String(), "swept=3") {
		t.Errorf("not in the log: %s", s.log)
	}
}

func TestTheTickerSweeps(t *testing.T) {
	s := newSite(t, func(s *setup) { s.ttl = time.Second })
	s.browser(t).take()
	ctx, cancel := context.WithCancel(t.Context())
	var sweeping sync.WaitGroup
	sweeping.Go(func() { s.SweepEvery(ctx, 10*time.Millisecond) })
	for s.kept(t, "room") {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	sweeping.Wait()
}

// torn finds a room that cannot be swept.
type torn struct{}

func (torn) Lapsed(context.Context, int) ([]documentlock.Change, error) {
	return nil, errors.New(`repo: query "secret room": no index; projects/p/databases/d/documents/documentLocks/secret room`)
}

func TestASweepThatFailsInPartIsUnavailable(t *testing.T) {
	s := newSite(t, func(s *setup) { s.finder = torn{} })
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
