package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// exclusive returns a faulty Excluder.
func (w *fixture) exclusive(plan leasetest.Plan) *leasetest.FaultyExcluder[job] {
	return leasetest.NewFaultyExcluder(excluder{w.memory}, plan)
}

// excluder is a Memory with Exclude; no other program writes to it.
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

// wantWrites checks how often the record was written.
func (w *fixture) wantWrites(want int64) {
	w.Helper()
	c, err := w.memory.Load(w.Context(), "a")
	if rev, _ := c.Rev.(int64); err != nil || rev-1 != want {
		w.Errorf("%d writes, %v; want %d", rev-1, err, want)
	}
}

func TestAfterTwoConflictsEditUsesExclude(t *testing.T) {
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
				w := newFixture(t, lease.Policy{})
				x := w.exclusive(leasetest.Any(leasetest.Every(leasetest.Swap, leasetest.Conflict), leasetest.On(leasetest.Exclude, c.exclude)))
				l := w.lessorOn(x, lease.Policy{})
				h, _, err := l.Acquire(t.Context(), "a", "w/1", note("set"))
				fatal(t, err)
				w.wantRecord(job{lease.Lease{Owner: "w/1", Token: 1, Attempts: 1}, "set"})
				w.wantWrites(1)
				if loads, swaps, excludes := x.Calls(leasetest.Load), x.Calls(leasetest.Swap), x.Calls(leasetest.Exclude); loads != 2 || swaps != 2 || excludes != c.tries {
					t.Errorf("%d loads, %d swaps, %d excludes; want 2, 2, %d", loads, swaps, excludes, c.tries)
				}
				check(t, h.Finish(t.Context(), nil))
				w.wantRecord(job{lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"}, "set"})
			})
		})
	}
}

// After a refused Exclude, a read shows whether it has landed, and one Swap whether the
// write is refused too. A second refusal is final.
func TestARefusedExcludeIsResolved(t *testing.T) {
	const refuse, conflict = leasetest.Refuse, leasetest.Conflict
	for name, tc := range map[string]struct {
		exclude  []leasetest.Fault
		swap     leasetest.Fault // the third, after two conflicts
		want     error
		excludes int
		swaps    int
	}{
		"it had landed":                  {[]leasetest.Fault{leasetest.RefuseAfter}, leasetest.None, nil, 1, 2},
		"the Swap is refused too":        {[]leasetest.Fault{refuse}, refuse, lease.ErrRefused, 1, 3},
		"the Swap is not refused":        {[]leasetest.Fault{refuse}, leasetest.None, nil, 1, 3},
		"the Swap meets a conflict":      {[]leasetest.Fault{refuse}, conflict, nil, 2, 3},
		"a conflict and another refusal": {[]leasetest.Fault{refuse, refuse}, conflict, lease.ErrRefused, 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, lease.Policy{})
				x := w.exclusive(leasetest.Any(leasetest.On(leasetest.Swap, conflict, conflict, tc.swap), leasetest.On(leasetest.Exclude, tc.exclude...)))
				_, _, err := w.lessorOn(x, lease.Policy{}).Acquire(t.Context(), "a", "w/1", nil)
				if !errors.Is(err, tc.want) {
					t.Errorf("err = %v; want %v", err, tc.want)
				}
				if got := w.record().Lease.Token; (got == 1) != (tc.want == nil) || x.Calls(leasetest.Exclude) != tc.excludes || x.Calls(leasetest.Swap) != tc.swaps {
					t.Errorf("token %d after %d excludes and %d swaps; want %d, %d", got, x.Calls(leasetest.Exclude), x.Calls(leasetest.Swap), tc.excludes, tc.swaps)
				}
			})
		})
	}
}

// Exclusive implements lease.Excluder.
func (excluder) Exclusive() bool { return false }
