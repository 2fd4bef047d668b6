package document

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// operation is one call, and the outcome that it has under each fault.
type operation struct {
	before  func(t *testing.T, l *Locks) // without faults
	do      func(t *testing.T, l *Locks, s *store) error
	want    func(t *testing.T, before, after map[string]record)
	commits int
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

// acquires is an operation that must end with s/1 holding r.
func acquires(t *testing.T, l *Locks, _ *store) error {
	t.Helper()
	s, err := l.Acquire(t.Context(), "r", "s/1")
	if err == nil && !s.Mine {
		t.Errorf("acquired %+v", s)
	}
	return err
}

var operations = map[string]operation{
	"acquire":                  {func(*testing.T, *Locks) {}, acquires, mineNow(false), 2},
	"acquire what has expired": {lapsed, acquires, mineNow(false), 1},
	"acquire again":            {held, acquires, mineNow(true), 1},
	"extend": {held, func(t *testing.T, l *Locks, _ *store) error {
		t.Helper()
		_, err := l.Extend(t.Context(), "r", "s/1")
		return err
	}, mineNow(true), 1},
	"release": {held, func(t *testing.T, l *Locks, _ *store) error {
		t.Helper()
		freed, err := l.Release(t.Context(), "r", "s/1")
		if err == nil && !freed {
			t.Error("not released by this call")
		}
		return err
	}, gone, 1},
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
	}, 1},
	"sweep": {lapsed, func(t *testing.T, l *Locks, s *store) error {
		t.Helper()
		n, err := l.Sweep(t.Context(), s)
		if err == nil && n != 1 {
			t.Errorf("swept %d", n)
		}
		return err
	}, gone, 1},
}

// Whichever call to the store fails, applied or not, the operation has one outcome
// and is committed once.
func TestAFailedCallDoesNotChangeTheOutcome(t *testing.T) {
	faults := 0
	for name, op := range operations {
		for _, on := range []leasetest.Op{leasetest.Load, leasetest.Swap} {
			for nth := range 2 {
				for _, f := range []leasetest.Fault{leasetest.DropBefore, leasetest.DropAfter, leasetest.SlowFailure, leasetest.SlowRequest, leasetest.SlowReply, leasetest.Duplicate, leasetest.Conflict} {
					t.Run(fmt.Sprintf("%s/%s %d/%s", name, on, nth+1, f), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { faults += op.run(t, on, nth, f) })
					})
				}
			}
		}
	}
	if faults < 90 {
		t.Errorf("%d faults, want many", faults)
	}
}

// run makes the nth call of the operation fail, and counts the faults.
func (op operation) run(t *testing.T, kind leasetest.Op, nth int, f leasetest.Fault) int {
	t.Helper()
	s := &store{}
	faulty := leasetest.NewFaulty(s, nil)
	l := on(t, faulty)
	op.before(t, l)
	before := maps.Clone(s.records)
	commits := 0
	s.seen = func(string, cell) { commits++ }
	faulty.SetPlan(leasetest.On(kind, append(make([]leasetest.Fault, nth), f)...))
	if err := op.do(t, l, s); err != nil {
		t.Error(err)
	}
	op.want(t, before, s.records)
	if commits != op.commits {
		t.Errorf("%d commits, want %d", commits, op.commits)
	}
	return faulty.Faults()[f]
}

// A sweep of many rooms gives up at the first, with a short error.
func TestASweepOfAnUnavailableStoreGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		for i := range 2*sweepBatch + 1 {
			s.put(fmt.Sprint("r", i), Lock{Lease: lease.Lease{Owner: "s/1", Token: 1, ExpiresAt: time.Now()}})
		}
		time.Sleep(time.Minute)
		began := time.Now()
		swept, err := on(t, leasetest.NewFaulty(s, leasetest.Always(leasetest.Unavailable))).Sweep(t.Context(), s)
		if took := time.Since(began); swept != 0 || !errors.Is(err, lease.ErrUnavailable) || took > timeout || len(err.Error()) > 500 {
			t.Errorf("swept %d in %v: %v", swept, took, err)
		}
	})
}
