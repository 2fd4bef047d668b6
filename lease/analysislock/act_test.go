package analysislock_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

// begin begins an act, whose marker done waits for.
func begin(h *analysislock.Hold, name string, done func(error)) {
	b := &analysislock.Beginning{Name: name, Token: h.Grant().Token, Now: h.Now().Truncate(time.Millisecond)}
	h.Send(b.Change(done))
}

// end ends an act with a result.
func end(h *analysislock.Hold, name string, result *analysislock.Act, done func(error)) {
	h.Send(analysislock.ActEnded(name, h.Grant().Token, h.Now().Truncate(time.Millisecond), result, done))
}

func done(result string) *analysislock.Act {
	return &analysislock.Act{State: analysislock.ActDone, Result: json.RawMessage(result)}
}

// A record that the document has no room for is not believed to be there.
func TestARefusedMarkIsUndone(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		s, got := w.faulty(), &outcomes{}
		h := w.acquire("w/1").Hold
		w.run(h, nil, func() {
			begin(h, "first", got.done("first"))
			time.Sleep(time.Second)
			s.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse))
			begin(h, "second", got.done("second"))
			time.Sleep(time.Second)
			got.want(w, "first", "second refused")
			if marked := slices.Collect(maps.Keys(h.Doc().Acts)); !slices.Equal(marked, []string{"first"}) {
				w.Errorf("marked are %q", marked)
			}
			s.SetPlan(func(c leasetest.Call) leasetest.Fault {
				if c != (leasetest.Call{Op: leasetest.Swap, N: 1}) {
					return leasetest.None
				}
				begin(h, "fourth", nil) // during the commit
				return leasetest.Refuse
			})
			begin(h, "third", nil)
			time.Sleep(time.Second)
			if open := h.Doc().Acts.Open(); !slices.Equal(open, []string{"first", "fourth"}) {
				w.Errorf("%q are open", open)
			}
		})
		if d := w.doc(); d.OpenActs != 2 || len(d.Acts) != 2 || d.Acts["first"].Token != 1 || !d.Acts["first"].At.Before(w.now()) {
			w.Errorf("%+v", d.Acts)
		}
	})
}

// A checkpoint that the document has no room for must not make a done act uncertain.
func TestAMarkIsWrittenWithoutARefusedCheckpoint(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		s, got := w.faulty(), &outcomes{}
		h := w.acquire("w/1").Hold
		w.run(h, nil, func() {
			begin(h, "charge", nil)
			time.Sleep(time.Second)
			before := h.Doc().Acts.Open()
			s.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse))
			h.Send(checkpoint("large", time.Minute, got.done("checkpoint")))
			end(h, "charge", done("7"), got.done("mark"))
			time.Sleep(time.Second)
			got.want(w, "checkpoint refused", "mark")
			if open := h.Doc().Acts.Open(); len(before) != 1 || len(open) > 0 {
				w.Errorf("%q are open, then %q", before, open)
			}
		})
		if d := w.doc(); d.OpenActs != 0 || d.Acts["charge"].State != analysislock.ActDone || d.Checkpoint != nil {
			w.Errorf("%+v", d)
		}
	})
}

// A marker that the document has no room for must not take a checkpoint with it that fits.
func TestACheckpointIsWrittenWithoutARefusedMark(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		s, got := w.faulty(), &outcomes{}
		h := w.acquire("w/1").Hold
		w.run(h, nil, func() {
			s.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse, leasetest.Refuse)) // both, and the marker alone
			h.Send(checkpoint("small", time.Minute, got.done("checkpoint")))
			begin(h, "charge", got.done("mark"))
			time.Sleep(time.Second)
			got.want(w, "checkpoint", "mark refused")
		})
		if d := w.doc(); len(h.Doc().Acts) != 0 || d.OpenActs != 0 || d.Checkpoint == nil {
			w.Errorf("%+v", d)
		}
	})
}

// An open act counts with the room that is kept for its result.
func TestTheResultsOfActsHave64KiB(t *testing.T) {
	large := func(n int) analysislock.Act { return *done(strings.Repeat("7", n)) }
	for name, tc := range map[string]struct {
		acts  analysislock.Acts
		n     int // bytes of the result of another act, or 0 to begin one
		room  bool
		error string
	}{
		"a result":                    {analysislock.Acts{}, 64 << 10, true, ""},
		"a result of more":            {analysislock.Acts{}, 64<<10 + 1, false, "65536 bytes"},
		"beside a result":             {analysislock.Acts{"a": large(60 << 10)}, 4 << 10, true, ""},
		"beside an open act":          {analysislock.Acts{"a": {State: analysislock.ActStarted}}, 60 << 10, true, ""},
		"no room for an open act":     {analysislock.Acts{"a": {State: analysislock.ActStarted}}, 60<<10 + 1, false, "65536 bytes"},
		"to begin":                    {analysislock.Acts{"a": large(60 << 10)}, 0, true, ""},
		"to begin, without its room":  {analysislock.Acts{"a": large(60<<10 + 1)}, 0, false, "65536 bytes"},
		"why there is no result":      {analysislock.Acts{"a": {State: analysislock.ActDone, ResultError: strings.Repeat("7", 60<<10+1)}}, 0, false, "65536 bytes"},
		"in place of its own reserve": {analysislock.Acts{"x": {State: analysislock.ActStarted}}, 64 << 10, true, ""},
	} {
		var err error
		if tc.n == 0 {
			_, _, err = tc.acts.Begin("x", 2, time.Time{}, false)
		} else {
			_, err = tc.acts.End("x", 2, time.Time{}, done(strings.Repeat("7", tc.n)))
		}
		if errors.Is(err, analysislock.ErrFull) == tc.room || err != nil && !strings.Contains(err.Error(), tc.error) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// One attempt begins two acts with one name: the second would get the result of the first.
func TestAnAttemptBeginsAnActOnce(t *testing.T) {
	started := func(token int64) analysislock.Act {
		return analysislock.Act{State: analysislock.ActStarted, Token: token}
	}
	full := analysislock.Acts{}
	for i := range 16 {
		full[strings.Repeat("x", i+1)] = analysislock.Act{State: analysislock.ActDone, Token: 1}
	}
	for name, tc := range map[string]struct {
		acts    analysislock.Acts
		act     string
		again   bool
		begun   bool
		earlier int64 // its token
		err     error
	}{
		"the first":                {nil, "a", false, true, 0, nil},
		"beside others":            {analysislock.Acts{"ab": started(5)}, "a", false, true, 0, nil},
		"begun by this attempt":    {analysislock.Acts{"a": started(5)}, "a", false, false, 0, analysislock.ErrReused},
		"begun by it, again":       {analysislock.Acts{"a": started(5)}, "a", true, false, 0, analysislock.ErrReused},
		"done by it":               {analysislock.Acts{"a": {State: analysislock.ActDone, Token: 5}}, "a", false, false, 0, analysislock.ErrReused},
		"begun earlier":            {analysislock.Acts{"a": started(4)}, "a", false, false, 4, nil},
		"begun earlier, and again": {analysislock.Acts{"a": started(4)}, "a", true, true, 4, nil},
		"done earlier":             {analysislock.Acts{"a": {State: analysislock.ActDone, Token: 4}}, "a", true, false, 4, nil},
		"of an unreadable record":  {analysislock.Acts{"*": {State: analysislock.ActStarted}}, "a", false, false, 0, nil},
		"unreadable, said done":    {analysislock.Acts{"*": {State: analysislock.ActDone}}, "a", false, true, 0, nil},
		"unreadable, not found":    {analysislock.Acts{"*": {State: analysislock.ActStarted}}, "a", true, true, 0, nil},
		"the 17th":                 {full, "a", false, false, 0, analysislock.ErrFull},
	} {
		before := len(tc.acts)
		changed, earlier, err := tc.acts.Begin(tc.act, 5, time.Time{}, tc.again)
		if !errors.Is(err, tc.err) || (err != nil) != (tc.err != nil) || (changed != nil) != tc.begun || len(tc.acts) != before {
			t.Errorf("%s: %v, %v", name, changed, err)
		}
		unreadable := tc.acts["*"].State == analysislock.ActStarted
		if (earlier != nil) != (tc.earlier != 0 || unreadable) || earlier != nil && earlier.Token != tc.earlier {
			t.Errorf("%s: earlier %+v", name, earlier)
		}
		if tc.begun && (changed[tc.act].Token != 5 || changed[tc.act].State != analysislock.ActStarted) {
			t.Errorf("%s: %+v", name, changed)
		}
	}
}

// Each case begins with an act that an attempt has begun, and with one that is done.
func TestAnOperatorResolvesAnUncertainActOnce(t *testing.T) {
	failed := func(d *analysislock.Analysis) {
		d.Status, d.Error = analysislock.Failed, &analysislock.Error{Code: analysislock.ActUncertain}
		d.Lock.Finished = true
	}
	unreadable := func(d *analysislock.Analysis) {
		failed(d)
		d.Acts = analysislock.Acts{analysislock.Unreadable: {State: analysislock.ActStarted}}
	}
	for name, tc := range map[string]struct {
		state  func(d *analysislock.Analysis)
		act    string
		answer analysislock.Answer
		err    error // in its tree; any error, if the act stays open
		status string
		open   int
	}{
		"done":      {failed, "charge", analysislock.Answer{Done: true, Result: []byte(`"r"`)}, nil, analysislock.Queued, 0},
		"not done":  {failed, "charge", analysislock.Answer{}, nil, analysislock.Queued, 0},
		"of READY":  {func(d *analysislock.Analysis) { d.Status, d.Lock.Finished = analysislock.Ready, true }, "charge", analysislock.Answer{}, nil, analysislock.Ready, 0},
		"cancelled": {func(d *analysislock.Analysis) { failed(d); d.Error.Code = analysislock.Cancelled }, "charge", analysislock.Answer{}, nil, analysislock.Failed, 0},
		"unknown":   {failed, "refund", analysislock.Answer{}, analysislock.ErrNotUncertain, analysislock.Failed, 1},
		"done act":  {failed, "mail", analysislock.Answer{}, analysislock.ErrNotUncertain, analysislock.Failed, 1},
		"too large": {failed, "charge", analysislock.Answer{Done: true, Result: []byte(strings.Repeat("7", 64<<10+1))}, nil, analysislock.Failed, 1},
		"all acts":  {unreadable, "*", analysislock.Answer{Done: true, Result: []byte(`"r"`)}, analysislock.ErrAllActs, analysislock.Failed, 1},
		"no act":    {unreadable, "*", analysislock.Answer{}, nil, analysislock.Queued, 0},
		"held": {func(d *analysislock.Analysis) {
			d.Lock.Owner, d.Lock.ExpiresAt = "w/1", time.Now().Add(ahead+time.Minute)
		}, "charge", analysislock.Answer{}, nil, analysislock.Queued, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				d := queued()
				d.Acts = analysislock.Acts{"charge": {State: analysislock.ActStarted, Token: 1}, "mail": {State: analysislock.ActDone, Token: 1}}
				d.OpenActs, d.Lock.Token = 1, 1
				tc.state(&d)
				w.Put("x", d)
				w.faulty().SetPlan(leasetest.On(leasetest.Swap, leasetest.DropBefore, leasetest.DropAfter))
				seen := &analysislock.Seen{Status: d.Status, Grant: d.Lock.Grant()}

				_, err := w.locks.Resolve(w.Context(), "x", "", seen, tc.act, tc.answer, "task")
				got := w.doc()
				refused := tc.open == 1
				if tc.err != nil && !errors.Is(err, tc.err) || (err != nil) != refused {
					w.Errorf("%v, want %v", err, tc.err)
				}
				if got.Status != tc.status || got.OpenActs != tc.open {
					w.Errorf("%s with %d acts open, want %s with %d", got.Status, got.OpenActs, tc.status, tc.open)
				}
				if booked := !refused && tc.status == analysislock.Queued; booked != (got.BookedTask == "task") {
					w.Errorf("booked task %q", got.BookedTask)
				}
				if e := got.Acts["charge"]; !refused && tc.answer.Done != (e.State == analysislock.ActDone) || e.Result != nil && string(e.Result) != `"r"` {
					w.Errorf("the act is %+v", e)
				}
				if _, err = w.locks.Resolve(w.Context(), "x", "", seen, tc.act, tc.answer, "task"); err == nil {
					w.Error("a second operator resolved it too")
				}
			})
		})
	}
}

// While an operator answers, a later attempt begins the act again, and dies too.
func TestAnAnswerDoesNotEraseALaterMarker(t *testing.T) {
	for _, fault := range []leasetest.Fault{leasetest.DropBefore, leasetest.DropAfter, leasetest.None} {
		inBubble(t, queued(), func(w *fixture) {
			d := queued()
			d.Acts = analysislock.Acts{"charge": {State: analysislock.ActStarted, Token: 1}}
			w.Put("x", d)
			later := func() {
				d.Acts = analysislock.Acts{"charge": {State: analysislock.ActStarted, Token: 2}}
				w.Put("x", d)
			}
			w.faulty().SetPlan(func(c leasetest.Call) leasetest.Fault {
				if c == (leasetest.Call{Op: leasetest.Swap, N: 1}) && fault != leasetest.DropAfter {
					later()
				}
				if c == (leasetest.Call{Op: leasetest.Load, N: 2}) && fault == leasetest.DropAfter {
					later()
				}
				return map[leasetest.Call]leasetest.Fault{{Op: leasetest.Swap, N: 1}: fault}[c]
			})
			_, err := w.locks.Resolve(w.Context(), "x", "", nil, "charge", analysislock.Answer{}, "")
			if got := w.doc().Acts["charge"]; err != nil || got.Token != 2 {
				w.Errorf("%v: %v, the act is %+v", fault, err, got)
			}
		})
	}
}

// After the answer, whose reply is lost, a newer attempt begins the act again: its marker stays. The
// record of an act may lack the token of the attempt.
func TestAnAnswerWhoseReplyWasLostIsNotGivenAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		token  int64
		answer analysislock.Answer
		others func(d *analysislock.Analysis)
		left   int64 // the token of the act afterwards; -1: it has none
	}{
		"no other program":       {1, analysislock.Answer{}, func(*analysislock.Analysis) {}, -1},
		"without a token":        {0, analysislock.Answer{}, func(*analysislock.Analysis) {}, -1},
		"begun again":            {1, analysislock.Answer{}, begunAgain, 2},
		"without one, and again": {0, analysislock.Answer{}, begunAgain, 2},
		"done":                   {1, analysislock.Answer{Done: true}, func(*analysislock.Analysis) {}, 1},
	} {
		for _, running := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", running ", running), func(t *testing.T) {
				d := queued()
				d.Acts, d.OpenActs = analysislock.Acts{"charge": {State: analysislock.ActStarted, Token: tc.token}}, 1
				inBubble(t, d, func(w *fixture) {
					w.serve(&interrupted{&w.Memory, func(d *analysislock.Analysis) {
						if tc.others(d); running {
							d.Lock.Owner, d.Lock.ExpiresAt = "w/2", w.now().Add(time.Minute)
						}
					}}, lease.Policy{}, 0, nil)
					_, err := w.locks.Resolve(w.Context(), "x", "", nil, "charge", tc.answer, "")
					left := int64(-1)
					if act, exists := w.doc().Acts["charge"]; exists {
						left = act.Token
					}
					if err != nil || left != tc.left {
						w.Errorf("%v; the act has the token %d, want %d", err, left, tc.left)
					}
				})
			})
		}
	}
}

func begunAgain(d *analysislock.Analysis) {
	d.Lock.Token, d.Lock.Attempts = 2, 1
	d.Acts, d.OpenActs = analysislock.Acts{"charge": {State: analysislock.ActStarted, Token: 2}}, 1
}

func TestMarksAreDroppedByAFreshRequeueOnly(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		d := queued()
		d.Acts, d.OpenActs = analysislock.Acts{"charge": {State: analysislock.ActStarted}}, 1
		w.Put("x", d)
		if _, err := w.locks.Requeue(w.Context(), "x", "", nil, true, ""); !errors.Is(err, analysislock.ErrUncertain) {
			w.Errorf("fresh, with an uncertain act: %v", err)
		}
		d.OpenActs = 0 // whatever the count says
		w.Put("x", d)
		if _, err := w.locks.Requeue(w.Context(), "x", "", nil, true, ""); !errors.Is(err, analysislock.ErrUncertain) {
			w.Errorf("fresh, with an uncertain act that is not counted: %v", err)
		}
		_, err := w.locks.Requeue(w.Context(), "x", "", nil, false, "")
		w.check(err)
		if got := w.doc(); len(got.Acts) != 1 {
			w.Errorf("after a requeue: %+v", got.Acts)
		}
	})
}

// The store does not answer: an act that was recorded in memory alone is not reported as committed.
func TestASecondEndWaitsForTheFirstsCommit(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		s, got := w.faulty(), &outcomes{}
		h := w.acquire("w/1").Hold
		w.run(h, nil, func() {
			begin(h, "charge", got.done("begun"))
			time.Sleep(time.Second)
			s.SetPlan(func(leasetest.Call) leasetest.Fault { return leasetest.DropBefore })
			end(h, "charge", &analysislock.Act{Result: json.RawMessage("1")}, got.done("end"))
			end(h, "charge", &analysislock.Act{Result: json.RawMessage("1")}, got.done("again"))
			time.Sleep(time.Second)
			got.want(w, "begun")
			s.SetPlan(nil)
			time.Sleep(time.Minute)
			got.want(w, "end", "again")
		})
		if got := w.doc().Acts["charge"]; got.State != analysislock.ActDone {
			w.Errorf("the act is %+v", got)
		}
	})
}

// While the store refuses the end of one act, another begins: the first can still be ended.
func TestARefusedEndReturnsToWhatIsCommitted(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		s, got := w.faulty(), &outcomes{}
		h := w.acquire("w/1").Hold
		w.run(h, nil, func() {
			begin(h, "a", func(error) {})
			time.Sleep(time.Second)
			s.SetPlan(func(c leasetest.Call) leasetest.Fault {
				if c != (leasetest.Call{Op: leasetest.Swap, N: 1}) {
					return leasetest.None
				}
				begin(h, "b", got.done("b"))
				return leasetest.Refuse
			})
			end(h, "a", &analysislock.Act{Result: json.RawMessage("1")}, got.done("a"))
			time.Sleep(time.Second)
			end(h, "a", &analysislock.Act{ResultError: "no room"}, got.done("a without a result"))
			time.Sleep(time.Second)
			got.want(w, "a refused", "b", "a without a result")
		})
		if got := w.doc().Acts; got["a"].ResultError != "no room" || got["b"].State != analysislock.ActStarted {
			w.Errorf("the acts are %+v", got)
		}
	})
}

// The second begin of an act is refused, and its undo does not undo the first.
func TestAnUndoRemovesNoOtherMarker(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		h, got := w.acquire("w/1").Hold, &outcomes{}
		w.run(h, nil, func() {
			begin(h, "charge", got.done("first"))
			second := &analysislock.Beginning{Name: "charge", Token: h.Grant().Token, Now: h.Now()}
			h.Send(second.Change(got.done("second")), second.Undo())
			time.Sleep(time.Second)
			got.want(w, "second analysislock: one attempt has begun two acts with one name", "first")
		})
		if act := w.doc().Acts["charge"]; act.State != analysislock.ActStarted {
			w.Errorf("the act is %+v", act)
		}
	})
}
