package document

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
)

// slowStore is a store whose calls take up to 20 ms each way.
type slowStore struct {
	*store
	mu     sync.Mutex
	chance *rand.Rand
}

// upTo returns a time below limit, in whole microseconds.
func (s *slowStore) upTo(limit time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.chance.Int64N(limit.Microseconds())) * time.Microsecond
}

// oneIn reports true once in n times.
func (s *slowStore) oneIn(n int) bool { return s.upTo(time.Duration(n)*time.Microsecond) == 0 }

func (s *slowStore) trip() { time.Sleep(s.upTo(20 * time.Millisecond)) }

func (s *slowStore) Load(ctx context.Context, room string, _ lease.Want) (cell, error) {
	asked := time.Now()
	s.trip()
	defer s.trip()
	c, err := s.store.Load(ctx, room, lease.OnlyLease)
	c.Asked = asked
	return c, err
}

func (s *slowStore) Swap(ctx context.Context, room string, prev cell, next Lock) (cell, error) {
	asked := time.Now()
	s.trip()
	defer s.trip()
	c, err := s.store.Swap(ctx, room, prev, next)
	c.Asked = asked
	return c, err
}

func (s *slowStore) Lapsed(ctx context.Context, limit int) ([]Change, error) {
	s.trip()
	defer s.trip()
	return s.store.Lapsed(ctx, limit)
}

// times runs f in n bubbles, each with a store of another seed.
func times(t *testing.T, n int, f func(t *testing.T, s *slowStore, l *Locks)) {
	t.Helper()
	for seed := range n {
		synctest.Test(t, func(t *testing.T) {
			chance := rand.New(rand.NewPCG(uint64(seed), 4)) //nolint:gosec // to be repeatable
			s := &slowStore{store: &store{ahead: clocks[seed%len(clocks)]}, chance: chance}
			f(t, s, on(t, s))
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// D-X: a sweep deleted a lock that was just extended. Here an extension and a sweep
// meet at the expiry: a lock that was extended, or taken by another, is never deleted.
func TestRaces_Sweep(t *testing.T) {
	was := map[string]int{}
	times(t, 500, func(t *testing.T, s *slowStore, l *Locks) {
		about := acquire(t, l, "r", "s/1").Lock.ExpiresAt.Add(-60*time.Millisecond - s.ahead)
		var (
			alive    State
			aliveErr error
			found    []Change
			swept    int
			both     sync.WaitGroup
		)
		both.Go(func() {
			time.Sleep(time.Until(about) + s.upTo(60*time.Millisecond))
			if alive, aliveErr = l.Renew(t.Context(), "r", "s/1"); errors.Is(aliveErr, ErrNotLocked) && s.oneIn(2) {
				alive, aliveErr = l.Acquire(t.Context(), "r", "s/2")
			}
		})
		both.Go(func() {
			time.Sleep(time.Until(about) + 20*time.Millisecond + s.upTo(100*time.Millisecond))
			var err error
			if found, err = s.Lapsed(t.Context(), 10); err != nil {
				t.Error(err)
			}
			if swept, err = l.sweepAll(t.Context(), found); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		got, err := l.Get(t.Context(), "r", alive.Lock.Owner)
		switch {
		case err != nil:
			t.Error(err)
		case aliveErr == nil && (!got.Mine || got.Lock != alive.Lock):
			t.Errorf("%+v became %+v", alive.Lock, got.Lock)
		case aliveErr != nil && !errors.Is(aliveErr, ErrNotLocked):
			t.Error(aliveErr)
		case aliveErr != nil && got.Locked:
			t.Errorf("the room was free, then %+v", got.Lock)
		}
		was[fmt.Sprintf("found %d, swept %d, alive %q", len(found), swept, alive.Lock.Owner)]++
	})
	for _, must := range []string{
		`found 0, swept 0, alive "s/1"`, // the extension first
		`found 1, swept 0, alive "s/1"`, // found lapsed, and then extended
		`found 1, swept 1, alive ""`,    // the sweep first
		`found 1, swept 0, alive "s/2"`, // found lapsed, and then taken
		`found 1, swept 1, alive "s/2"`,
	} {
		if was[must] == 0 {
			t.Errorf("never %s in %v", must, was)
		}
	}
}

// D-X: check, then create. Sessions acquire and release the room, or let it expire,
// and sweep it.
func TestRaces_Acquire(t *testing.T) {
	var deleted int
	var refused atomic.Int64
	times(t, 10, func(t *testing.T, s *slowStore, l *Locks) {
		var last cell // the last commit that left the room held; the store's mutex guards it
		s.seen = func(_ string, c cell) {
			before, after := last.Doc, c.Doc
			switch {
			case !c.Exists:
				deleted++
				last.Doc.ExpiresAt = time.Time{}
			case !lease.Held(after.Lease, c.At):
			case after.Owner != before.Owner && lease.Held(before.Lease, c.At):
				t.Errorf("%+v replaced %+v", after, before)
			case after.Token < before.Token || after.Token == before.Token && after.Owner != before.Owner:
				t.Errorf("token %d after %d", after.Token, before.Token)
			default:
				last = c
			}
		}
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				owner := fmt.Sprint("s/", i)
				for range 100 {
					switch _, err := l.Acquire(t.Context(), "r", owner); {
					case errors.As(err, new(*HeldError)):
						refused.Add(1)
					case err != nil:
						t.Error(err)
					case !s.oneIn(4):
						_, _ = l.Release(t.Context(), "r", owner)
					}
					time.Sleep(s.upTo(20 * time.Millisecond))
					if s.oneIn(50) {
						time.Sleep(31 * time.Second)
					}
					_, _ = l.Sweep(t.Context(), s)
				}
			})
		}
		all.Wait()
	})
	if deleted < 100 || refused.Load() < 100 {
		t.Errorf("%d deletions, %d refusals; want many of both", deleted, refused.Load())
	}
}

// A Feed receives the history of two rooms late, twice and in any order. Every
// event is a state that the room had at that very time, versions grow, and the last
// event is the store's state in the end.
func TestRaces_Events(t *testing.T) {
	var events, dropped int
	for seed := range 150 {
		synctest.Test(t, func(t *testing.T) {
			chance := rand.New(rand.NewPCG(uint64(seed), 5)) //nolint:gosec // to be repeatable
			s, l := open(t)
			h := randomHistory(t, s, l, chance)
			feed := NewFeed(l, s, nil)
			subs := map[string]*Subscription{}
			versions := map[string]int64{}
			for _, room := range []string{"a", "b"} {
				subs[room] = feed.enter(room)
			}
			for _, snap := range shuffled(h.snapshots, chance) {
				feed.apply(snap)
				before := events
				for room, sub := range subs {
					e := sub.take()
					if e == nil {
						continue
					}
					events++
					if was, ok := h.holders[room][e.Version]; !ok || was != e.Holder {
						t.Errorf("seed %d: %+v; it was %q, %v", seed, *e, was, ok)
					}
					if e.Version <= versions[room] {
						t.Errorf("seed %d: %+v after %d", seed, *e, versions[room])
					}
					versions[room] = e.Version
				}
				if events == before {
					dropped++
				}
			}
			for room, sub := range subs {
				c, err := s.Load(t.Context(), room, lease.OnlyLease)
				must.OK(t, err)
				e := sub.room.latest
				if e.Locked != lease.Held(c.Doc.Lease, sub.room.cell.At) || e.Holder != holder(c) {
					t.Errorf("seed %d: last %+v of %+v", seed, e, c)
				}
			}
		})
		if t.Failed() {
			return
		}
	}
	if events < 1000 || dropped < 1000 {
		t.Errorf("%d events, %d snapshots without one; want many of both", events, dropped)
	}
}

// history is what happened to two rooms.
type history struct {
	snapshots []Snapshot
	holders   map[string]map[int64]string // by room and time in µs
}

func holder(c cell) string {
	if !lease.Held(c.Doc.Lease, c.At) {
		return ""
	}
	return c.Doc.Holder
}

// randomHistory changes two rooms at random, and records the snapshots of one or all rooms that a
// stream and readings would deliver.
func randomHistory(t *testing.T, s *store, l *Locks, chance *rand.Rand) history {
	t.Helper()
	h := history{holders: map[string]map[int64]string{"a": {}, "b": {}}}
	note := func(snap Snapshot) {
		h.snapshots = append(h.snapshots, snap)
		for _, room := range []string{"a", "b"} {
			h.holders[room][snap.At.UnixMicro()] = holder(s.cell(room, time.Now()))
		}
	}
	s.seen = func(room string, c cell) {
		note(Snapshot{At: c.At, Asked: time.Now(), Changes: []Change{s.change(room)}})
	}
	all := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		note(s.all())
	}
	for range 60 {
		time.Sleep(time.Duration(chance.Int64N(8_000_000)) * time.Microsecond)
		room, owner := []string{"a", "b"}[chance.IntN(2)], fmt.Sprint("s/", chance.IntN(2))
		switch chance.IntN(7) {
		case 0, 1:
			_, _ = l.Acquire(t.Context(), room, owner)
		case 2:
			_, _ = l.Renew(t.Context(), room, owner)
		case 3:
			_, _ = l.Release(t.Context(), room, owner)
		case 4:
			_, _ = l.Unlock(t.Context(), room)
		case 5:
			_, _ = l.Sweep(t.Context(), s)
		case 6:
			all()
		}
	}
	all()
	s.seen = nil
	return h
}

// shuffled returns the snapshots twice each, in an order that mixes those that are near, or all.
func shuffled(snapshots []Snapshot, chance *rand.Rand) (out []Snapshot) {
	for _, s := range snapshots {
		out = append(out, s, s)
	}
	for near := range slices.Chunk(out, []int{4, 20, len(out)}[chance.IntN(3)]) {
		chance.Shuffle(len(near), func(i, j int) { near[i], near[j] = near[j], near[i] })
	}
	return out
}
