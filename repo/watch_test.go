package repo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/locks/document"
)

// watched returns the snapshots of a Watch that ends with the test.
func watched(t *testing.T, r *Rooms) <-chan document.Snapshot {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	snaps, done := make(chan document.Snapshot, 1000), make(chan error)
	go func() { done <- r.Watch(ctx, func(s document.Snapshot) { snaps <- s }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err == nil {
			t.Error("Watch ended without a reason")
		}
	})
	return snaps
}

// next returns the next snapshot, and fails the test if there is none.
func next(t *testing.T, snaps <-chan document.Snapshot) document.Snapshot {
	t.Helper()
	select {
	case s := <-snaps:
		return s
	case <-time.After(time.Minute):
		t.Fatal("no snapshot within a minute")
		return document.Snapshot{}
	}
}

// shown formats a snapshot.
func shown(s document.Snapshot) string {
	words := make([]string, 0, len(s.Changes)+1)
	for i := range s.Changes {
		c := &s.Changes[i]
		words = append(words, fmt.Sprintf("%s %v %s", c.Room, c.Cell.Exists, c.Cell.Doc.Owner))
	}
	slices.Sort(words)
	return fmt.Sprint(s.All, words)
}

func TestWatchReportsAllRoomsAndThenEveryChange(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		r := openRooms(t, b)
		locks := locksFor(t, r, 0)
		lock := locked(t, locks, "a", "s/1")
		snaps := watched(t, r.Rooms)
		first := next(t, snaps)
		if got, want := shown(first), "true [a true s/1]"; got != want {
			t.Errorf("first %s, want %s", got, want)
		}
		if first.At.Before(lock.Lock.LockedAt) || first.Asked.IsZero() || first.Changes[0].Cell.Doc != lock.Lock {
			t.Errorf("first = %+v, want %+v", first, lock)
		}
		if freed, err := locks.Release(t.Context(), "a", "s/1"); err != nil || !freed {
			t.Fatal(freed, err)
		}
		second := next(t, snaps)
		if got, want := shown(second), "false [a false ]"; got != want || !second.At.After(first.At) || !second.Changes[0].Cell.At.Equal(second.At) {
			t.Errorf("after the release: %s at %v, want %s after %v", got, second.At, want, first.At)
		}
		locked(t, locks, "b", "s/2")
		last := second
		for shown(last) != "false [b true s/2]" || last.Changes[0].Cell.Doc.Holder == "" {
			before := last.At
			if last = next(t, snaps); !last.At.After(before) {
				t.Errorf("at %v after %v", last.At, before)
			}
		}
	})
}

func TestMalformedRoomsAreSkippedWithAWarning(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		var log bytes.Buffer
		r := openRooms(t, b)
		r.documents.log = slog.New(slog.NewTextHandler(&log, nil))
		r.put(t, "__x", map[string]any{})
		r.put(t, "bad\x01", map[string]any{"lockExpiresAt": "1999-01-01T00:00:00.000Z"})
		r.put(t, "good", map[string]any{"lockOwner": "s/1", "lockExpiresAt": "1999-01-02T00:00:00.000Z"})
		found, err := r.Lapsed(t.Context(), 100)
		if err != nil || len(found) != 1 || found[0].Room != "good" {
			t.Errorf("lapsed: %+v, %v", found, err)
		}
		changes := next(t, watched(t, r.Rooms)).Changes
		if i := slices.IndexFunc(changes, func(c document.Change) bool { return c.Room == "good" }); i < 0 || changes[i].Cell.Doc.Owner != "s/1" {
			t.Errorf("watched: %+v", changes)
		}
		for _, c := range changes {
			if strings.HasPrefix(c.Room, "bad") {
				t.Errorf("%+v; want it skipped", c)
			}
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 2 {
			t.Errorf("%d warnings, want one of the query and one of the watch:\n%s", n, log.String())
		}
	})
}

func locksFor(t testing.TB, s lease.Store[document.Lock], ttl time.Duration) *document.Locks {
	t.Helper()
	l, err := document.New(s, ttl)
	fatal(t, err)
	return l
}

func locked(t testing.TB, l *document.Locks, room, owner string) document.State {
	t.Helper()
	s, err := l.Acquire(t.Context(), room, owner)
	if err != nil || !s.Mine {
		t.Fatalf("acquire %s as %s: %+v, %v", room, owner, s, err)
	}
	return s
}

func TestARoomWhoseTokenIsNoIntegerIsHeldAndCanBeUnlocked(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		r := openRooms(t, b)
		locks := locksFor(t, r, 0)
		r.put(t, "a", map[string]any{"lockToken": "one", "lockOwner": "s/1", "lockExpiresAt": "9999-01-01T00:00:00.000Z"})
		if _, err := locks.Acquire(t.Context(), "a", "s/2"); !errors.As(err, new(*document.HeldError)) {
			t.Errorf("acquire: %v; want it held", err)
		}
		if _, err := locks.Renew(t.Context(), "a", "s/1"); err != nil {
			t.Error(err)
		}
		if token, ok := r.fields(t)["lockToken"].(int64); !ok || token == 0 {
			t.Errorf("after a heartbeat the token is %v", r.fields(t)["lockToken"])
		}
		if broken, err := locks.Unlock(t.Context(), "a"); !broken || err != nil {
			t.Fatal(broken, err)
		}
		if lock := locked(t, locks, "a", "s/2"); lock.Lock.Token < lock.Lock.LockedAt.Add(-time.Minute).UnixMicro() {
			t.Errorf("token %d; want one of the time", lock.Lock.Token)
		}
	})
}
