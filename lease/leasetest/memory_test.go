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

func memorySuite(wrap func(*lease.Memory[job]) lease.Store[job]) leasetest.Suite[job] {
	memory := func(s lease.Store[job]) *lease.Memory[job] {
		if x, ok := s.(*excluder); ok {
			return x.Memory
		}
		return s.(*lease.Memory[job])
	}
	return leasetest.Suite[job]{
		New:    func(testing.TB) lease.Store[job] { return wrap(&lease.Memory[job]{}) },
		Create: func(_ testing.TB, s lease.Store[job], key string) { memory(s).Put(key, job{}) },
		Delete: func(_ testing.TB, s lease.Store[job], key string) { memory(s).Delete(key) },
		Touch: func(t testing.TB, s lease.Store[job], key string) {
			for {
				c, err := s.Load(t.Context(), key)
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
			c, err := s.Load(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			return c.Doc.Touches
		},
		Of:      func(j *job) *lease.Lease { return &j.Lease },
		Note:    func(j job) string { return j.Note },
		SetNote: func(j *job, note string) { j.Note = note },
		TTL:     lease.DefaultTTL,
		Bubble:  true,
	}
}

func TestMemoryPassesTheSuite(t *testing.T) {
	leasetest.Run(t, memorySuite(func(m *lease.Memory[job]) lease.Store[job] { return m }))
}

func TestAnExcluderPassesTheSuite(t *testing.T) {
	leasetest.Run(t, memorySuite(func(m *lease.Memory[job]) lease.Store[job] { return newExcluder(m) }))
}
