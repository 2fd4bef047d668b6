package analysislock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"taskguard/lease"
)

// tenants are analyses of one key in memory, a0 created first, and a store of keys that counts its calls.
type tenants struct {
	*Locks
	t     *testing.T
	all   lease.Memory[Analysis]
	keys  lease.Memory[Key]
	now   time.Time
	limit int
	calls int
}

const tenantTTL = 300 * time.Second

func newTenants(t *testing.T, limit, count int) *tenants {
	t.Helper()
	s := &tenants{t: t, limit: limit, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	s.all.Now = func() time.Time { return s.now }
	s.keys.Now = s.all.Now
	for n := range count {
		id := fmt.Sprint("a", n)
		s.all.Put(id, Analysis{ID: id, Status: Queued, Key: "k", CreatedAt: s.now.Add(time.Duration(n) * time.Second)})
	}
	locks, err := New(&s.all, lease.Policy{TTL: tenantTTL}, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Locks = locks
	locks.Keys = &Keys{Store: s, Limit: func(string) int { return s.limit }, Parked: s.parked}
	return s
}

func (s *tenants) Load(ctx context.Context, id string, want lease.Want) (lease.Cell[Key], error) {
	s.calls++
	return s.keys.Load(ctx, id, want)
}

func (s *tenants) Swap(ctx context.Context, id string, prev lease.Cell[Key], next Key) (lease.Cell[Key], error) {
	s.calls++
	return s.keys.Swap(ctx, id, prev, next)
}

func (s *tenants) parked(ctx context.Context, _ string, limit int) (found []Analysis, _ error) {
	for n := range 10 {
		if d := s.get(ctx, fmt.Sprint("a", n)); !d.ParkedAt.IsZero() && lease.Orphaned(d.Lock, s.now) {
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a, b Analysis) int { return cmp.Compare(a.Place, b.Place) })
	return found[:min(limit, len(found))], nil
}

func (s *tenants) get(ctx context.Context, id string) Analysis {
	c, err := s.all.Load(ctx, id, lease.OnlyLease)
	if err != nil {
		s.t.Fatal(err)
	}
	return c.Doc
}

// acquire tries to acquire an analysis, and checks the reason; empty: it is acquired.
func (s *tenants) acquire(id, reason string, next ...string) Acquisition {
	s.t.Helper()
	s.now = s.now.Add(time.Second)
	owner := fmt.Sprint("w/", s.now.Unix())
	early := func(Analysis) bool { return false }
	a, err := s.AcquireAnalysisLock(s.t.Context(), id, owner, 0, AcquireOptions{Early: early})
	if err != nil || a.Reason != reason || a.Acquired != (reason == "") || a.Acquired != (a.Slot != nil) {
		s.t.Fatalf("%s: %+v, %v; want the reason %q", id, a, err, reason)
	}
	if a.Parked != (reason == KeyBusy) || !slices.Equal(ids(a.Next), next) {
		s.t.Errorf("%s: parked %t, before it %q; want %q", id, a.Parked, ids(a.Next), next)
	}
	return a
}

// leave ends the run of a, and checks who can run next.
func (s *tenants) leave(a Acquisition, next ...string) {
	s.t.Helper()
	s.now = s.now.Add(time.Second)
	if err := a.Hold.End(s.t.Context(), Completing(s.now, nil)); err != nil {
		s.t.Fatal(err)
	}
	woken, err := s.Leave(s.t.Context(), a.Slot, time.Time{})
	if err != nil || !slices.Equal(ids(woken), next) {
		s.t.Errorf("woke %q, %v; want %q", ids(woken), err, next)
	}
}

func ids(all []Analysis) (names []string) {
	for i := range all {
		names = append(names, all[i].ID)
	}
	return names
}

func TestKeys(t *testing.T) {
	for name, c := range map[string]struct {
		limit int
		do    func(s *tenants)
	}{
		"the end of a run wakes the one created first": {1, func(s *tenants) {
			first := s.acquire("a0", "")
			s.acquire("a2", KeyBusy)
			s.acquire("a1", KeyBusy)
			if d := s.get(s.t.Context(), "a1"); d.Attempts != 0 || d.Status != Queued || d.ParkedAt.IsZero() {
				s.t.Errorf("parked: %+v", d)
			}
			s.leave(first, "a1")
			second := s.acquire("a1", "")
			if d := second.Hold.Doc(); !d.ParkedAt.IsZero() || d.Place != "" || d.Lock.Attempts != 1 {
				s.t.Errorf("acquired: %+v", d)
			}
			s.leave(second, "a2")
			s.leave(s.acquire("a2", ""))
			if c, _ := s.keys.Load(s.t.Context(), KeyID("k"), 0); c.Doc.Kept() {
				s.t.Errorf("left %+v", c.Doc)
			}
		}},
		"a younger one does not overtake": {1, func(s *tenants) {
			first := s.acquire("a0", "")
			s.acquire("a1", KeyBusy)
			s.leave(first, "a1")
			s.acquire("a2", KeyBusy, "a1")
			s.leave(s.acquire("a1", ""), "a2")
		}},
		"an older one goes first": {1, func(s *tenants) {
			first := s.acquire("a1", "")
			s.acquire("a2", KeyBusy)
			s.leave(first, "a2")
			second := s.acquire("a0", "")
			s.acquire("a2", KeyBusy)
			s.leave(second, "a2")
		}},
		"each free slot is for another": {2, func(s *tenants) {
			first, second := s.acquire("a0", ""), s.acquire("a1", "")
			s.acquire("a2", KeyBusy)
			s.acquire("a3", KeyBusy)
			s.acquire("a4", KeyBusy)
			s.leave(first, "a2")
			s.leave(second, "a2", "a3")
			s.acquire("a4", KeyBusy, "a2", "a3")
			third := s.acquire("a3", "")
			s.acquire("a4", KeyBusy, "a2")
			s.leave(third, "a2", "a4")
		}},
		"a limit that shrinks": {2, func(s *tenants) {
			first, second := s.acquire("a0", ""), s.acquire("a1", "")
			s.acquire("a2", KeyBusy)
			s.limit = 1
			s.leave(first)
			s.acquire("a3", KeyBusy)
			s.leave(second, "a2")
			s.limit = 0
			s.acquire("a2", KeyBusy)
		}},
		"a dead worker's slot expires": {1, func(s *tenants) {
			s.acquire("a0", "")
			s.now = s.now.Add(tenantTTL + time.Second) // its lock has expired, and its slot lives for a heartbeat more
			s.acquire("a1", KeyBusy)
			s.now = s.now.Add(tenantTTL / 3)
			s.acquire("a1", "")
		}},
		"the next attempt has the slot of the dead one": {1, func(s *tenants) {
			s.acquire("a0", "")
			s.now = s.now.Add(tenantTTL + time.Second)
			if a := s.acquire("a0", ""); a.Attempt != 2 {
				s.t.Errorf("attempt %d", a.Attempt)
			}
		}},
		"a slot that is kept is for its analysis": {1, func(s *tenants) {
			first := s.acquire("a0", "")
			next := s.now.Add(time.Minute)
			if err := first.Hold.End(s.t.Context(), Retrying(s.now, "c", "m", next, "t", false)); err != nil {
				s.t.Fatal(err)
			}
			if _, err := s.Leave(s.t.Context(), first.Slot, next); err != nil {
				s.t.Fatal(err)
			}
			s.acquire("a1", KeyBusy)
			s.now = next
			s.leave(s.acquire("a0", ""), "a1")
		}},
		"a slot that is kept ends with its analysis": {1, func(s *tenants) {
			first := s.acquire("a0", "")
			if err := first.Hold.End(s.t.Context(), Releasing(s.now, OutcomeContinued, "t", true)); err != nil {
				s.t.Fatal(err)
			}
			if _, err := s.Leave(s.t.Context(), first.Slot, s.now); err != nil {
				s.t.Fatal(err)
			}
			s.acquire("a1", KeyBusy)
			for _, finished := range []bool{false, true} {
				woken, err := s.Wake(s.t.Context(), "k", "a0", finished)
				if err != nil || len(woken) != map[bool]int{true: 1}[finished] {
					s.t.Errorf("finished %t: woke %q, %v", finished, ids(woken), err)
				}
			}
		}},
		"what needs no slot asks for none": {1, func(s *tenants) {
			first := s.acquire("a0", "")
			s.all.Put("a2", Analysis{ID: "a2", Status: Queued})
			s.all.Put("a3", Analysis{ID: "a3", Status: Queued, Key: "k", NextAttemptAt: s.now.Add(time.Hour)})
			before := s.calls
			s.acquire("a0", Locked)
			s.acquire("a3", Waiting)
			if a, err := s.AcquireAnalysisLock(s.t.Context(), "a2", "w/2", 0, AcquireOptions{}); err != nil || !a.Acquired {
				s.t.Errorf("without a key: %+v, %v", a, err)
			}
			if s.calls != before {
				s.t.Errorf("%d calls", s.calls-before)
			}
			s.leave(first)
			s.acquire("a0", AlreadyFinished)
		}},
		"parked again, it has a later time and the same place": {1, func(s *tenants) {
			s.acquire("a0", "")
			s.acquire("a1", KeyBusy)
			before := s.get(s.t.Context(), "a1")
			s.acquire("a1", KeyBusy)
			if again := s.get(s.t.Context(), "a1"); !again.ParkedAt.After(before.ParkedAt) || again.Place != before.Place {
				s.t.Errorf("%+v, before %+v", again, before)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) { c.do(newTenants(t, c.limit, 5)) })
	}
}

// stale is a store whose first reading arrives when the lock that it shows has been released.
type stale struct {
	*lease.Memory[Analysis]
	release func()
}

func (s *stale) Load(ctx context.Context, id string, want lease.Want) (lease.Cell[Analysis], error) {
	c, err := s.Memory.Load(ctx, id, want)
	if release := s.release; release != nil {
		s.release = nil
		release()
		c.Asked = c.Asked.Add(-tenantTTL)
	}
	return c, err
}

// What was to be skipped, and can be acquired a moment later, needs a slot too.
func TestKeys_StaleSkip(t *testing.T) {
	s := newTenants(t, 1, 2)
	other := s.acquire("a0", "")
	s.all.Put("a1", Analysis{ID: "a1", Status: Processing, Key: "k", Lock: lease.Lease{
		Owner: "them", Token: 1, HeartbeatAt: s.now, ExpiresAt: s.now.Add(time.Hour),
	}})
	store := &stale{Memory: &s.all, release: func() { s.all.Put("a1", Analysis{ID: "a1", Status: Queued, Key: "k"}) }}
	locks, err := New(store, lease.Policy{TTL: tenantTTL}, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	locks.Keys = s.Keys
	s.Locks = locks
	s.acquire("a1", KeyBusy)
	s.leave(other, "a1")
}

// moving is a store of keys that changes the key of a0 as soon as the first slot is taken.
type moving struct {
	*tenants
	moved bool
}

func (s *moving) Swap(ctx context.Context, id string, prev lease.Cell[Key], next Key) (lease.Cell[Key], error) {
	c, err := s.tenants.Swap(ctx, id, prev, next)
	if err == nil && !s.moved {
		s.moved = true
		s.all.Put("a0", Analysis{ID: "a0", Status: Queued, Key: "other"})
	}
	return c, err
}

// A slot of the old key does not let an analysis run under its new key. The caller gets the slot, to free it.
func TestKeys_ChangedAfterTheSlot(t *testing.T) {
	s := newTenants(t, 1, 1)
	s.Keys.Store = &moving{tenants: s}
	a, err := s.AcquireAnalysisLock(t.Context(), "a0", "w/1", 0, AcquireOptions{})
	if a.Acquired || err == nil || a.Slot == nil || a.Key != "k" {
		t.Fatalf("%+v, %v; want an error and the slot of the old key", a, err)
	}
	if d := s.get(t.Context(), "a0"); d.Attempts != 0 || d.Lock.Owner != "" {
		t.Errorf("a0 is %+v, want it as it was", d)
	}
	if _, err := s.Leave(t.Context(), a.Slot, time.Time{}); err != nil {
		t.Error(err)
	}
	if c, _ := s.keys.Load(t.Context(), KeyID("k"), 0); c.Doc.Kept() {
		t.Errorf("left %+v", c.Doc)
	}
}
