package leasetest_test

import (
	"testing"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// job is a record with a field of its own and one of other programs.
type job struct {
	Lease   lease.Lease
	Note    string
	Touches int
}

// records is a store with the operations of other programs. Here it is a lease.Memory.
type records interface {
	lease.Store[job]
	Put(key string, j job)
	Delete(key string)
}

// suite describes one's own store to Run.
func suite(open func() lease.Store[job]) leasetest.Suite[job] {
	return leasetest.Suite[job]{
		New:    func(testing.TB) lease.Store[job] { return open() },
		Create: func(_ testing.TB, s lease.Store[job], key string) { s.(records).Put(key, job{}) },
		Delete: func(_ testing.TB, s lease.Store[job], key string) { s.(records).Delete(key) },
		Touch: func(t testing.TB, s lease.Store[job], key string) {
			for {
				c, err := s.Load(t.Context(), key, lease.OnlyLease)
				if err != nil {
					t.Fatal(err)
				}
				next := c.Doc
				next.Touches++
				if _, err = s.Swap(t.Context(), key, c, next); err == nil {
					return
				}
			}
		},
		Touched: func(t testing.TB, s lease.Store[job], key string) int {
			c, err := s.Load(t.Context(), key, lease.OnlyLease)
			if err != nil {
				t.Fatal(err)
			}
			return c.Doc.Touches
		},
		Lease:   func(j *job) *lease.Lease { return &j.Lease },
		Note:    func(j job) string { return j.Note },
		SetNote: func(j *job, note string) { j.Note = note },
		TTL:     lease.DefaultTTL,
		Bubble:  true,
	}
}

// The test of a store: a lease.Memory in virtual time.
func ExampleRun() {
	var t *testing.T // the parameter of the test
	leasetest.Run(t, suite(func() lease.Store[job] { return &lease.Memory[job]{} }))
}
