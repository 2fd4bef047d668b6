package lease_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// A write of each kind has one outcome under each fault of its first call.
func TestUnknownOutcome(t *testing.T) {
	type fault = leasetest.Fault
	faults := map[string]struct {
		swap, load fault // of the first Swap, and of the Load that resolves it
		swaps      int   // of a write that resolves; one more where the first was not ours
	}{
		"the reply was lost after the commit":         {leasetest.ReplyLost, leasetest.None, 1},
		"and the resolving read was lost too":         {leasetest.ReplyLost, leasetest.ReplyLost, 1},
		"it was lost before the commit":               {leasetest.RequestLost, leasetest.None, 2},
		"it was applied only after the next read":     {leasetest.Late, leasetest.Deliver, 2},
		"it was sent twice":                           {leasetest.SentTwice, leasetest.None, 1},
		"it got ErrConflict although nothing changed": {leasetest.Conflict, leasetest.None, 2},
		"it was refused":                              {leasetest.Refuse, leasetest.None, 1},
		"it was refused, and the read was lost":       {leasetest.Refuse, leasetest.RequestLost, 1},
		"it was refused although it had landed":       {leasetest.RefuseAfter, leasetest.None, 1},
		"it was slow and then applied":                {leasetest.SlowRequest, leasetest.None, 1},
		"it was dropped by a peer that never reads":   {leasetest.SlowFailure, leasetest.None, 2},
	}
	held := job{Lease: lease.Lease{Owner: "w/1", Token: 1, Attempts: 1}}
	acquire := func(w *fixture, _ *lease.Hold[job]) error {
		h, j, err := w.records.Acquire(w.Context(), "a", "w/1", lease.OnlyLease, w.noting("set"))
		if err == nil {
			same(w, held.Lease.Grant(), h.Grant())
			same(w, "set", j.Note)
		}
		return err
	}
	writes := map[string]struct {
		before, after job
		write         func(w *fixture, h *lease.Hold[job]) error
	}{
		"acquire": {job{}, job{held.Lease, "set"}, acquire},
		"renew":   {held, held, func(w *fixture, h *lease.Hold[job]) error { return h.Renew(w.Context()) }},
		"finish":  {held, completed("set"), func(w *fixture, h *lease.Hold[job]) error { return w.finish(h, "set") }},
		"release": {held, job{lease.Lease{Token: 1, Attempts: 1}, "set"}, func(w *fixture, h *lease.Hold[job]) error {
			return w.release(h, "set")
		}},
	}
	for verb, write := range writes {
		for what, f := range faults {
			inBubble(t, verb+": "+what, func(w *fixture) {
				var h *lease.Hold[job]
				loads := []fault{f.load}
				if write.before == held {
					h = w.acquire()
					time.Sleep(time.Minute)
				} else {
					loads = []fault{leasetest.None, f.load}
				}
				swap := leasetest.On(leasetest.Swap, f.swap)
				w.faulty.SetPlan(leasetest.Any(swap, leasetest.On(leasetest.Load, loads...)))
				err := write.write(w, h)
				if f.swap == leasetest.Refuse {
					wantErr(w, err, lease.ErrRefused)
					w.wantRecord(write.before)
				} else {
					check(w, err)
					w.wantRecord(write.after)
				}
				w.wantFaults(f.swap, f.load)
				swaps := w.faulty.Calls(leasetest.Swap)
				late := verb == "renew" && f.load == leasetest.Deliver
				if late && swaps == f.swaps+1 {
					return // a late heartbeat may have to be followed by a fresher one
				}
				same(w, f.swaps, swaps)
			})
		}
	}
}

// add is an Edit that counts in the note of the record.
type add struct {
	decisions int
	err       error // of the decision
	asked     bool  // whether it has landed: a note shows that
	unmarked  bool
}

func (a *add) run(ctx context.Context, s lease.Store[job], from *lease.Cell[job]) (lease.Cell[job], error) {
	decide := func(c lease.Cell[job]) (job, error) {
		a.decisions++
		c.Doc.Note += "+"
		return c.Doc, a.err
	}
	landed := func(c lease.Cell[job]) bool {
		a.asked = true
		return c.Doc.Note == "+"
	}
	return lease.Edit(ctx, s, "a", lease.Write[job]{From: from, Decide: decide, Landed: landed, Unmarked: a.unmarked})
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

// final is a store whose calls all return one error.
type final struct{ err error }

func (f final) Load(context.Context, string, lease.Want) (lease.Cell[job], error) {
	return lease.Cell[job]{}, f.err
}

func (f final) Swap(context.Context, string, lease.Cell[job], job) (lease.Cell[job], error) {
	return lease.Cell[job]{}, f.err
}

func TestEdit(t *testing.T) {
	inBubble(t, "a decision is made again from what others wrote", func(w *fixture) {
		stale := w.cell()
		w.rewrite(note("theirs"))
		a := &add{}
		c, err := a.run(w.Context(), w.faulty, &stale)
		check(w, err)
		same(w, "theirs+", c.Doc.Note)
		same(w, 2, a.decisions)
		w.wantSame(c.Doc)
		w.wantCalls(1, 2)
	})

	// Another operator's write may equal this one, which the record cannot show.
	for first, load := range map[leasetest.Fault]leasetest.Fault{
		leasetest.Conflict:  leasetest.None,
		leasetest.ReplyLost: leasetest.None,
		leasetest.Late:      leasetest.Deliver,
	} {
		inBubble(t, "an unmarked write is made again unless it may have arrived, "+string(first), func(w *fixture) {
			swap := leasetest.On(leasetest.Swap, first)
			w.faulty.SetPlan(leasetest.Any(swap, leasetest.On(leasetest.Load, leasetest.None, load)))
			a := &add{unmarked: true}
			c, err := a.run(w.Context(), unwritten{w.faulty}, nil)
			check(w, err)
			same(w, "+", c.Doc.Note)
			same(w, first != leasetest.Conflict, a.asked)
			w.wantFaults(first, load)
		})
	}

	inBubble(t, "a decision's error is returned unchanged, with its cell", func(w *fixture) {
		w.rewrite(note("read"))
		want := &lease.HeldError{Owner: "w/2"}
		c, err := (&add{err: want}).run(w.Context(), w.faulty, nil)
		if err != error(want) { //nolint:errorlint // unchanged means not even wrapped
			w.Errorf("%v; want %v", err, want)
		}
		same(w, "read", c.Doc.Note)
		w.wantCalls(1, 0)
	})

	// The pauses after conflicts are short; after failures they grow to two seconds.
	for name, c := range map[string]struct {
		fault       leasetest.Fault
		least, most int   // calls of Load in a minute
		last        error // of the last call
	}{
		"conflict":     {leasetest.Conflict, 240, 2000, lease.ErrConflict},
		"dropped":      {leasetest.RequestLost, 30, 200, leasetest.ErrDropped},
		"slow failure": {leasetest.SlowFailure, 15, 60, leasetest.ErrDropped},
		"unavailable":  {leasetest.Unavailable, 1, 1, context.DeadlineExceeded},
	} {
		inBubble(t, "it tries until its context ends and returns the cause, "+name, func(w *fixture) {
			w.faulty.SetPlan(leasetest.Always(c.fault))
			why := errors.New("the reason")
			ctx, cancel := context.WithTimeoutCause(w.Context(), time.Minute, why)
			defer cancel()
			_, err := (&add{}).run(ctx, w.faulty, nil)
			for _, want := range []error{lease.ErrUnavailable, why, c.last} {
				wantErr(w, err, want)
			}
			same(w, false, errors.Is(err, lease.ErrMayBeWritten)) // nothing was even read
			if got := w.faulty.Calls(leasetest.Load); got < c.least || got > c.most {
				w.Errorf("%d calls; want %d to %d", got, c.least, c.most)
			}
			w.wantSame(job{})
		})
	}

	for fault, want := range map[leasetest.Fault]bool{leasetest.RequestLost: true, leasetest.Refuse: false} {
		inBubble(t, fmt.Sprint("it says whether the change may be written, ", fault), func(w *fixture) {
			w.faulty.SetPlan(leasetest.Any(leasetest.On(leasetest.Swap, fault), leasetest.On(leasetest.Load,
				leasetest.None, leasetest.Unavailable)))
			ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
			defer cancel()
			_, err := (&add{}).run(ctx, w.faulty, nil)
			wantErr(w, err, lease.ErrUnavailable)
			same(w, want, errors.Is(err, lease.ErrMayBeWritten))
		})
	}

	for _, want := range []error{lease.ErrRefused, lease.ErrMalformed, lease.ErrInvalidKey} {
		for call, from := range map[string]*lease.Cell[job]{"load": nil, "swap": {}} {
			inBubble(t, fmt.Sprintf("a permanent error is not tried again, %s, %v", call, want), func(w *fixture) {
				ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
				defer cancel()
				_, err := (&add{}).run(ctx, final{fmt.Errorf("store: %w", want)}, from)
				wantErr(w, err, want)
				if errors.Is(err, lease.ErrUnavailable) {
					w.Error(err)
				}
				// A refused write may have landed: a read resolves that.
				if resolved := from != nil && errors.Is(want, lease.ErrRefused); !resolved {
					w.wantSince(0)
				}
			})
		}
	}
}

// excluder is an Excluder that no other program writes to. Its Load and Swap fail by the plan of
// its Faulty, and its Exclude as the Swap of inside. It knows that a conflict is another writer's.
type excluder struct {
	*leasetest.Faulty[job]
	inside *leasetest.Faulty[job]
	before func(swaps int) // is called before each reading, with the number of writes
}

func (x excluder) Load(ctx context.Context, key string, want lease.Want) (lease.Cell[job], error) {
	x.before(x.Calls(leasetest.Swap) + x.inside.Calls(leasetest.Swap))
	return x.Faulty.Load(ctx, key, want)
}

func (x excluder) Swap(ctx context.Context, key string, prev lease.Cell[job], next job) (lease.Cell[job], error) {
	return unwritten{x.Faulty}.Swap(ctx, key, prev, next)
}

func (x excluder) Exclude(ctx context.Context, key string, want lease.Want,
	decide func(lease.Cell[job]) (job, error),
) (lease.Cell[job], error) {
	x.before(x.Calls(leasetest.Swap) + x.inside.Calls(leasetest.Swap))
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
		before: func(int) {},
	}
}

// After two conflicts Edit uses Exclude. If Exclude is refused, a read shows whether it has landed,
// and one Swap whether the write is refused too.
func TestEdit_Exclude(t *testing.T) {
	type faults = []leasetest.Fault
	const none, conflict, refuse = leasetest.None, leasetest.Conflict, leasetest.Refuse
	for name, c := range map[string]struct {
		exclude      faults
		swap         leasetest.Fault // the third, after two conflicts
		swaps, tries int             // tries of Exclude
	}{
		"it succeeds":                                    {nil, none, 2, 1},
		"its reply is lost":                              {faults{leasetest.ReplyLost}, none, 2, 2},
		"it is dropped":                                  {faults{leasetest.RequestLost}, none, 2, 2},
		"it meets a conflict":                            {faults{conflict}, none, 2, 2},
		"it is refused although it has landed":           {faults{leasetest.RefuseAfter}, none, 2, 1},
		"it is refused, and the Swap too":                {faults{refuse}, refuse, 3, 1},
		"it is refused, but not the Swap":                {faults{refuse}, none, 3, 1},
		"it is refused, and the Swap meets a conflict":   {faults{refuse}, conflict, 3, 2},
		"it is refused twice, the Swap meets a conflict": {faults{refuse, refuse}, conflict, 4, 2},
	} {
		inBubble(t, name, func(w *fixture) {
			x := w.newExcluder(faults{conflict, conflict, c.swap}, c.exclude)
			records, first := w.recordsOn(x, lease.Policy{}), w.cell().Rev.(int64)
			h, _, err := records.Acquire(w.Context(), "a", "w/1", lease.OnlyLease, w.noting("set"))
			same(w, c.swaps, x.Calls(leasetest.Swap))
			same(w, c.tries, x.inside.Calls(leasetest.Load))
			if c.swap == refuse {
				wantErr(w, err, lease.ErrRefused)
				w.wantSame(job{})
				return
			}
			must.OK(w, err)
			same(w, first+1, w.cell().Rev.(int64)) // one write
			w.wantRecord(job{lease.Lease{Owner: "w/1", Token: 1, Attempts: 1}, "set"})
			check(w, h.End(w.Context(), lease.Finishing(unchanged)))
			w.wantSame(completed("set"))
		})
	}
}

// Another process takes the lease after some writes. Only a try that may have written makes the loss
// unknown, and then it stays unknown.
func TestEdit_Unknown(t *testing.T) {
	type faults = []leasetest.Fault
	const conflict, dropped = leasetest.Conflict, leasetest.RequestLost
	for name, c := range map[string]struct {
		swaps, excludes faults
		unknown         bool
	}{
		"conflicts alone":                    {faults{conflict, conflict}, nil, false},
		"and a conflict since":               {faults{dropped, conflict}, nil, true},
		"and a loss that is read by Exclude": {faults{dropped, conflict, conflict}, nil, true},
		// The store got the commit of Exclude twice, made it, and refused the second.
		"Exclude was refused": {faults{conflict, conflict}, faults{leasetest.RefuseAfter}, true},
	} {
		inBubble(t, name, func(w *fixture) {
			w.acquire()
			x := w.newExcluder(c.swaps, c.excludes)
			x.before = func(swaps int) {
				if swaps == len(c.swaps)+len(c.excludes) {
					w.steal()
				}
			}
			h, err := w.recordsOn(x, lease.Policy{}).Resume(w.Context(), "a", "w/1")
			must.OK(w, err)
			if lost, ok := errors.AsType[*lease.LostError](h.Renew(w.Context())); !ok || lost.Unknown != c.unknown {
				w.Errorf("%+v; want a loss, unknown: %v", lost, c.unknown)
			}
		})
	}
}
