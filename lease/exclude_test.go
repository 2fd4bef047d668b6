package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// exclusive is a line to a store that can keep the others out.
func (w *world) exclusive(plan leasetest.Plan) *leasetest.FaultyExcluder[job] {
	return leasetest.NewFaultyExcluder(excluder{w.memory}, plan)
}

// excluder loads, decides and swaps a Memory that nobody else writes to.
type excluder struct{ *lease.Memory[job] }

func (x excluder) Exclude(ctx context.Context, key string, decide func(lease.Cell[job]) (job, error)) (lease.Cell[job], error) {
	c, err := x.Load(ctx, key)
	if err != nil {
		return c, err
	}
	next, err := decide(c)
	if err != nil {
		return c, err
	}
	return x.Swap(ctx, key, c, next)
}

// wantWrites checks how often the record was written since the world began.
func (w *world) wantWrites(want int64) {
	w.Helper()
	c, err := w.memory.Load(w.Context(), "a")
	if rev, _ := c.Rev.(int64); err != nil || rev-1 != want {
		w.Errorf("%d writes, %v; want %d", rev-1, err, want)
	}
}

func TestAfterTwoConflictsTheOthersAreKeptOut(t *testing.T) {
	for name, c := range map[string]struct {
		exclude leasetest.Fault
		tries   int
	}{
		"":                      {leasetest.None, 1},
		", whose reply is lost": {leasetest.DropAfter, 2},
		", which is dropped":    {leasetest.DropBefore, 2},
		", in conflict":         {leasetest.Conflict, 2},
	} {
		t.Run("Exclude"+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, lease.Policy{})
				x := w.exclusive(leasetest.Any(leasetest.Every(leasetest.Swap, leasetest.Conflict), leasetest.On(leasetest.Exclude, c.exclude)))
				l := w.near(x, lease.Policy{})
				h, _, err := l.Acquire(t.Context(), "a", "w/1", note("set"))
				if err != nil {
					t.Fatal(err)
				}
				w.wantRecord(job{lease.Lease{Owner: "w/1", Token: 1, Attempts: 1}, "set"})
				w.wantWrites(1)
				if loads, swaps, excludes := x.Calls(leasetest.Load), x.Calls(leasetest.Swap), x.Calls(leasetest.Exclude); loads != 2 || swaps != 2 || excludes != c.tries {
					t.Errorf("%d loads, %d swaps, %d excludes; want 2, 2, %d", loads, swaps, excludes, c.tries)
				}
				if err := h.Finish(t.Context(), nil); err != nil {
					t.Errorf("finish: %v", err)
				}
				w.wantRecord(job{lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"}, "set"})
			})
		})
	}
}

func TestADecisionsErrorInsideExcludeComesBackUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, lease.Policy{})
		w.rewrite(note("read"))
		defer w.wantWrites(1)
		x := w.exclusive(leasetest.Every(leasetest.Swap, leasetest.Conflict))
		want := &lease.HeldError{Owner: "w/2"}
		c, err := lease.Edit(t.Context(), x, "a", nil, func(c lease.Cell[job]) (job, error) {
			if x.Calls(leasetest.Exclude) > 0 {
				return c.Doc, want
			}
			return c.Doc, nil
		}, func(lease.Cell[job]) bool { return false })
		if err != error(want) || c.Doc.Note != "read" { //nolint:errorlint // unchanged means not even wrapped
			t.Errorf("%+v, %v", c, err)
		}
	})
}

// An Exclude that was refused is followed by a plain read, which tells whether
// it has landed, and by a Swap, which tells whether it is refused indeed.
func TestARefusedExcludeIsResolved(t *testing.T) {
	for fault, want := range map[leasetest.Fault]error{leasetest.Refuse: lease.ErrRefused, leasetest.RefuseAfter: nil} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, lease.Policy{})
			x := w.exclusive(leasetest.Any(leasetest.On(leasetest.Swap, leasetest.Conflict, leasetest.Conflict, leasetest.Refuse), leasetest.On(leasetest.Exclude, fault)))
			_, _, err := w.near(x, lease.Policy{}).Acquire(t.Context(), "a", "w/1", nil)
			if !errors.Is(err, want) {
				t.Errorf("%s: err = %v; want %v", fault, err, want)
			}
			if got := w.record().Lease.Token; (got == 1) != (want == nil) || x.Calls(leasetest.Exclude) != 1 {
				t.Errorf("%s: token %d after %d excludes", fault, got, x.Calls(leasetest.Exclude))
			}
		})
	}
}

// A Faulty around an Excluder is no Excluder unless it was made as one.
func TestOnlyAFaultyExcluderExcludes(t *testing.T) {
	w := newWorld(t, lease.Policy{})
	var plain lease.Store[job] = leasetest.NewFaulty[job](excluder{w.memory}, nil)
	if _, ok := plain.(lease.Excluder[job]); ok {
		t.Error("a Faulty is an Excluder")
	}
}

// Exclusive implements lease.Excluder.
func (excluder) Exclusive() bool { return false }
