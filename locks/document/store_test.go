package document

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskguard/internal/testing/must"
	"taskguard/lease"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is a store of rooms in memory that deletes what is not Kept. Its clock is
// as Firestore's: no commit has the time of an earlier commit or reading. The zero
// store is empty.
type store struct {
	ahead   time.Duration // of this machine's clock
	mu      sync.Mutex
	records map[string]record
	last    time.Time
	streams map[chan Snapshot]bool
	cut     chan struct{}             // closed: streams end, and new ones fail
	stalled bool                      // streams deliver no changes
	silent  bool                      // nor the records that they begin with
	seen    func(room string, c cell) // called with each commit if not nil
	watches int                       // counts Watch
}

type record struct {
	lock Lock
	rev  time.Time
}

func (s *store) now() time.Time {
	if t := time.Now().Round(0).Add(s.ahead).Truncate(time.Microsecond); t.After(s.last) {
		s.last = t
	}
	return s.last
}

func (s *store) cell(room string, asked time.Time) cell {
	r, ok := s.records[room]
	return cell{Doc: r.lock, Exists: ok, Rev: r.rev, At: s.now(), Asked: asked}
}

func (s *store) Load(ctx context.Context, room string, _ lease.Want) (cell, error) {
	if err := ctx.Err(); err != nil {
		return cell{}, err
	}
	if room == "" {
		return cell{}, lease.ErrInvalidKey
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cell(room, time.Now()), nil
}

func (s *store) Swap(ctx context.Context, room string, prev cell, next Lock) (cell, error) {
	if err := ctx.Err(); err != nil {
		return cell{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[room]
	if ok != prev.Exists || r.rev != prev.Rev {
		return cell{}, lease.ErrConflict
	}
	return s.commit(room, next), nil
}

func (s *store) commit(room string, next Lock) cell {
	before := s.last
	if !s.now().After(before) {
		s.last = before.Add(time.Microsecond)
	}
	if s.records == nil {
		s.records = map[string]record{}
	}
	if next.Kept() {
		s.records[room] = record{lock: next, rev: s.last}
	} else {
		delete(s.records, room)
	}
	c := s.cell(room, time.Now())
	if s.seen != nil {
		s.seen(room, c)
	}
	if !s.stalled {
		for stream := range s.streams {
			stream <- Snapshot{At: c.At, Changes: []Change{s.change(room)}}
		}
	}
	return c
}

// put writes a record as another program would.
func (s *store) put(room string, l Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commit(room, l)
}

func (s *store) Lapsed(_ context.Context, limit int) ([]Change, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []Change
	for _, room := range slices.Sorted(maps.Keys(s.records)) {
		c := s.cell(room, time.Now())
		if expiry := c.Doc.ExpiresAt; !expiry.IsZero() && expiry.Before(c.At) { // a missing field is in no index
			found = append(found, Change{room, c})
		}
	}
	slices.SortStableFunc(found, func(a, b Change) int {
		return cmp.Compare(a.Cell.Doc.ExpiresAt.UnixNano(), b.Cell.Doc.ExpiresAt.UnixNano())
	})
	return found[:min(limit, len(found))], nil
}

// change returns the record without a time: that of its snapshot counts.
func (s *store) change(room string) Change {
	r, ok := s.records[room]
	return Change{room, cell{Doc: r.lock, Exists: ok, Rev: r.rev}}
}

func (s *store) all() Snapshot {
	snap := Snapshot{At: s.now(), Asked: time.Now(), All: true}
	for room := range s.records {
		snap.Changes = append(snap.Changes, s.change(room))
	}
	return snap
}

var errCut = errors.New("stream cut")

func (s *store) Watch(ctx context.Context, each func(Snapshot)) error {
	s.mu.Lock()
	s.watches++
	if s.streams == nil {
		s.streams, s.cut = map[chan Snapshot]bool{}, make(chan struct{})
	}
	stream, cut := make(chan Snapshot, 1<<12), s.cut
	if !s.silent {
		stream <- s.all()
	}
	s.streams[stream] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.streams, stream)
		s.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-cut:
			return errCut
		default:
		}
		select {
		case snap := <-stream:
			snap.Asked = time.Now()
			each(snap)
		case <-ctx.Done():
			return ctx.Err()
		case <-cut:
			return errCut
		}
	}
}

// open returns a store and the locks on it, TTL 30 s.
func open(t testing.TB) (*store, *Locks) {
	t.Helper()
	s := &store{}
	return s, on(t, s)
}

// clocks are how far a store's clock may be ahead of a machine's.
var clocks = []time.Duration{-time.Hour, 0, time.Hour}

func on(t testing.TB, s lease.Store[Lock]) *Locks {
	t.Helper()
	return must.Get(New(s, 0))(t)
}

// take returns the pending event, or nil.
func (s *Subscription) take() *Event {
	select {
	case e := <-s.events:
		return &e
	default:
		return nil
	}
}

func acquire(t testing.TB, l *Locks, room, owner string) State {
	t.Helper()
	s, err := l.Acquire(t.Context(), room, owner)
	if err != nil || !s.Mine {
		t.Fatalf("acquire %s as %s: %+v, %v", room, owner, s, err)
	}
	return s
}

func get(t testing.TB, l *Locks, owner string) State {
	t.Helper()
	return must.Get(l.Get(t.Context(), "r", owner))(t)
}

func renew(t testing.TB, l *Locks) State {
	t.Helper()
	return must.Get(l.Renew(t.Context(), "r", "s/1"))(t)
}

func release(t testing.TB, l *Locks, owner string) (freed bool) {
	t.Helper()
	return must.Get(l.Release(t.Context(), "r", owner))(t)
}

func unlock(t testing.TB, l *Locks) (unlocked bool) {
	t.Helper()
	return must.Get(l.Unlock(t.Context(), "r"))(t)
}

// expire writes the records of n rooms whose locks expire, and lets time pass.
func (s *store) expire(n int) {
	for i := range n {
		s.put(fmt.Sprint(i), Lock{Lease: lease.Lease{Owner: "s/1", Token: 1, ExpiresAt: s.now()}})
	}
	time.Sleep(time.Millisecond)
}

// wantSwept sweeps what f finds. It must delete n records, and leave some.
func (s *store) wantSwept(t testing.TB, l *Locks, f Finder, n, left int) {
	t.Helper()
	swept := must.Get(l.Sweep(t.Context(), f))(t)
	if swept != n || len(s.records) != left {
		t.Errorf("swept %d, left %v; want %d, %d", swept, s.records, n, left)
	}
}
