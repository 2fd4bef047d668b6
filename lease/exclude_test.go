package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// excluder is an Excluder that no other program writes to. Its Load and Swap fail by the plan of
// its Faulty, and its Exclude as the Swap of inside.
type excluder struct {
	*leasetest.Faulty[job]
	inside    *leasetest.Faulty[job]
	exclusive bool
}

func (x excluder) Exclude(ctx context.Context, key string, decide func(lease.Cell[job]) (job, error)) (lease.Cell[job], error) {
	c, err := x.inside.Load(ctx, key)
	if err != nil {
		return c, err
	}
	next, err := decide(c)
	if err != nil {
		return c, err
	}
	return x.inside.Swap(ctx, key, c, next)
}

// Exclusive implements lease.Excluder.
func (x excluder) Exclusive() bool { return x.exclusive }

// newExcluder returns an excluder whose calls of Swap and of Exclude have these faults.
func (w *fixture) newExcluder(swaps, excludes []leasetest.Fault) excluder {
	return excluder{
		Faulty: leasetest.NewFaulty(w.memory, leasetest.On(leasetest.Swap, swaps...)),
		inside: leasetest.NewFaulty(w.memory, leasetest.On(leasetest.Swap, excludes...)),
	}
}

// wantWrites checks how often the record was written.
func (w *fixture) wantWrites(want int64) {
	w.Helper()
	c, err := w.memory.Load(w.Context(), "a")
	if rev, _ := c.Rev.(int64); err != nil || rev-1 != want {
		w.Errorf("%d writes, %v; want %d", rev-1, err, want)
	}
}

// After two conflicts Edit uses Exclude. If Exclude is refused, a read shows whether it has landed,
// and one Swap whether the write is refused too.
func TestAfterTwoConflictsEditUsesExclude(t *testing.T) {
	const conflict, refuse = leasetest.Conflict, leasetest.Refuse
	for name, tc := range map[string]struct {
		exclude []leasetest.Fault
		swap    leasetest.Fault // the third, after two conflicts
		want    error
		swaps   int
		tries   int // of Exclude
	}{
		"it succeeds":                                    {nil, leasetest.None, nil, 2, 1},
		"its reply is lost":                              {[]leasetest.Fault{leasetest.DropAfter}, leasetest.None, nil, 2, 2},
		"it is dropped":                                  {[]leasetest.Fault{leasetest.DropBefore}, leasetest.None, nil, 2, 2},
		"it meets a conflict":                            {[]leasetest.Fault{conflict}, leasetest.None, nil, 2, 2},
		"it is refused although it has landed":           {[]leasetest.Fault{leasetest.RefuseAfter}, leasetest.None, nil, 2, 1},
		"it is refused, and the Swap too":                {[]leasetest.Fault{refuse}, refuse, lease.ErrRefused, 3, 1},
		"it is refused, but not the Swap":                {[]leasetest.Fault{refuse}, leasetest.None, nil, 3, 1},
		"it is refused, and the Swap meets a conflict":   {[]leasetest.Fault{refuse}, conflict, nil, 3, 2},
		"it is refused twice, the Swap meets a conflict": {[]leasetest.Fault{refuse, refuse}, conflict, nil, 4, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, lease.Policy{})
				x := w.newExcluder([]leasetest.Fault{conflict, conflict, tc.swap}, tc.exclude)
				h, _, err := w.lessorOn(x, lease.Policy{}).Acquire(t.Context(), "a", "w/1", note("set"))
				if !errors.Is(err, tc.want) {
					t.Errorf("err = %v; want %v", err, tc.want)
				}
				if swaps, tries := x.Calls(leasetest.Swap), x.inside.Calls(leasetest.Load); swaps != tc.swaps || tries != tc.tries {
					t.Errorf("%d swaps, %d excludes; want %d, %d", swaps, tries, tc.swaps, tc.tries)
				}
				if tc.want != nil {
					w.wantWrites(0)
					return
				}
				w.wantWrites(1)
				w.wantRecord(job{lease.Lease{Owner: "w/1", Token: 1, Attempts: 1}, "set"})
				check(t, h.Finish(t.Context(), nil))
				w.wantRecord(job{lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"}, "set"})
			})
		})
	}
}

func TestAnExclusiveStoreDecidesInExcludeFromTheStart(t *testing.T) {
	inBubble(t, func(w *fixture) {
		x := w.newExcluder(nil, nil)
		x.exclusive = true
		l := w.lessorOn(x, lease.Policy{})
		_, _, err := l.Acquire(w.Context(), "a", "w/1", nil)
		fatal(w, err)
		if _, _, err = l.Acquire(w.Context(), "a", "w/2", nil); !errors.As(err, new(*lease.HeldError)) || x.Calls(leasetest.Load) != 0 {
			w.Errorf("%v after %d loads; want it held, and none", err, x.Calls(leasetest.Load))
		}
	})
}
