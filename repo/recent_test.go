package repo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
)

// recents are what WatchRecent tells until the test ends.
func recents(t *testing.T, a *Analyses, limit int) <-chan Recent {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	told, done := make(chan Recent, 1000), make(chan error)
	go func() { done <- a.WatchRecent(ctx, limit, func(r Recent) { told <- r }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("WatchRecent ended with %v", err)
		}
	})
	return told
}

// mirror is what somebody knows who has heard all.
type mirror map[string]Analysis

// hear applies one Recent, which must come.
func (m mirror) hear(t *testing.T, told <-chan Recent) Recent {
	t.Helper()
	select {
	case r := <-told:
		if r.All {
			clear(m)
		}
		for _, id := range r.Gone {
			delete(m, id)
		}
		for i := range r.Changed {
			m[r.Changed[i].ID] = r.Changed[i]
		}
		return r
	case <-time.After(time.Minute):
		t.Fatal("nothing is told within a minute")
		return Recent{}
	}
}

// until hears on until want is all there is.
func (m mirror) until(t *testing.T, told <-chan Recent, want string) {
	t.Helper()
	for m.String() != want {
		if r := m.hear(t, told); r.All {
			t.Fatalf("all again: %v", m)
		}
	}
}

func (m mirror) String() string {
	words := make([]string, 0, len(m))
	for id := range m {
		words = append(words, id+"="+m[id].Status)
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

func TestWatchRecentTellsTheLatestAndEveryChange(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for i := range 4 {
			b.Put(t, fmt.Sprint("a", i), map[string]any{"status": Ready, "input": "in", "result": "out", "updatedAt": fmt.Sprintf("1999-01-0%dT00:00:00.000Z", i+1)})
		}
		b.Put(t, "undated", map[string]any{"status": Queued})
		m := mirror{}
		told := recents(t, a, 3)
		first := m.hear(t, told)
		if got, want := m.String(), "a1=READY a2=READY a3=READY"; !first.All || got != want || first.At.IsZero() || first.Asked.IsZero() {
			t.Fatalf("first %+v: %s, want %s", first, got, want)
		}
		if d := m["a1"]; d.Input != nil || d.Result != nil || d.ReadAt.IsZero() || d.UpdatedAt.IsZero() {
			t.Errorf("%+v, want it without input and result", d)
		}
		acquire(t, a, "undated", "w/1")
		m.until(t, told, "a2=READY a3=READY undated=PROCESSING") // it has an updatedAt now, and a1 makes room
		if l := m["undated"].Lock; l.Owner != "w/1" || l.Token != 1 || !lease.Held(l, m["undated"].ReadAt) {
			t.Errorf("lock %+v", l)
		}
		b.Delete(t, "a3")
		m.until(t, told, "a1=READY a2=READY undated=PROCESSING") // a1 moves up
		b.Merge(t, "a1", map[string]any{"status": "odd"})
		m.until(t, told, "a1=odd a2=READY undated=PROCESSING")
	})
}

func TestWatchRecentShowsWhatCannotBeMadeOut(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		const at = "2026-01-01T00:00:00.000Z"
		b.Put(t, "token", map[string]any{"status": Processing, "lockToken": "one", "updatedAt": at})
		b.Put(t, "bad\x01id", map[string]any{"status": Queued, "updatedAt": at})
		b.Put(t, "stamped", map[string]any{"updatedAt": time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)})
		m := mirror{}
		m.hear(t, recents(t, a, 10))
		if d := m["token"]; !errors.Is(d.Malformed, lease.ErrMalformed) || d.Status != Processing {
			t.Errorf("%+v, want it malformed and its status", d)
		}
		if d := m["bad\x01id"]; !errors.Is(d.Malformed, lease.ErrInvalidKey) {
			t.Errorf("%+v, want its id refused", d)
		}
		if d, there := m["stamped"]; !there || d.Malformed != nil || d.Status != "" || d.UpdatedAt.IsZero() {
			t.Errorf("%+v, %v", d, there)
		}
	})
}

func TestWatchRecentOfAnEmptyCollectionTellsThatThereIsNothing(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		m := mirror{}
		told := recents(t, a, 3)
		if r := m.hear(t, told); !r.All || len(m) != 0 || r.At.IsZero() {
			t.Errorf("%+v", r)
		}
		b.Put(t, "a", map[string]any{"status": Queued, "updatedAt": "2026-01-01T00:00:00.000Z"})
		m.until(t, told, "a=QUEUED")
	})
}
