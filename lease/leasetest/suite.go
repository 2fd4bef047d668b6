// Package leasetest tests implementations of lease.Store: Run runs every test
// case that package lease requires of a store, and Faulty makes a working store
// fail as networks do. For tests only.
package leasetest

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
)

// Suite describes a store of records D to Run. Every function gets the
// testing.TB of its test case and fails that test case.
type Suite[D any] struct {
	// New opens an empty store, and closes it with t.Cleanup.
	New func(t testing.TB) lease.Store[D]
	// Create makes an unfinished record that was never leased, as another
	// program would.
	Create func(t testing.TB, s lease.Store[D], key string)
	// Delete removes a record, as another program would.
	Delete func(t testing.TB, s lease.Store[D], key string)
	// Touch changes a field that the store does not decode, as another program
	// would, so that the record's revision changes.
	Touch func(t testing.TB, s lease.Store[D], key string)
	// Touched counts the Touches that the record shows.
	Touched func(t testing.TB, s lease.Store[D], key string) int

	Lease   func(*D) *lease.Lease   // the lease inside a record
	Note    func(D) string          // a field of the record's own, empty in a new record
	SetNote func(d *D, note string) // sets that field by assignment, not through a pointer inside d
	// Close sets what the record needs so that Lease.Finished is stored, such
	// as a status; nil if nothing is needed.
	Close func(*D)

	TTL    time.Duration // of the leases: minutes in a bubble, a few seconds in real time
	Bubble bool          // run each test case in a testing/synctest bubble
}

// testCase tests one behaviour.
type testCase[D any] struct {
	name      string
	run       func(b *fixture[D])
	waits     bool // time must pass
	exclusive bool // every decision is made in Exclude
}

// Run runs every test case with a new store. If the store is an Excluder,
// the cases of leases run a second time with every decision made in Exclude, except
// the case of 128 acquirers, which would wait for each other for longer than an
// acquisition may take.
//
// In real time the cases that wait run all at once, in parallel with the others. They
// take about one and a half TTLs.
func Run[D any](t *testing.T, s Suite[D]) {
	t.Helper()
	if s.Close == nil {
		s.Close = func(*D) {}
	}

	var waiting sync.WaitGroup
	defer waiting.Wait()
	for _, c := range s.cases(t) {
		run := func() { t.Run(c.name, func(t *testing.T) { s.one(t, c) }) }
		if c.waits && !s.Bubble {
			waiting.Go(run) // not t.Parallel, which runs only as many as there are processors
		} else {
			run()
		}
	}
}

// cases returns the test cases that apply to the store.
func (s Suite[D]) cases(t *testing.T) (all []testCase[D]) {
	t.Helper()
	excluder := false
	s.in(t, func(t *testing.T) {
		store := s.New(t)
		_, _ = store.Load(t.Context(), key, lease.OnlyLease) // a server's first request may be slow, and fail for that
		_, excluder = store.(lease.Excluder[D])
	})

	all = append(storeCases[D](), leaseCases[D]()...)
	all = append(all, testCase[D]{
		name: "Lease/of 128 at once one acquires, and the others find it held",
		run:  func(b *fixture[D]) { acquireAtOnce(b, 128) },
	})
	if excluder {
		for _, c := range leaseCases[D]() {
			c.name, c.exclusive = c.name+", in Exclude", true
			all = append(all, c)
		}
	}
	return all
}

func (s Suite[D]) one(t *testing.T, c testCase[D]) {
	t.Helper()
	s.in(t, func(t *testing.T) {
		b := &fixture[D]{T: t, Suite: s, store: s.New(t)}
		b.leased = b.store
		if c.exclusive {
			b.leased = exclusive[D]{b.store.(lease.Excluder[D])}
		}
		c.run(b)
	})
}

// exclusive is a store whose every Swap is a conflict, so that lease.Edit soon decides in Exclude.
type exclusive[D any] struct{ lease.Excluder[D] }

// Swap implements lease.Store.
func (exclusive[D]) Swap(context.Context, string, lease.Cell[D], D) (lease.Cell[D], error) {
	return lease.Cell[D]{}, lease.ErrUnwritten
}

// in runs f in a bubble if the suite asks for one.
func (s Suite[D]) in(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if s.Bubble {
		synctest.Test(t, f)
		return
	}
	f(t)
}
