package documentlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// shaky is a store every call to which takes up to 20 ms each way.
type shaky struct {
	*store
	mu     sync.Mutex
	chance *rand.Rand
}

func newShaky(seed int) *shaky {
	return &shaky{store: &store{}, chance: rand.New(rand.NewPCG(uint64(seed), 4))} //nolint:gosec // to be repeatable
}

// upTo is a time below limit, in whole microseconds.
func (s *shaky) upTo(limit time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.chance.Int64N(limit.Microseconds())) * time.Microsecond
}

func (s *shaky) trip() { time.Sleep(s.upTo(20 * time.Millisecond)) }

func (s *shaky) Load(ctx context.Context, room string) (lease.Cell[Lock], error) {
	asked := time.Now()
	s.trip()
	defer s.trip()
	c, err := s.store.Load(ctx, room)
	c.Asked = asked
	return c, err
}

func (s *shaky) Swap(ctx context.Context, room string, prev lease.Cell[Lock], next Lock) (lease.Cell[Lock], error) {
	asked := time.Now()
	s.trip()
	defer s.trip()
	c, err := s.store.Swap(ctx, room, prev, next)
	c.Asked = asked
	return c, err
}

func (s *shaky) Lapsed(ctx context.Context, limit int) ([]Change, error) {
	s.trip()
	defer s.trip()
	return s.store.Lapsed(ctx, limit)
}

// times runs f in n bubbles, each with a store of another course.
func times(t *testing.T, n int, f func(t *testing.T, s *shaky, l *Locks)) {
	t.Helper()
	for seed := range n {
		synctest.Test(t, func(t *testing.T) {
			s := newShaky(seed)
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

// X: check, then create.
func TestOfTwoWhoAcquireAtOnceOneGetsTheRoom(t *testing.T) {
	won := map[string]int{}
	times(t, 1000, func(t *testing.T, s *shaky, l *Locks) {
		if s.upTo(2*time.Microsecond) == 0 { // also where a record has expired
			s.put("r", Lock{Lease: lease.Lease{Owner: "s/0", Token: 1, ExpiresAt: time.Now()}})
		}
		var errs [2]error
		var both sync.WaitGroup
		for i := range errs {
			both.Go(func() {
				time.Sleep(s.upTo(20 * time.Millisecond))
				_, errs[i] = l.Acquire(t.Context(), "r", fmt.Sprint("s/", i+1))
			})
		}
		both.Wait()
		got, err := l.Get(t.Context(), "r", "")
		for i, e := range errs {
			if held := (*HeldError)(nil); e != nil && !errors.As(e, &held) {
				t.Errorf("s/%d: %v, want a HeldError", i+1, e)
			}
		}
		winner := "s/1"
		if errs[1] == nil {
			winner = "s/2"
		}
		won[winner]++
		if (errs[0] == nil) == (errs[1] == nil) || err != nil || got.Lock.Owner != winner {
			t.Errorf("%v and %v, then %+v, %v", errs[0], errs[1], got.Lock, err)
		}
	})
	if won["s/1"] == 0 || won["s/2"] == 0 {
		t.Errorf("won: %v; want both to win now and then", won)
	}
}

// X: a sweep that deleted a just-extended lock. Extend and sweep meet about the
// expiry: a lock that was extended, or taken by another, is never deleted.
func TestASweepNeverDeletesALiveLock(t *testing.T) {
	was := map[string]int{}
	times(t, 1000, func(t *testing.T, s *shaky, l *Locks) {
		first := acquire(t, l, "r", "s/1")
		about := first.Lock.ExpiresAt.Add(-60 * time.Millisecond)
		var (
			alive   State
			found   int
			swept   int
			aliveIs error
			both    sync.WaitGroup
		)
		both.Go(func() {
			time.Sleep(time.Until(about) + s.upTo(60*time.Millisecond))
			if alive, aliveIs = l.Extend(t.Context(), "r", "s/1"); errors.Is(aliveIs, ErrNotLocked) && s.upTo(2*time.Microsecond) == 0 {
				alive, aliveIs = l.Acquire(t.Context(), "r", "s/2")
			}
		})
		both.Go(func() {
			time.Sleep(time.Until(about) + 20*time.Millisecond + s.upTo(100*time.Millisecond))
			var err error
			if swept, err = l.Sweep(t.Context(), counted{s, &found}); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		got, err := l.Get(t.Context(), "r", alive.Lock.Owner)
		switch {
		case err != nil:
			t.Error(err)
		case aliveIs == nil && (!got.Mine || got.Lock != alive.Lock):
			t.Errorf("%+v became %+v", alive.Lock, got.Lock)
		case aliveIs != nil && !errors.Is(aliveIs, ErrNotLocked):
			t.Error(aliveIs)
		case aliveIs != nil && got.Locked:
			t.Errorf("nobody had it, then %+v", got.Lock)
		}
		was[fmt.Sprintf("found %d, swept %d, alive %q", found, swept, alive.Lock.Owner)]++
	})
	for _, must := range []string{
		`found 0, swept 0, alive "s/1"`, // the extension first
		`found 1, swept 0, alive "s/1"`, // found to have lapsed, and then extended
		`found 1, swept 1, alive ""`,    // the sweep first
		`found 1, swept 0, alive "s/2"`, // found to have lapsed, and then taken
		`found 1, swept 1, alive "s/2"`,
	} {
		if was[must] == 0 {
			t.Errorf("never %s in %v", must, was)
		}
	}
}

// counted counts what a Finder finds.
type counted struct {
	Finder
	n *int
}

func (c counted) Lapsed(ctx context.Context, limit int) ([]Change, error) {
	found, err := c.Finder.Lapsed(ctx, limit)
	*c.n = len(found)
	return found, err
}

func TestOfTwoSweepsAtOnceBothEnd(t *testing.T) {
	times(t, 100, func(t *testing.T, s *shaky, l *Locks) {
		for i := range 5 {
			acquire(t, l, fmt.Sprint("r-", i), "s/1")
		}
		time.Sleep(31 * time.Second)
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if _, err := l.Sweep(t.Context(), s); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		if len(s.records) != 0 {
			t.Errorf("left %v", s.records)
		}
	})
}

// Any number of sessions take, extend and free the room for an hour, with a
// sweep now and then: at no time do two hold it, and tokens grow.
func TestTokensGrowWhateverHappens(t *testing.T) {
	deleted := 0
	times(t, 20, func(t *testing.T, s *shaky, l *Locks) {
		var (
			all    sync.WaitGroup
			mu     sync.Mutex
			byWhom = map[int64]string{}
			last   int64 // by the order of commits
		)
		s.seen = func(_ string, c lease.Cell[Lock]) {
			switch {
			case !c.Exists:
				deleted++
			case lease.Held(c.Doc.Lease, c.At) && c.Doc.Token < last:
				t.Errorf("token %d after %d", c.Doc.Token, last)
			case lease.Held(c.Doc.Lease, c.At):
				last = c.Doc.Token
			}
		}
		for i := range 4 {
			all.Go(func() {
				owner := fmt.Sprint("s/", i)
				for range 100 {
					got, err := l.Acquire(t.Context(), "r", owner)
					if err == nil {
						mu.Lock()
						if other := byWhom[got.Lock.Token]; other != "" && other != owner {
							t.Errorf("token %d is %s's and %s's", got.Lock.Token, other, owner)
						}
						byWhom[got.Lock.Token] = owner
						mu.Unlock()
						if s.upTo(4*time.Microsecond) != 0 {
							_, _ = l.Release(t.Context(), "r", owner)
						}
					}
					time.Sleep(s.upTo(20 * time.Millisecond))
					if s.upTo(50*time.Microsecond) == 0 {
						time.Sleep(31 * time.Second)
					}
					_, _ = l.Sweep(t.Context(), s)
				}
			})
		}
		all.Wait()
	})
	if deleted < 100 {
		t.Errorf("%d deletions, want many", deleted)
	}
}

// Nobody waits for hours where the store is dark, and no log line is a book.
func TestASweepOfADarkStoreGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := open(t)
		for i := range sweepBatch {
			acquire(t, l, fmt.Sprint("r", i), "s/1")
		}
		time.Sleep(time.Minute)
		began := time.Now()
		swept, err := on(t, leasetest.NewFaulty(s, leasetest.Always(leasetest.Dark))).Sweep(t.Context(), s)
		if took := time.Since(began); swept != 0 || !errors.Is(err, lease.ErrUnavailable) || took > sweepTimeout || len(err.Error()) > 500 {
			t.Errorf("swept %d in %v: %v", swept, took, err)
		}
	})
}

func TestASweepGoesOnUntilNothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := open(t)
		for i := range 2*sweepBatch + 1 {
			acquire(t, l, fmt.Sprint("r", i), "s/1")
		}
		time.Sleep(time.Minute)
		if swept, err := l.Sweep(t.Context(), s); err != nil || swept != 2*sweepBatch+1 || len(s.records) != 0 {
			t.Errorf("swept %d, %v; %d left", swept, err, len(s.records))
		}
	})
}
