package document

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// operation is one call, and the outcome that it has under each fault.
type operation struct {
	before  func(t *testing.T, l *Locks) // without faults
	do      func(ctx context.Context, l *Locks, s *store) (done bool, err error)
	want    func(before, after Lock) bool // the records of room r; zero: none
	commits int
}

func vacant(*testing.T, *Locks) {}

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

func acquires(ctx context.Context, l *Locks, _ *store) (bool, error) {
	s, err := l.Acquire(ctx, "r", "s/1")
	return s.Mine, err
}

func taken(before, after Lock) bool {
	fresh := after.Token > before.Token && after.Holder != before.Holder
	return fresh && after.Owner == "s/1" && after.ExpiresAt.After(before.ExpiresAt)
}

func extended(before, after Lock) bool {
	later := after.ExpiresAt.After(before.ExpiresAt)
	after.HeartbeatAt, after.ExpiresAt = before.HeartbeatAt, before.ExpiresAt
	return later && after == before
}

func gone(_, after Lock) bool { return after == Lock{} }

var operations = map[string]operation{
	"acquire":                  {vacant, acquires, taken, 2},
	"acquire what has expired": {lapsed, acquires, taken, 1},
	"acquire again":            {held, acquires, extended, 1},
	"extend": {held, func(ctx context.Context, l *Locks, _ *store) (bool, error) {
		s, err := l.Renew(ctx, "r", "s/1")
		return s.Mine, err
	}, extended, 1},
	"release": {held, func(ctx context.Context, l *Locks, _ *store) (bool, error) {
		return l.Release(ctx, "r", "s/1")
	}, gone, 1},
	"break": {held, func(ctx context.Context, l *Locks, _ *store) (bool, error) {
		return l.Unlock(ctx, "r")
	}, func(before, after Lock) bool {
		return after.Owner == "" && after.Unlocked && after.Token == before.Token
	}, 1},
	"sweep": {lapsed, func(ctx context.Context, l *Locks, s *store) (bool, error) {
		n, err := l.Sweep(ctx, s)
		return n == 1, err
	}, gone, 1},
}

// Whichever call to the store fails, applied or not, the operation has one outcome
// and is committed once.
func TestLocks_Faults(t *testing.T) {
	faults := 0
	for name, op := range operations {
		for _, on := range []leasetest.Op{leasetest.Load, leasetest.Swap} {
			for nth := range 2 {
				for _, f := range []leasetest.Fault{
					leasetest.RequestLost, leasetest.ReplyLost, leasetest.SlowFailure, leasetest.SlowRequest,
					leasetest.SlowReply, leasetest.SentTwice, leasetest.Conflict,
				} {
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
	before := s.records["r"].lock
	commits := 0
	s.seen = func(string, cell) { commits++ }
	faulty.SetPlan(leasetest.On(kind, append(make([]leasetest.Fault, nth), f)...))
	done, err := op.do(t.Context(), l, s)
	must.OK(t, err)
	if !done || commits != op.commits {
		t.Errorf("done: %v; %d commits, want %d", done, commits, op.commits)
	}
	if after := s.records["r"].lock; !op.want(before, after) {
		t.Errorf("%+v became %+v", before, after)
	}
	return faulty.Faults()[f]
}

// delayed is a store whose writes take a second.
type delayed struct{ *store }

func (d delayed) Swap(ctx context.Context, room string, prev cell, next Lock) (cell, error) {
	time.Sleep(time.Second)
	return d.store.Swap(ctx, room, prev, next)
}

func TestSweep_Parallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		s.expire(257)
		began := time.Now()
		s.wantSwept(t, on(t, delayed{s}), s, 257, 0)
		if took := time.Since(began); took != 17*time.Second {
			t.Errorf("it took %v, want 17 s: 16 rooms at once", took)
		}
	})
}

// A sweep ends before the next one is due.
func TestSweep_Limit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		s.expire(sweepBatch)
		began := time.Now()
		swept, err := on(t, delayed{s}).Sweep(t.Context(), s)
		if err == nil || swept < 700 {
			t.Errorf("swept %d, %v; want about 800", swept, err)
		}
		if took := time.Since(began); took > sweepTimeout+timeout { // the last one tries again, with pauses
			t.Errorf("it took %v, want about 50 s", took)
		}
	})
}

// A sweep of many rooms gives up at the first, with a short error.
func TestSweep_Unavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		s.expire(2*sweepBatch + 1)
		began := time.Now()
		l := on(t, leasetest.NewFaulty(s, leasetest.Always(leasetest.Unavailable)))
		swept, err := l.Sweep(t.Context(), s)
		if took := time.Since(began); swept != 0 || took > timeout {
			t.Errorf("swept %d in %v", swept, took)
		}
		if !errors.Is(err, lease.ErrUnavailable) || len(err.Error()) > 500 {
			t.Errorf("%v", err)
		}
	})
}
