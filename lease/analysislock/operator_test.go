package analysislock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

// interrupted loses the reply to the first Swap, before which other programs write.
type interrupted struct {
	*lease.Memory[analysislock.Analysis]
	others func(d *analysislock.Analysis)
}

func (s *interrupted) Swap(ctx context.Context, key string, prev lease.Cell[analysislock.Analysis], next analysislock.Analysis) (lease.Cell[analysislock.Analysis], error) {
	c, err := s.Memory.Swap(ctx, key, prev, next)
	if s.others == nil || err != nil {
		return c, err
	}
	s.others(&c.Doc)
	s.Put(key, c.Doc)
	s.others = nil
	return lease.Cell[analysislock.Analysis]{}, leasetest.ErrDropped
}

func TestAFreshStartOfAnOpenAnalysisIsMadeAgainAfterAConflict(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		d := queued()
		d.Checkpoint = &analysislock.Checkpoint{Value: "c"}
		w.Put("x", d)
		w.faulty().SetPlan(leasetest.On(leasetest.Swap, leasetest.Conflict))
		if _, err := w.locks.Requeue(w.Context(), "x", "", nil, true, ""); err != nil || w.doc().Checkpoint.Value != nil {
			w.Errorf("%v; checkpoint %v", err, w.doc().Checkpoint.Value)
		}
	})
}

// A requeue whose reply was lost is made again only if the analysis shows no trace of it.
func TestARequeueIsNotMadeAgainAfterAWorkerHasAcquiredTheAnalysis(t *testing.T) {
	failed := func(d *analysislock.Analysis) {
		d.Status, d.Error = analysislock.Failed, &analysislock.Error{Code: "c"}
		d.Lock.Finished, d.Lock.Attempts = true, 1
	}
	acquired := func(d *analysislock.Analysis) {
		d.Status, d.Lock.Owner, d.Lock.Attempts = analysislock.Processing, "w/9", 1
		d.Lock.Token++
	}
	for name, tc := range map[string]struct {
		was    func(d *analysislock.Analysis)
		others func(d *analysislock.Analysis)
		again  bool
	}{
		"no other program":                {failed, func(*analysislock.Analysis) {}, false},
		"acquired, after it had failed":   {failed, acquired, false},
		"acquired, after it was orphaned": {func(d *analysislock.Analysis) { d.Lock.Attempts = 3 }, acquired, false},
		"acquired and refunded":           {func(d *analysislock.Analysis) { d.Lock.Attempts = 3 }, func(d *analysislock.Analysis) { d.Lock.Token, d.Lock.Attempts = 6, 3 }, true},
		"as it was before":                {failed, failed, true},
		"another status":                  {failed, func(d *analysislock.Analysis) { d.Status = analysislock.Processing }, true},
		"an error":                        {failed, func(d *analysislock.Analysis) { d.Error = &analysislock.Error{} }, true},
		"attempts":                        {failed, func(d *analysislock.Analysis) { d.Lock.Attempts = 2 }, true},
		"an owner":                        {failed, func(d *analysislock.Analysis) { d.Lock.Owner = "stale" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				d := queued()
				d.Lock.Token = 5
				tc.was(&d)
				w.Put("x", d)
				var left analysislock.Analysis
				s := &interrupted{&w.Memory, func(d *analysislock.Analysis) { tc.others(d); left = *d }}
				w.serve(s, lease.Policy{}, 0, nil)
				if _, err := w.locks.Requeue(w.Context(), "x", "", nil, false, ""); err != nil {
					w.Errorf("requeue: %v", err)
				}
				got := w.doc()
				opened := got.Status == analysislock.Queued && got.Error == nil && got.Lock.Attempts == 0 && got.Lock.Owner == ""
				same := got.Status == left.Status && got.Lock == left.Lock
				if tc.again && !opened || !tc.again && !same {
					w.Errorf("%+v, left by others as %+v", got, left)
				}
			})
		})
	}
}

// The others take the lock, or change nothing.
func TestAnUnlockWhoseReplyWasLostIsNotMadeAgain(t *testing.T) {
	for _, owner := range []string{"", "w/2"} {
		for _, seen := range []*analysislock.Seen{nil, {Status: analysislock.Processing, Grant: lease.Grant{Owner: "w/1", Token: 1}}} {
			if owner != "" && seen != nil {
				continue // a conflict: the change is of what was seen
			}
			inBubble(t, queued(), func(w *fixture) {
				w.acquire("w/1")
				w.serve(&interrupted{&w.Memory, func(d *analysislock.Analysis) { d.Lock.Owner = owner }}, lease.Policy{}, 0, nil)
				if _, err := w.locks.Unlock(w.Context(), "x", "", seen, ""); err != nil || w.doc().Lock.Owner != owner {
					w.Errorf("%v; %+v, want the owner %q", err, w.doc().Lock, owner)
				}
			})
		}
	}
}

// A cancel whose reply was lost is not made again after a requeue, which would undo that.
func TestACancelIsNotMadeAgainAfterARequeue(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		s := &interrupted{&w.Memory, func(d *analysislock.Analysis) {
			d.Status, d.Error, d.Lock.Finished = analysislock.Queued, nil, false
		}}
		w.serve(s, lease.Policy{}, 0, nil)
		if _, err := w.locks.Cancel(w.Context(), "x", "me", nil); err != nil || w.doc().Status != analysislock.Queued {
			w.Errorf("%v; %+v, want QUEUED", err, w.doc())
		}
	})
}

// The document has no room for the message of the failure.
func TestARetryThatIsRefusedReleasesTheLockWithoutItsMessage(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		s := w.faulty()
		h := w.acquire("w/1").Hold
		s.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse))
		w.check(retry(w.Context(), h))
		if d := w.doc(); d.Lock.Owner != "" || *d.LastError != (analysislock.Error{Code: "c"}) {
			w.Errorf("%+v, want it released without the message", d)
		}
	})
}

func retry(ctx context.Context, h *analysislock.Hold) error {
	return h.End(ctx, analysislock.Retrying(h.Now(), "c", "m", time.Time{}, "", false))
}

// Of a held analysis see TestAChangeLeavesTheOtherFields.
func TestOnlyAnUnfinishedAnalysisIsCancelled(t *testing.T) {
	for name, tc := range map[string]struct {
		status, code string
		err          error
		writes       bool
	}{
		"queued":               {analysislock.Queued, "", nil, true},
		"ready":                {analysislock.Ready, "", lease.ErrFinished, false},
		"failed":               {analysislock.Failed, "c", lease.ErrFinished, false},
		"failed without error": {analysislock.Failed, "", lease.ErrFinished, false},
		"cancelled":            {analysislock.Failed, analysislock.Cancelled, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := queued()
			d.Status, d.Lock.Finished = tc.status, analysislock.Finished(tc.status)
			d.History = []analysislock.Attempt{{Token: d.Lock.Token, Outcome: analysislock.OutcomeRetry}} // it has ended before
			if tc.code != "" {
				d.Error = &analysislock.Error{Code: tc.code}
			}
			inBubble(t, d, func(w *fixture) {
				w.faulty().SetPlan(leasetest.On(leasetest.Swap, leasetest.DropBefore)) // then it is made again
				before, err := w.locks.Cancel(w.Context(), "x", "ana", nil)
				got := w.doc()
				if !errors.Is(err, tc.err) || before.Status != tc.status || (got.Lock != d.Lock) != tc.writes {
					w.Errorf("%+v, then %+v, %v; want %v", before, got, err, tc.err)
				}
				if got.History[0].Outcome != d.History[0].Outcome || (len(got.History[0].Changes) == 1) != tc.writes {
					w.Errorf("history %+v", got.History)
				}
			})
		})
	}
}

func TestACancelledRunIsLostWithTheErrorOfTheCancel(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		h := w.acquire("w/1").Hold
		w.run(h, lease.ErrLost, func() {
			_, err := w.locks.Cancel(w.Context(), "x", "ana", nil)
			w.check(err)
			time.Sleep(lease.DefaultTTL / 2)
		})
		if e := h.Doc().Error; e == nil || e.Code != analysislock.Cancelled {
			w.Errorf("lost with the error %+v, want that of the cancel", e)
		}
		if _, err := w.locks.Requeue(w.Context(), "x", "", nil, false, ""); err != nil || w.acquire("w/2").Grant.Token != 3 {
			w.Errorf("requeue: %v", err)
		}
	})
}

// changes returns what operators have done since the attempt began, without the times, none of which is zero.
func changes(a analysislock.Attempt) (all []string) {
	for _, c := range a.Changes {
		if !c.At.IsZero() {
			all = append(all, c.Change+" by "+c.By)
		}
	}
	return all
}

func TestTheHistoryNamesTheOperatorOfAChange(t *testing.T) {
	type step = func(w *fixture, who string) error
	errorOf := func(_ analysislock.Analysis, err error) error { return err }
	unlock := func(w *fixture, who string) error { return errorOf(w.locks.Unlock(w.Context(), "x", who, nil, "")) }
	requeue := func(w *fixture, who string) error {
		return errorOf(w.locks.Requeue(w.Context(), "x", who, nil, false, ""))
	}
	cancel := func(w *fixture, who string) error { return errorOf(w.locks.Cancel(w.Context(), "x", who, nil)) }
	resolve := func(w *fixture, who string) error {
		return errorOf(w.locks.Resolve(w.Context(), "x", who, nil, "charge", analysislock.Answer{}, ""))
	}
	for name, tc := range map[string]struct {
		change  step
		who     string
		crashed bool // else the attempt still runs
		want    []string
		outcome string
	}{
		"unlock":               {unlock, "me", false, []string{"unlocked by me"}, "lock_lost"},
		"unlock of a dead one": {unlock, "me", true, []string{"unlocked by me"}, "crashed"},
		"requeue":              {requeue, "me", true, []string{"requeued by me"}, ""},
		"resolve":              {resolve, "me", true, []string{"resolved by me"}, ""},
		"cancel":               {cancel, "me", false, []string{"cancelled by me"}, "cancelled"},
		"a program":            {unlock, "", false, nil, "lock_lost"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				w.acquire("w/1")
				d := w.doc()
				d.Acts = analysislock.Acts{"charge": {State: analysislock.ActStarted, Token: 1}}
				w.Put("x", d)
				if tc.crashed {
					die(w)
				}
				w.check(tc.change(w, tc.who))
				all := w.doc().History
				if a := all[0]; len(all) != 1 || a.Outcome != tc.outcome || !slices.Equal(changes(a), tc.want) {
					w.Errorf("%+v", all)
				}
			})
		})
	}

	inBubble(t, queued(), func(w *fixture) {
		w.acquire("w/1")
		for _, who := range []string{"ana", "bo", "cy"} {
			w.check(unlock(w, who))
		}
		w.check(requeue(w, "di"))
		want := []string{"unlocked by bo", "unlocked by cy", "requeued by di"}
		if got := changes(w.doc().History[0]); !slices.Equal(got, want) {
			w.Errorf("the changes are %q, want %q", got, want)
		}
	})
	inBubble(t, queued(), func(w *fixture) { // without an attempt there is no entry
		w.check(requeue(w, "me"))
		w.check(cancel(w, "me"))
		if d := w.doc(); len(d.History) != 0 || d.Error.Message != "cancelled by me" {
			w.Errorf("%+v", d)
		}
	})
	inBubble(t, queued(), func(w *fixture) {
		h := w.acquire("w/1").Hold
		w.check(h.End(w.Context(), analysislock.Completing(h.Now(), "r")))
		w.check(unlock(w, "me"))
		if a := w.doc().History[0]; a.Changes != nil {
			w.Errorf("%+v: there was nothing to unlock", a)
		}
	})
}
