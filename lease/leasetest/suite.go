// Package leasetest is the one place where the behaviour of a lease.Store is
// tested: Run puts a store through everything that package lease asks of it,
// and Faulty makes a good store fail in the ways that networks do. For tests
// only.
package leasetest

import (
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
)

// Suite describes a store of records D to Run. Every function gets the
// testing.TB of the case it works for and fails that.
type Suite[D any] struct {
	// New is an empty store. What it opens it closes with t.Cleanup.
	New func(t testing.TB) lease.Store[D]
	// Create makes an unfinished record that was never leased, as another
	// program would.
	Create func(t testing.TB, s lease.Store[D], key string)
	// Delete removes a record, as another program would.
	Delete func(t testing.TB, s lease.Store[D], key string)
	// Touch changes a field that is none of ours, as another program would, so
	// that the record's revision moves; nil if records have no such field.
	Touch func(t testing.TB, s lease.Store[D], key string)
	// Touched is how many Touches the record shows; nil with Touch.
	Touched func(t testing.TB, s lease.Store[D], key string) int

	Of      func(*D) *lease.Lease   // the lease inside a record
	Note    func(D) string          // a field of the record's own, empty in a new record
	SetNote func(d *D, note string) // and how it is set, by assignment, not through a pointer inside d
	// Close sets what the domain needs so that Lease.Finished is stored, such
	// as a status; nil if nothing does.
	Close func(*D)

	TTL    time.Duration // of the leases: minutes in a bubble, a few seconds where time is real
	Bubble bool          // run each case in a testing/synctest bubble
}

// testCase is one behaviour.
type testCase[D any] struct {
	name  string
	run   func(b *bench[D])
	waits bool // time must pass: in real time run beside the others
}

// Run runs every case against a store of its own. Where the store is an
// Excluder, the cases of leases run a second time, every decision then being
// made inside Exclude. A store that is Exclusive is spared the crowds, which wait
// for each other there for longer than an acquisition may take. In real time Run takes about two TTLs: the cases that
// wait do so at once.
func Run[D any](t *testing.T, s Suite[D]) {
	t.Helper()
	if s.Close == nil {
		s.Close = func(*D) {}
	}
	group := func(name string, cases []testCase[D], inside bool) {
		t.Run(name, func(t *testing.T) {
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) { s.one(t, c, inside) })
			}
		})
	}
	leases := append(acquisitions(s), runs(s)...)
	group("Store", swaps(s), false)
	excluder, exclusive := s.excludes(t)
	if excluder {
		group("Exclude", exclusions[D](), false)
	}
	if exclusive {
		group("Lease", leases, false)
		return
	}
	group("Lease", append(leases, crowds[D]()...), false)
	if excluder {
		group("LeaseInsideExclude", leases, true)
	}
}

// excludes reports whether the store is an Excluder, and one that is Exclusive.
func (s Suite[D]) excludes(t *testing.T) (excluder, exclusive bool) {
	t.Helper()
	s.in(t, func(t *testing.T) {
		var x lease.Excluder[D]
		x, excluder = s.New(t).(lease.Excluder[D])
		exclusive = excluder && x.Exclusive()
	})
	return excluder, exclusive
}

func (s Suite[D]) one(t *testing.T, c testCase[D], inside bool) {
	t.Helper()
	if c.waits && !s.Bubble {
		t.Parallel()
	}
	s.in(t, func(t *testing.T) {
		b := &bench[D]{T: t, Suite: s, store: s.New(t)}
		b.leased = b.store
		if inside {
			b.leased = exclusive(b.store)
		}
		c.run(b)
	})
}

// in runs f in a bubble, if there is to be one.
func (s Suite[D]) in(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if s.Bubble {
		synctest.Test(t, f)
		return
	}
	f(t)
}
