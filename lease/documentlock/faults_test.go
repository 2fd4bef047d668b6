package documentlock

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// operation is one call, and what it comes to whatever goes wrong on the way.
type operation struct {
	before func(t *testing.T, l *Locks) // on a good connection
	do     func(t *testing.T, l *Locks, s *store) error
	want   func(t *testing.T, before, after map[string]record)
	more   int // commits than one
}

func held(t *testing.T, l *Locks) {
	t.Helper()
	acquire(t, l, "r", "s/1")
	time.Sleep(10 * time.Second)
}

func lapsed(t *testing.T, l *Locks) {
	t.Helper()
	acquire(t, l, "r", "s/0")
	time.Sleep(31 * time.Second)
}

// mineNow wants s/1 to hold r, under one token more or, extended, the same.
func mineNow(extended bool) func(t *testing.T, before, after map[string]record) {
	return func(t *testing.T, before, after map[string]record) {
		t.Helper()
		was, is := before["r"].lock, after["r"].lock
		if is.Owner != "s/1" || !is.ExpiresAt.After(was.ExpiresAt) || is.Holder == "" {
			t.Errorf("%+v became %+v", was, is)
		}
		if extended != (is.Token == was.Token && is.Holder == was.Holder) || is.Token < was.Token {
			t.Errorf("%+v became %+v; extended? %v", was, is, extended)
		}
	}
}

func gone(t *testing.T, _, after map[string]record) {
	t.Helper()
	if len(after) != 0 {
		t.Errorf("left: %+v", after)
	}
}

var operations = map[string]operation{
	"acquire": {func(*testing.T, *Locks) {}, func(t *testing.T, l *Locks, _ *store) error {
		t.Helper()
		s, err := l.Acquire(t.Context(), "r", "s/1")
		if err == nil && !s.Mine {
			t.Errorf("acquired %+v", s)
		}
		return err
	}, mineNow(false), 1},
	"acquire what has expired": {lapsed, func(t *testing.T, l *Locks, _ *store) error {
		t.Helper()
		_, err := l.Acquire(t.Context(), "r", "s/1")
		return err
	}, mineNow(false), 0},
	"acquire again": {held, func(t *testing.T, l *Locks, _ *store) error {
		t.Helper()
		_, err := l.Acquire(t.Context(), "r", "s/1")
		return err
	}, mineNow(true), 0},
	"extend": {held, func(t *testing.T, l *Locks, _ *store) error {
		t.Helper()
		_, err := l.Extend(t.Context(), "r", "s/1")
		return err
	}, mineNow(true), 0},
	"release": {held, func(t *testing.T, l *Locks, _ *store) error {
		t.Helper()
		freed, err := l.Release(t.Context(), "r", "s/1")
		if err == nil && !freed {
			t.Error("not released by this call")
		}
		return err
	}, gone, 0},
	"break": {held, func(t *testing.T, l *Locks, _ *store) error {
		t.Helper()
		broken, err := l.Break(t.Context(), "r")
		if err == nil && !broken {
			t.Error("not unlocked by this call")
		}
		return err
	}, func(t *testing.T, before, after map[string]record) {
		t.Helper()
		if was, is := before["r"].lock, after["r"].lock; is.Owner != "" || !is.Unlocked || is.Token != was.Token {
			t.Errorf("%+v became %+v", was, is)
		}
	}, 0},
	"sweep": {lapsed, func(t *testing.T, l *Locks, s *store) error {
		t.Helper()
		n, err := l.Sweep(t.Context(), s)
		if err == nil && n != 1 {
			t.Errorf("swept %d", n)
		}
		return err
	}, gone, 0},
}

// Whatever goes wrong with a call to the store, carried out or not, the
// operation comes to its one outcome, and is committed once.
func TestACallOfUnknownOutcomeChangesNoOutcome(t *testing.T) {
	met := 0
	for name, op := range operations {
		for _, on := range []leasetest.Op{leasetest.Load, leasetest.Swap} {
			for nth := range 2 {
				for _, f := range []leasetest.Fault{leasetest.DropBefore, leasetest.DropAfter, leasetest.Deaf, leasetest.SlowRequest, leasetest.SlowReply, leasetest.Duplicate, leasetest.Conflict} {
					t.Run(fmt.Sprintf("%s/%s %d/%s", name, on, nth+1, f), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { met += op.meets(t, on, nth, f) })
					})
				}
			}
		}
	}
	if met < 90 {
		t.Errorf("%d faults, want many", met)
	}
}

// meets lets the nth call of the operation go wrong, and counts the faults.
func (op operation) meets(t *testing.T, on leasetest.Op, nth int, f leasetest.Fault) int {
	t.Helper()
	s := &store{}
	faulty := leasetest.NewFaulty(s, nil)
	l, err := New(faulty, 0)
	if err != nil {
		t.Fatal(err)
	}
	op.before(t, l)
	before := s.copied()
	commits := 0
	s.seen = func(string, lease.Cell[Lock]) { commits++ }
	faults := make([]leasetest.Fault, nth, nth+1)
	faulty.SetPlan(leasetest.On(on, append(faults, f)...))
	if err := op.do(t, l, s); err != nil {
		t.Error(err)
	}
	op.want(t, before, s.copied())
	if want := 1 + op.more; commits != want {
		t.Errorf("%d commits, want %d", commits, want)
	}
	return faulty.Faults()[f]
}

// What a store will not tell within 8 s is unavailable, and not a second more is
// spent on it.
func TestADarkStoreIsUnavailableAfter8s(t *testing.T) {
	for name, op := range operations {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{}
				faulty := leasetest.NewFaulty(s, nil)
				l := on(t, faulty)
				op.before(t, l)
				faulty.SetPlan(leasetest.Always(leasetest.Dark))
				began := time.Now()
				err := op.do(t, l, s)
				if took := time.Since(began); !errors.Is(err, lease.ErrUnavailable) || took != 8*time.Second {
					t.Errorf("%v after %v, want ErrUnavailable after 8 s", err, took)
				}
			})
		})
	}
}
