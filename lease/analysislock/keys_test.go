package analysislock_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

// tenants are analyses of one key in memory, a0 created first, and the store of its slots.
type tenants struct {
	*testing.T
	*analysislock.Locks
	all   lease.Memory[analysis]
	keys  lease.Memory[analysislock.Key]
	slots *leasetest.Faulty[analysislock.Key] // counts the calls to keys
	now   time.Time
	limit int
}

const tenantTTL = 300 * time.Second

func newTenants(t *testing.T, limit, count int) *tenants {
	t.Helper()
	s := &tenants{T: t, limit: limit, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	s.all.Now = func() time.Time { return s.now }
	s.keys.Now = s.all.Now
	s.slots = leasetest.NewFaulty[analysislock.Key](&s.keys, nil)
	for n := range count {
		d := tenant(fmt.Sprint("a", n))
		d.CreatedAt = s.now.Add(time.Duration(n) * time.Second)
		s.all.Put(d.ID, d)
	}
	s.serve(&s.all)
	s.Keys = &analysislock.Keys{Store: s.slots, Limit: func(string) int { return s.limit }, Parked: s.parked}
	return s
}

func tenant(id string) analysis { return analysis{ID: id, Status: analysislock.Queued, Key: "k"} }

func (s *tenants) serve(store lease.Store[analysis]) {
	s.Helper()
	locks, err := analysislock.New(store, lease.Policy{TTL: tenantTTL}, 0, nil)
	s.check(err)
	s.Locks = locks
}

func (s *tenants) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *tenants) parked(_ context.Context, _ string, limit int) (found []analysis, _ error) {
	for n := range 10 {
		if d := s.get(fmt.Sprint("a", n)); !d.ParkedAt.IsZero() && lease.Orphaned(d.Lock, s.now) {
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a, b analysis) int { return cmp.Compare(a.Place, b.Place) })
	return found[:min(limit, len(found))], nil
}

func (s *tenants) get(id string) analysis {
	s.Helper()
	c, err := s.all.Load(s.Context(), id, lease.OnlyLease)
	s.check(err)
	return c.Doc
}

// acquire tries to acquire an analysis, and checks the reason; empty: it is acquired.
func (s *tenants) acquire(id, reason string, next ...string) analysislock.Acquisition {
	s.Helper()
	s.now = s.now.Add(time.Second)
	o := options{Early: func(analysis) bool { return false }}
	a, err := s.AcquireAnalysisLock(s.Context(), id, fmt.Sprint("w/", s.now.Unix()), 0, o)
	s.check(err)
	if a.Reason != reason || a.Acquired != (reason == "") {
		s.Fatalf("%s: %+v; want the reason %q", id, a, reason)
	}
	same(s, a.Acquired, a.Slot != nil)
	same(s, reason == analysislock.KeyBusy, a.Parked)
	same(s, strings.Join(next, " "), ids(a.Next))
	return a
}

// leave ends the run of a, and checks who can run next.
func (s *tenants) leave(a analysislock.Acquisition, next ...string) {
	s.Helper()
	s.now = s.now.Add(time.Second)
	s.check(a.Hold.End(s.Context(), analysislock.Completing(s.now, nil)))
	s.free(a, time.Time{}, next...)
}

// free frees the slot of a, and keeps it for the next attempt of the analysis at again, if that is not zero.
func (s *tenants) free(a analysislock.Acquisition, again time.Time, next ...string) {
	s.Helper()
	woken, err := s.Leave(s.Context(), a.Slot, again)
	s.check(err)
	same(s, strings.Join(next, " "), ids(woken))
}

func (s *tenants) wantNothingKept() {
	s.Helper()
	c, err := s.keys.Load(s.Context(), analysislock.KeyID("k"), 0)
	s.check(err)
	same(s, false, c.Doc.Kept())
}

func ids(all []analysis) string {
	var names []string
	for i := range all {
		names = append(names, all[i].ID)
	}
	return strings.Join(names, " ")
}

func TestKeys(t *testing.T) {
	const busy = analysislock.KeyBusy
	for name, c := range map[string]struct {
		limit int
		do    func(s *tenants)
	}{
		"the end of a run wakes the one created first": {1, func(s *tenants) {
			first := s.acquire("a0", "")
			s.acquire("a2", busy)
			s.acquire("a1", busy)
			d := s.get("a1")
			same(s, "QUEUED, 0 attempts", fmt.Sprintf("%s, %d attempts", d.Status, d.Attempts))
			same(s, false, d.ParkedAt.IsZero())
			s.leave(first, "a1")
			second := s.acquire("a1", "")
			d = second.Hold.Doc()
			same(s, true, d.ParkedAt.IsZero())
			same(s, "", d.Place)
			same(s, 1, d.Lock.Attempts)
			s.leave(second, "a2")
			s.leave(s.acquire("a2", ""))
			s.wantNothingKept()
		}},
		"a younger one does not overtake": {1, func(s *tenants) {
			first := s.acquire("a0", "")
			s.acquire("a1", busy)
			s.leave(first, "a1")
			s.acquire("a2", busy, "a1")
			s.leave(s.acquire("a1", ""), "a2")
		}},
		"an older one goes first": {1, func(s *tenants) {
			first := s.acquire("a1", "")
			s.acquire("a2", busy)
			s.leave(first, "a2")
			second := s.acquire("a0", "")
			s.acquire("a2", busy)
			s.leave(second, "a2")
		}},
		"each free slot is for another": {2, func(s *tenants) {
			first, second := s.acquire("a0", ""), s.acquire("a1", "")
			s.acquire("a2", busy)
			s.acquire("a3", busy)
			s.acquire("a4", busy)
			s.leave(first, "a2")
			s.leave(second, "a2", "a3")
			s.acquire("a4", busy, "a2", "a3")
			third := s.acquire("a3", "")
			s.acquire("a4", busy, "a2")
			s.leave(third, "a2", "a4")
		}},
		"a limit that shrinks": {2, func(s *tenants) {
			first, second := s.acquire("a0", ""), s.acquire("a1", "")
			s.acquire("a2", busy)
			s.limit = 1
			s.leave(first)
			s.acquire("a3", busy)
			s.leave(second, "a2")
			s.limit = 0
			s.acquire("a2", busy)
		}},
		"a dead worker's slot expires": {1, func(s *tenants) {
			s.acquire("a0", "")
			s.now = s.now.Add(tenantTTL + time.Second) // its lock has expired, and its slot lives for a heartbeat more
			s.acquire("a1", busy)
			s.now = s.now.Add(tenantTTL / 3)
			s.acquire("a1", "")
		}},
		"the next attempt has the slot of the dead one": {1, func(s *tenants) {
			s.acquire("a0", "")
			s.now = s.now.Add(tenantTTL + time.Second)
			same(s, 2, s.acquire("a0", "").Attempt)
		}},
		"a slot that is kept is for its analysis": {1, func(s *tenants) {
			first := s.acquire("a0", "")
			next := s.now.Add(time.Minute)
			s.check(first.Hold.End(s.Context(), analysislock.Retrying(s.now, "c", "m", next, "t", false)))
			s.free(first, next)
			s.acquire("a1", busy)
			s.now = next
			s.leave(s.acquire("a0", ""), "a1")
		}},
		"a slot that is kept ends with its analysis": {1, func(s *tenants) {
			first := s.acquire("a0", "")
			outcome := analysislock.OutcomeContinued
			s.check(first.Hold.End(s.Context(), analysislock.Releasing(s.now, outcome, "t", true)))
			s.free(first, s.now)
			s.acquire("a1", busy)
			woken, err := s.Wake(s.Context(), "k", "a0", false)
			s.check(err)
			same(s, "", ids(woken))
			woken, err = s.Wake(s.Context(), "k", "a0", true)
			s.check(err)
			same(s, "a1", ids(woken))
		}},
		"what needs no slot asks for none": {1, func(s *tenants) {
			first, unlimited, waiting := s.acquire("a0", ""), tenant("a2"), tenant("a3")
			unlimited.Key, waiting.NextAttemptAt = "", s.now.Add(time.Hour)
			s.all.Put("a2", unlimited)
			s.all.Put("a3", waiting)
			s.slots.SetPlan(leasetest.Always(leasetest.Refuse))
			s.acquire("a0", analysislock.Locked)
			s.acquire("a3", analysislock.Waiting)
			a, err := s.AcquireAnalysisLock(s.Context(), "a2", "w/2", 0, options{})
			s.check(err)
			same(s, true, a.Acquired)
			same(s, 0, s.slots.Calls(leasetest.Load))
			s.slots.SetPlan(nil)
			s.leave(first)
			s.acquire("a0", analysislock.AlreadyFinished)
		}},
		"parked again, it has a later time and the same place": {1, func(s *tenants) {
			s.acquire("a0", "")
			s.acquire("a1", busy)
			before := s.get("a1")
			s.acquire("a1", busy)
			again := s.get("a1")
			same(s, true, again.ParkedAt.After(before.ParkedAt))
			same(s, before.Place, again.Place)
		}},
	} {
		t.Run(name, func(t *testing.T) { c.do(newTenants(t, c.limit, 5)) })
	}
}

// stale is a store whose first reading arrives when the lock that it shows has been released.
type stale struct {
	*lease.Memory[analysis]
	release func()
}

func (s *stale) Load(ctx context.Context, id string, want lease.Want) (lease.Cell[analysis], error) {
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
	other, held := s.acquire("a0", ""), tenant("a1")
	held.Lock = lease.Lease{Owner: "them", Token: 1, HeartbeatAt: s.now, ExpiresAt: s.now.Add(time.Hour)}
	s.all.Put("a1", held)
	keys := s.Keys
	s.serve(&stale{&s.all, func() { s.all.Put("a1", tenant("a1")) }})
	s.Keys = keys
	s.acquire("a1", analysislock.KeyBusy)
	s.leave(other, "a1")
}

// moving is a store of keys that changes the key of a0 as soon as the first slot is taken.
type moving struct {
	*tenants
	lease.Store[analysislock.Key]
}

func (s *moving) Swap(ctx context.Context, id string, prev lease.Cell[analysislock.Key], next analysislock.Key,
) (lease.Cell[analysislock.Key], error) {
	c, err := s.Store.Swap(ctx, id, prev, next)
	if d := s.get("a0"); err == nil && d.Key == "k" {
		d.Key = "other"
		s.all.Put("a0", d)
	}
	return c, err
}

// A slot of the old key does not let an analysis run under its new key. The caller gets the slot, to free it.
func TestKeys_Changed(t *testing.T) {
	s := newTenants(t, 1, 1)
	s.Keys.Store = &moving{s, s.slots}
	a, err := s.AcquireAnalysisLock(t.Context(), "a0", "w/1", 0, options{})
	same(t, false, a.Acquired)
	same(t, false, err == nil)
	same(t, "k", a.Key)
	d := s.get("a0")
	same(t, lease.Lease{}, d.Lock)
	s.free(a, time.Time{})
	s.wantNothingKept()
}
