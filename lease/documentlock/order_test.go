package documentlock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
)

// A history of two rooms is told to a Feed by several streams, polls and
// readings at once: late, twice and in any order. Every event is a state that
// the room had at that very time, versions grow, and the last event is what the
// store has in the end.
func TestWhateverOrderChangesArriveInEventsAreOrdered(t *testing.T) {
	var events, dropped int
	for seed := range 500 {
		synctest.Test(t, func(t *testing.T) {
			chance := rand.New(rand.NewPCG(uint64(seed), 5)) //nolint:gosec // to be repeatable
			s, l := open(t)
			h := history(t, s, l, chance)
			feed := NewFeed(l, s, FeedOptions{})
			subs := map[string]*Subscription{}
			versions := map[string]int64{}
			for _, room := range []string{"a", "b"} {
				subs[room] = &Subscription{feed: feed, room: feed.enter(room), news: make(chan struct{}, 1), begun: true}
				subs[room].room.subs[subs[room]] = struct{}{}
			}
			for _, snap := range shuffled(h.told, chance) {
				feed.apply(snap)
				heard := false
				for room, sub := range subs {
					e, _ := sub.take()
					if e == nil {
						continue
					}
					heard = true
					events++
					if was, ok := h.states[room][e.Version]; !ok || was != e.Holder || e.Version <= versions[room] {
						t.Errorf("seed %d: %+v after %d; it was %q, %v", seed, *e, versions[room], was, ok)
					}
					versions[room] = e.Version
				}
				if !heard {
					dropped++
				}
			}
			for room, sub := range subs {
				c, err := s.Load(t.Context(), room)
				if e := sub.room.latest; err != nil || e.Locked != lease.Held(c.Doc.Lease, sub.room.cell.At) || e.Holder != holder(c) {
					t.Errorf("seed %d: last %+v of %+v, %v", seed, e, c, err)
				}
			}
		})
		if t.Failed() {
			return
		}
	}
	if events < 5000 || dropped < 5000 {
		t.Errorf("%d events, %d snapshots without one; want thousands of both", events, dropped)
	}
}

// course is a history.
type course struct {
	told   []Snapshot
	states map[string]map[int64]string // room, then time in µs: its holder
}

func holder(c lease.Cell[Lock]) string {
	if !lease.Held(c.Doc.Lease, c.At) {
		return ""
	}
	return c.Doc.Holder
}

// history lets two rooms change hands, with what a stream, a poll and readings
// of single rooms would say of it.
func history(t *testing.T, s *store, l *Locks, chance *rand.Rand) course {
	t.Helper()
	h := course{states: map[string]map[int64]string{"a": {}, "b": {}}}
	note := func(snap Snapshot) {
		h.told = append(h.told, snap)
		for _, room := range []string{"a", "b"} {
			h.states[room][snap.At.UnixMicro()] = holder(s.cell(room, time.Now()))
		}
	}
	s.seen = func(room string, c lease.Cell[Lock]) {
		note(Snapshot{At: c.At, Asked: time.Now(), Changes: []Change{s.change(room)}})
	}
	for range 60 {
		time.Sleep(time.Duration(chance.Int64N(8_000_000)) * time.Microsecond)
		room, owner := []string{"a", "b"}[chance.IntN(2)], fmt.Sprint("s/", chance.IntN(2))
		switch chance.IntN(8) {
		case 0, 1:
			_, _ = l.Acquire(t.Context(), room, owner)
		case 2:
			_, _ = l.Extend(t.Context(), room, owner)
		case 3:
			_, _ = l.Release(t.Context(), room, owner)
		case 4:
			_, _ = l.Break(t.Context(), room)
		case 5:
			_, _ = l.Sweep(t.Context(), s)
		case 6:
			s.mu.Lock()
			note(s.all())
			s.mu.Unlock()
		case 7:
			s.mu.Lock()
			c := s.cell(room, time.Now())
			note(Snapshot{At: c.At, Asked: c.Asked, Changes: []Change{s.change(room)}})
			s.mu.Unlock()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	note(s.all())
	s.seen = nil
	return h
}

// shuffled is what was told, some of it twice, in an order that mixes what is
// near, or all.
func shuffled(told []Snapshot, chance *rand.Rand) []Snapshot {
	type late struct {
		Snapshot
		at float64
	}
	reach := []float64{1, 5, 1000}[chance.IntN(3)]
	var all []late
	for i, s := range told {
		for range 1 + chance.IntN(2) {
			all = append(all, late{s, float64(i) + reach*chance.Float64()})
		}
	}
	slices.SortFunc(all, func(a, b late) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	in := make([]Snapshot, 0, len(all))
	for _, s := range all {
		in = append(in, s.Snapshot)
	}
	return in
}
