package lease_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// A write of each kind has one outcome under each fault of its first call.
func TestAnUnknownOutcomeIsResolved(t *testing.T) {
	const (
		load = leasetest.Load
		swap = leasetest.Swap
	)
	faults := map[string]struct {
		first, load leasetest.Fault // of the first Swap, and of the Load that resolves it
		refused     bool
		swaps       int // of a write that resolves; one more where the first was not ours
	}{
		"the reply was lost after the commit":         {leasetest.DropAfter, leasetest.None, false, 1},
		"and the resolving read was lost too":         {leasetest.DropAfter, leasetest.DropAfter, false, 1},
		"it was lost before the commit":               {leasetest.DropBefore, leasetest.None, false, 2},
		"it was applied only after the next read":     {leasetest.Late, leasetest.Deliver, false, 2},
		"it was sent twice":                           {leasetest.Duplicate, leasetest.None, false, 1},
		"it got ErrConflict although nothing changed": {leasetest.Conflict, leasetest.None, false, 2},
		"it was refused":                              {leasetest.Refuse, leasetest.None, true, 1},
		"it was refused, and the read was lost":       {leasetest.Refuse, leasetest.DropBefore, true, 1},
		"it was refused although it had landed":       {leasetest.RefuseAfter, leasetest.None, false, 1},
		"it was slow and then applied":                {leasetest.SlowRequest, leasetest.None, false, 1},
		"it was dropped by a peer that never reads":   {leasetest.SlowFailure, leasetest.None, false, 2},
	}
	held := lease.Lease{Owner: "w/1", Token: 1, Attempts: 1}
	writes := map[string]struct {
		loads  int // before the first Swap
		before job
		write  func(w *fixture, h *lease.Hold[job]) error
		after  job
	}{
		"acquire": {1, job{}, func(w *fixture, _ *lease.Hold[job]) error {
			h, j, err := w.records.Acquire(w.Context(), "a", "w/1", lease.OnlyLease, w.noting("set"))
			if err == nil && (h.Grant() != held.Grant() || j.Note != "set") {
				w.Errorf("grant %+v, record %+v", h.Grant(), j)
			}
			return err
		}, job{held, "set"}},
		"renew":  {0, job{Lease: held}, func(w *fixture, h *lease.Hold[job]) error { return h.Renew(w.Context()) }, job{Lease: held}},
		"finish": {0, job{Lease: held}, func(w *fixture, h *lease.Hold[job]) error { return h.End(w.Context(), lease.Finishing(note("set"))) }, job{lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"}, "set"}},
		"release": {0, job{Lease: held}, func(w *fixture, h *lease.Hold[job]) error {
			return h.End(w.Context(), lease.Releasing(false, note("set")))
		}, job{lease.Lease{Token: 1, Attempts: 1}, "set"}},
		"refund": {0, job{Lease: held}, func(w *fixture, h *lease.Hold[job]) error {
			return h.End(w.Context(), lease.Releasing(true, note("set")))
		}, job{lease.Lease{Token: 1}, "set"}},
	}
	for verb, write := range writes {
		for what, f := range faults {
			t.Run(verb+": "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newFixture(t, lease.Policy{})
					var h *lease.Hold[job]
					if write.loads == 0 {
						h = w.acquire()
						time.Sleep(time.Minute)
					}
					loads := append(make([]leasetest.Fault, write.loads), f.load)
					w.faulty.SetPlan(leasetest.Any(leasetest.On(swap, f.first), leasetest.On(load, loads...)))
					err := write.write(w, h)
					if f.refused {
						wantErr(t, err, lease.ErrRefused)
						w.wantRecord(write.before)
					} else {
						check(t, err)
						w.wantRecord(write.after)
					}
					w.wantFaults(f.first, f.load)
					// A late heartbeat may have to be followed by a fresher one.
					if got := w.faulty.Calls(swap); got != f.swaps && (verb != "renew" || f.load != leasetest.Deliver || got != f.swaps+1) {
						t.Errorf("%d swaps; want %d", got, f.swaps)
					}
				})
			})
		}
	}
}

// wantFaults checks that the plan made these faults.
func (w *fixture) wantFaults(faults ...leasetest.Fault) {
	w.Helper()
	for _, f := range faults {
		if f != leasetest.None && w.faulty.Faults()[f] == 0 {
			w.Errorf("the fault %q did not happen", f)
		}
	}
}

// add is an Edit that counts in the note of the record.
type add struct {
	decisions int
	err       error // of the decision
	asked     bool  // whether it has landed: a note shows that
}

func (a *add) decide(c lease.Cell[job]) (job, error) {
	a.decisions++
	if a.err != nil {
		return c.Doc, a.err
	}
	c.Doc.Note += "+"
	return c.Doc, nil
}

func (a *add) landed(c lease.Cell[job]) bool {
	a.asked = true
	return c.Doc.Note == "+"
}

func (a *add) run(ctx context.Context, s lease.Store[job], from *lease.Cell[job]) (lease.Cell[job], error) {
	return lease.Edit(ctx, s, "a", lease.Write[job]{From: from, Decide: a.decide, Landed: a.landed})
}

func TestADecisionIsMadeAgainFromWhatOthersWrote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, lease.Policy{})
		stale, err := w.faulty.Load(t.Context(), "a", lease.OnlyLease)
		fatal(t, err)
		w.rewrite(note("theirs"))
		w.faulty.SetPlan(nil)
		a := &add{}
		c, err := a.run(t.Context(), w.faulty, &stale)
		if err != nil || c.Doc.Note != "theirs+" || a.decisions != 2 {
			t.Errorf("%+v after %d decisions, %v", c, a.decisions, err)
		}
		w.wantSame(c.Doc)
		w.wantCalls(1, 2)
	})
}

// unwritten is a store that knows that a conflict is another writer's.
type unwritten struct{ lease.Store[job] }

func (s unwritten) Swap(ctx context.Context, key string, prev lease.Cell[job], next job) (lease.Cell[job], error) {
	c, err := s.Store.Swap(ctx, key, prev, next)
	if errors.Is(err, lease.ErrConflict) {
		err = lease.ErrUnwritten
	}
	return c, err
}

// Another operator's write may equal this one, which the record cannot show.
func TestAnUnmarkedWriteIsMadeAgainUnlessItMayHaveArrived(t *testing.T) {
	for first, load := range map[leasetest.Fault]leasetest.Fault{leasetest.Conflict: leasetest.None, leasetest.DropAfter: leasetest.None, leasetest.Late: leasetest.Deliver} {
		inBubble(t, func(w *fixture) {
			w.faulty.SetPlan(leasetest.Any(leasetest.On(leasetest.Swap, first), leasetest.On(leasetest.Load, leasetest.None, load)))
			a := &add{}
			c, err := lease.Edit(w.Context(), unwritten{w.faulty}, "a", lease.Write[job]{Decide: a.decide, Landed: a.landed, Unmarked: true})
			if err != nil || c.Doc.Note != "+" || a.asked != (first != leasetest.Conflict) {
				w.Errorf("%s: %q, %v; asked %v", first, c.Doc.Note, err, a.asked)
			}
			w.wantFaults(first, load)
		})
	}
}

func TestADecisionsErrorEndsTheEditUnchangedWithItsCell(t *testing.T) {
	w := newFixture(t, lease.Policy{})
	w.rewrite(note("read"))
	want := &lease.HeldError{Owner: "w/2"}
	c, err := (&add{err: want}).run(t.Context(), w.faulty, nil)
	if err != error(want) || c.Doc.Note != "read" { //nolint:errorlint // unchanged means not even wrapped
		t.Errorf("%+v, %v", c, err)
	}
	w.wantCalls(1, 0)
}

// The pauses after conflicts are short; after failures they grow to two seconds.
func TestEditTriesUntilItsContextEndsAndReturnsTheCause(t *testing.T) {
	why := errors.New("the reason")
	for name, tc := range map[string]struct {
		fault       leasetest.Fault
		least, most int   // calls of Load in a minute
		last        error // of the last call
	}{
		"conflict":     {leasetest.Conflict, 240, 2000, lease.ErrConflict},
		"dropped":      {leasetest.DropBefore, 30, 200, leasetest.ErrDropped},
		"slow failure": {leasetest.SlowFailure, 15, 60, leasetest.ErrDropped},
		"unavailable":  {leasetest.Unavailable, 1, 1, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				w.faulty.SetPlan(leasetest.Always(tc.fault))
				ctx, cancel := context.WithTimeoutCause(w.Context(), time.Minute, why)
				defer cancel()
				_, err := (&add{}).run(ctx, w.faulty, nil)
				for _, want := range []error{lease.ErrUnavailable, why, tc.last} {
					wantErr(w, err, want)
				}
				if got := w.faulty.Calls(leasetest.Load); got < tc.least || got > tc.most {
					w.Errorf("%d calls; want %d to %d", got, tc.least, tc.most)
				}
				w.wantSame(job{})
			})
		})
	}
}

// final is a store whose calls all return one error.
type final struct{ err error }

func (f final) Load(context.Context, string, lease.Want) (lease.Cell[job], error) {
	return lease.Cell[job]{}, f.err
}
func (f final) Swap(context.Context, string, lease.Cell[job], job) (lease.Cell[job], error) {
	return lease.Cell[job]{}, f.err
}

func TestAPermanentErrorIsNotTriedAgain(t *testing.T) {
	for _, want := range []error{lease.ErrRefused, lease.ErrMalformed, lease.ErrInvalidKey} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for call, from := range map[string]*lease.Cell[job]{"load": nil, "swap": {}} {
				start := time.Now()
				_, err := (&add{}).run(ctx, final{fmt.Errorf("store: %w", want)}, from)
				wantErr(t, err, want)
				// A refused write may have landed: a read resolves that.
				if resolved := call == "swap" && errors.Is(want, lease.ErrRefused); errors.Is(err, lease.ErrUnavailable) || time.Since(start) > 0 && !resolved {
					t.Errorf("%s: %v after %v", call, err, time.Since(start))
				}
			}
		})
	}
}

// excluder is an Excluder that no other program writes to. Its Load and Swap fail by the plan of
// its Faulty, and its Exclude as the Swap of inside.
type excluder struct {
	*leasetest.Faulty[job]
	inside *leasetest.Faulty[job]
}

func (x excluder) Exclude(ctx context.Context, key string, want lease.Want, decide func(lease.Cell[job]) (job, error)) (lease.Cell[job], error) {
	c, err := x.inside.Load(ctx, key, want)
	if err != nil {
		return c, err
	}
	next, err := decide(c)
	if err != nil {
		return c, err
	}
	return x.inside.Swap(ctx, key, c, next)
}

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
	c, err := w.memory.Load(w.Context(), "a", lease.OnlyLease)
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
				h, _, err := w.recordsOn(x, lease.Policy{}).Acquire(t.Context(), "a", "w/1", lease.OnlyLease, w.noting("set"))
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
				check(t, h.End(t.Context(), lease.Finishing(unchanged)))
				w.wantRecord(job{lease.Lease{Token: 1, Attempts: 1, Finished: true, FinishedBy: "w/1"}, "set"})
			})
		})
	}
}

// overtaken is an excluder whose conflicts are another writer's. After the given number of writes another
// process acquires the lease.
type overtaken struct {
	excluder
	*fixture
	writes int
}

func (o overtaken) Swap(ctx context.Context, key string, prev lease.Cell[job], next job) (lease.Cell[job], error) {
	c, err := o.excluder.Swap(ctx, key, prev, next)
	if o.Calls(leasetest.Swap) == o.writes {
		o.rewrite(func(j *job) { j.Lease.Owner, j.Lease.Token = "them", 2 })
	}
	if errors.Is(err, lease.ErrConflict) {
		err = fmt.Errorf("%w: %w", lease.ErrUnwritten, err)
	}
	return c, err
}

// Only a try that may have written makes the loss unknown, and then it stays unknown.
func TestALossIsUnknownAfterATryThatMayHaveWritten(t *testing.T) {
	const conflict, dropped = leasetest.Conflict, leasetest.DropBefore
	for name, tc := range map[string]struct {
		swaps   []leasetest.Fault
		unknown bool
	}{
		"conflicts alone":                    {[]leasetest.Fault{conflict, conflict}, false},
		"and a conflict since":               {[]leasetest.Fault{dropped, conflict}, true},
		"and a loss that is read by Exclude": {[]leasetest.Fault{dropped, conflict, conflict}, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				held := w.acquire()
				x := overtaken{w.newExcluder(tc.swaps, nil), w, len(tc.swaps)}
				err := w.recordsOn(x, lease.Policy{}).Hold("a", held.Cell()).Renew(w.Context())
				if lost, ok := errors.AsType[*lease.LostError](err); !ok || lost.Unknown != tc.unknown {
					w.Errorf("%v; want a loss, unknown: %v", err, tc.unknown)
				}
			})
		})
	}
}

// The store got the commit of Exclude twice, made it, and refused the second. Another took the lease before
// the next reading.
func TestAWriteThatExcludeRefusedMayHaveBeenMade(t *testing.T) {
	inBubble(t, func(w *fixture) {
		x := w.newExcluder([]leasetest.Fault{leasetest.Conflict, leasetest.Conflict}, []leasetest.Fault{leasetest.RefuseAfter})
		_, _, err := w.recordsOn(w.memory, lease.Policy{}).Acquire(w.Context(), "a", "w/1", lease.OnlyLease, nil)
		fatal(w, err)
		h, err := w.recordsOn(unwrittenExcluder{x}, lease.Policy{}).Resume(w.Context(), "a", "w/1")
		fatal(w, err)
		x.SetPlan(func(c leasetest.Call) leasetest.Fault {
			if c.Op == leasetest.Load && x.inside.Calls(leasetest.Swap) == 1 {
				w.rewrite(func(j *job) { j.Lease.Owner, j.Lease.Token = "them", 2 })
			}
			return leasetest.On(leasetest.Swap, leasetest.Conflict, leasetest.Conflict)(c)
		})
		var all []outcome
		w.send(h, "carried", 0, &all)
		wantErr(w, h.Renew(w.Context()), lease.ErrLost)
		if len(all) != 1 || !errors.Is(all[0].err, lease.ErrUnavailable) {
			w.Errorf("outcomes %v, want unknown", all)
		}
	})
}

// unwrittenExcluder is an excluder whose Swap has written nothing after a conflict.
type unwrittenExcluder struct{ excluder }

func (x unwrittenExcluder) Swap(ctx context.Context, key string, prev lease.Cell[job], next job) (lease.Cell[job], error) {
	c, err := x.excluder.Swap(ctx, key, prev, next)
	if errors.Is(err, lease.ErrConflict) {
		err = fmt.Errorf("%w: %w", lease.ErrUnwritten, err)
	}
	return c, err
}
