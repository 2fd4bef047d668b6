//go:build unix

package leasetest_test

import (
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

func fileSuite() leasetest.Suite[job] {
	s := memorySuite(nil)
	s.New = func(t testing.TB) lease.Store[job] {
		f, err := lease.NewFile[job](t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	s.Create = func(t testing.TB, s lease.Store[job], key string) {
		c, err := s.Load(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = s.Swap(t.Context(), key, c, job{}); err != nil {
			t.Fatal(err)
		}
	}
	s.Delete = func(t testing.TB, s lease.Store[job], key string) {
		if err := s.(*lease.File[job]).Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestFilePassesTheSuite(t *testing.T) { leasetest.Run(t, fileSuite()) }

func TestFilePassesTheSuiteInRealTime(t *testing.T) {
	s := fileSuite()
	s.TTL, s.Bubble = 2*time.Second, false
	leasetest.Run(t, s)
}
