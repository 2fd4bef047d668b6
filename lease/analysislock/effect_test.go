package analysislock_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

func started() *analysislock.Effect { return &analysislock.Effect{State: analysislock.EffectStarted} }

func done(result any) *analysislock.Effect {
	return &analysislock.Effect{State: analysislock.EffectDone, Result: result}
}

// A record that the document has no room for is not believed to be there.
func TestARefusedMarkIsUndone(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		s, got := w.faulty(), &outcomes{}
		h := w.acquire("w/1").Hold
		w.run(h, nil, func() {
			w.check(h.Mark("first", started(), got.done("first")))
			time.Sleep(time.Second)
			s.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse))
			w.check(h.Mark("second", started(), got.done("second")))
			time.Sleep(time.Second)
			got.want(w, "first", "second refused")
			_, first := h.Effect("first")
			if _, second := h.Effect("second"); !first || second {
				w.Errorf("first %v, second %v", first, second)
			}
			s.SetPlan(func(c leasetest.Call) leasetest.Fault {
				if c != (leasetest.Call{Op: leasetest.Swap, N: 1}) {
					return leasetest.None
				}
				w.check(h.Mark("fourth", started(), nil)) // during the commit
				return leasetest.Refuse
			})
			w.check(h.Mark("third", started(), nil))
			time.Sleep(time.Second)
			if open := h.OpenEffects(0); !slices.Equal(open, []string{"first", "fourth", "third"}) {
				w.Errorf("%q are open", open)
			}
		})
		if d := w.doc(); d.OpenEffects != 3 || len(d.Effects) != 3 || d.Effects["first"].Token != 1 || !d.Effects["first"].At.Before(w.now()) {
			w.Errorf("%+v", d.Effects)
		}
	})
}

// A checkpoint that the document has no room for must not make a done act uncertain.
func TestAMarkIsWrittenWithoutARefusedCheckpoint(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		s, got := w.faulty(), &outcomes{}
		h := w.acquire("w/1").Hold
		w.run(h, nil, func() {
			w.check(h.Mark("charge", started(), nil))
			before := h.OpenEffects(0)
			time.Sleep(time.Second)
			s.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse))
			h.Report(analysislock.Report{Checkpoint: &analysislock.Checkpoint{Value: "large"}}, time.Minute, got.done("checkpoint"))
			w.check(h.Mark("charge", done(7), got.done("mark")))
			time.Sleep(time.Second)
			got.want(w, "checkpoint refused", "mark")
			if open := h.OpenEffects(0); len(before) != 1 || len(open) > 0 {
				w.Errorf("%q are open, then %q", before, open)
			}
		})
		if d := w.doc(); d.OpenEffects != 0 || d.Effects["charge"].State != analysislock.EffectDone || d.Checkpoint != nil {
			w.Errorf("%+v", d)
		}
	})
}

func TestTheResultsOfActsHave64KiB(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		h := w.acquire("w/1").Hold
		const others = len(`{"a":{"state":"done","token":1,"at":"2000-01-01T00:07:00Z","result":""}}`)
		largest := strings.Repeat("x", 64<<10-others)
		for result, fits := range map[any]bool{largest: true, largest + "x": false, math.Inf(1): false} {
			if err := h.Mark("a", done(result), nil); (err == nil) != fits {
				w.Errorf("%T: %v", result, err)
			}
		}
	})
}

// Each case begins with an act that an attempt has begun, and with one that is done.
func TestAnOperatorResolvesAnUncertainActOnce(t *testing.T) {
	failed := func(d *analysislock.Analysis) {
		d.Status, d.Error = analysislock.Failed, &analysislock.Error{Code: analysislock.EffectUncertain}
		d.Lock.Finished = true
	}
	for name, tc := range map[string]struct {
		state  func(d *analysislock.Analysis)
		act    string
		answer analysislock.Answer
		err    error // in its tree; any error, if the act stays open
		status string
		open   int
	}{
		"done":      {failed, "charge", analysislock.Answer{Done: true, Result: "r"}, nil, analysislock.Queued, 0},
		"not done":  {failed, "charge", analysislock.Answer{}, nil, analysislock.Queued, 0},
		"of READY":  {func(d *analysislock.Analysis) { d.Status, d.Lock.Finished = analysislock.Ready, true }, "charge", analysislock.Answer{}, nil, analysislock.Ready, 0},
		"cancelled": {func(d *analysislock.Analysis) { failed(d); d.Error.Code = analysislock.Cancelled }, "charge", analysislock.Answer{}, nil, analysislock.Failed, 0},
		"unknown":   {failed, "refund", analysislock.Answer{}, analysislock.ErrNotUncertain, analysislock.Failed, 1},
		"done act":  {failed, "mail", analysislock.Answer{}, analysislock.ErrNotUncertain, analysislock.Failed, 1},
		"too large": {failed, "charge", analysislock.Answer{Done: true, Result: strings.Repeat("x", 64<<10)}, nil, analysislock.Failed, 1},
		"held": {func(d *analysislock.Analysis) {
			d.Lock.Owner, d.Lock.ExpiresAt = "w/1", time.Now().Add(ahead+time.Minute)
		}, "charge", analysislock.Answer{}, nil, analysislock.Queued, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				d := queued()
				d.Effects = analysislock.Effects{"charge": {State: analysislock.EffectStarted, Token: 1}, "mail": {State: analysislock.EffectDone, Token: 1}}
				d.OpenEffects, d.Lock.Token = 1, 1
				tc.state(&d)
				w.Put("x", d)
				w.faulty().SetPlan(leasetest.On(leasetest.Swap, leasetest.DropBefore, leasetest.DropAfter))
				seen := &analysislock.Seen{Status: d.Status, Grant: d.Lock.Grant()}

				_, err := w.locks.Resolve(w.Context(), "x", seen, tc.act, tc.answer, "task")
				got := w.doc()
				refused := tc.open == 1
				if tc.err != nil && !errors.Is(err, tc.err) || (err != nil) != refused {
					w.Errorf("%v, want %v", err, tc.err)
				}
				if got.Status != tc.status || got.OpenEffects != tc.open {
					w.Errorf("%s with %d acts open, want %s with %d", got.Status, got.OpenEffects, tc.status, tc.open)
				}
				if booked := !refused && tc.status == analysislock.Queued; booked != (got.BookedTask == "task") {
					w.Errorf("booked task %q", got.BookedTask)
				}
				if e := got.Effects["charge"]; !refused && tc.answer.Done != (e.State == analysislock.EffectDone) || e.Result != nil && e.Result != "r" {
					w.Errorf("the act is %+v", e)
				}
				if _, err = w.locks.Resolve(w.Context(), "x", seen, tc.act, tc.answer, "task"); err == nil {
					w.Error("a second operator resolved it too")
				}
			})
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
				d.Effects, d.OpenEffects = analysislock.Effects{"charge": {State: analysislock.EffectStarted, Token: tc.token}}, 1
				inBubble(t, d, func(w *fixture) {
					w.serve(&interrupted{&w.Memory, func(d *analysislock.Analysis) {
						if tc.others(d); running {
							d.Lock.Owner, d.Lock.ExpiresAt = "w/2", w.now().Add(time.Minute)
						}
					}}, lease.Policy{}, 0, nil)
					_, err := w.locks.Resolve(w.Context(), "x", nil, "charge", tc.answer, "")
					left := int64(-1)
					if act, exists := w.doc().Effects["charge"]; exists {
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
	d.Effects, d.OpenEffects = analysislock.Effects{"charge": {State: analysislock.EffectStarted, Token: 2}}, 1
}

func TestMarksAreDroppedByAFreshRequeueOnly(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		d := queued()
		d.Effects, d.OpenEffects = analysislock.Effects{"charge": *started()}, 1
		w.Put("x", d)
		if _, err := w.locks.Requeue(w.Context(), "x", nil, true, ""); !errors.Is(err, analysislock.ErrUncertain) {
			w.Errorf("fresh, with an uncertain act: %v", err)
		}
		d.OpenEffects = 0 // whatever the count says
		w.Put("x", d)
		if _, err := w.locks.Requeue(w.Context(), "x", nil, true, ""); !errors.Is(err, analysislock.ErrUncertain) {
			w.Errorf("fresh, with an uncertain act that is not counted: %v", err)
		}
		_, err := w.locks.Requeue(w.Context(), "x", nil, false, "")
		w.check(err)
		if got := w.doc(); len(got.Effects) != 1 {
			w.Errorf("after a requeue: %+v", got.Effects)
		}
	})
}
