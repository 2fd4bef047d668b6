package analysislock_test

import (
	"context"
	"errors"
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
		if _, err := w.locks.Requeue(w.Context(), "x", nil, true); err != nil || w.doc().Checkpoint.Value != nil {
			w.Errorf("%v; checkpoint %v", err, w.doc().Checkpoint.Value)
		}
	})
}

// A requeue whose reply was lost is made again only if the analysis shows no trace of it.
func TestARequeueIsNotMadeAgainAfterAWorkerHasAcquiredTheAnalysis(t *testing.T) {
	failed := func(d *analysislock.Analysis) {
		d.Status, d.Error = analysislock.Failed, &analysislock.Error{Code: "c"}
		d.Lock.Finished, d.Lock.Attempts = true, 3
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
				if _, err := w.locks.Requeue(w.Context(), "x", nil, false); err != nil {
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

func TestACancelThatWasNotWrittenIsMadeAgain(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		w.faulty().SetPlan(leasetest.On(leasetest.Swap, leasetest.DropBefore))
		if _, err := w.locks.Cancel(w.Context(), "x", "me", nil); err != nil || w.doc().Status != analysislock.Failed {
			w.Errorf("%v; %s, want FAILED", err, w.doc().Status)
		}
	})
}

// Each operation returns the error of its store.
func TestAFailureOfTheStoreIsReturned(t *testing.T) {
	const swap = leasetest.Swap
	for name, tc := range map[string]struct {
		plan leasetest.Plan
		do   func(ctx context.Context, l *analysislock.Locks, h *analysislock.Hold) error
		want error
	}{
		"refresh by name": {leasetest.Every(swap, leasetest.DropBefore), func(ctx context.Context, l *analysislock.Locks, _ *analysislock.Hold) error {
			return l.RefreshAnalysisLock(ctx, "x", "w/1", 0)
		}, lease.ErrUnavailable},
		"release by name": {leasetest.Every(swap, leasetest.DropBefore), func(ctx context.Context, l *analysislock.Locks, _ *analysislock.Hold) error {
			return l.ReleaseAnalysisLock(ctx, "x", "w/1")
		}, lease.ErrUnavailable},
		"flush": {leasetest.Every(swap, leasetest.DropBefore), func(ctx context.Context, _ *analysislock.Locks, h *analysislock.Hold) error {
			h.Report(checkpoint("c"), 0, nil)
			return h.Flush(ctx)
		}, lease.ErrUnavailable},
		"retry": {leasetest.Every(swap, leasetest.DropBefore), retry, lease.ErrUnavailable},
		"retry, whose message does not fit, then the release": {
			leasetest.Any(leasetest.On(swap, leasetest.Refuse), leasetest.Every(swap, leasetest.DropBefore)), retry, lease.ErrUnavailable,
		},
		"retry, whose message does not fit": {leasetest.On(swap, leasetest.Refuse), retry, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				s := leasetest.NewFaulty[analysislock.Analysis](w, nil)
				w.serve(s, lease.Policy{}, 0, nil)
				if _, err := w.locks.AcquireAnalysisLock(w.Context(), "x", "w/0", -1, nil); err == nil {
					w.Error("a negative TTL is no error")
				}
				acq, err := w.locks.AcquireAnalysisLock(w.Context(), "x", "w/1", 0, nil)
				if err != nil {
					w.Fatal(err)
				}
				time.Sleep(time.Second) // else a refresh would write the expiry that is there
				s.SetPlan(tc.plan)
				if err := tc.do(w.Context(), w.locks, acq.Hold); !errors.Is(err, tc.want) {
					w.Errorf("%v, want %v", err, tc.want)
				}
				if d := w.doc(); tc.want == nil && (d.Lock.Owner != "" || *d.LastError != analysislock.Error{Code: "c"}) {
					w.Errorf("%+v, want it released without the message", d)
				}
			})
		})
	}
}

func retry(ctx context.Context, _ *analysislock.Locks, h *analysislock.Hold) error {
	_, err := h.Retry(ctx, "c", "m", 0)
	return err
}

func TestCancel(t *testing.T) {
	finished := func(status, code string) func(w *fixture) {
		return func(w *fixture) {
			d := queued()
			d.Status, d.Lock.Finished = status, true
			if code != "" {
				d.Error = &analysislock.Error{Code: code}
			}
			w.Put("x", d)
		}
	}
	for name, tc := range map[string]struct {
		before func(w *fixture)
		seen   *analysislock.Seen
		err    error
		writes bool
		ended  int // entries of history that end with the cancel
	}{
		"queued":                   {func(*fixture) {}, nil, nil, true, 0},
		"held":                     {func(w *fixture) { w.acquire("w/1") }, nil, nil, true, 1},
		"held, as it was seen":     {func(w *fixture) { w.acquire("w/1") }, &analysislock.Seen{Status: analysislock.Processing, Grant: lease.Grant{Owner: "w/1", Token: 1}}, nil, true, 1},
		"held, not as it was seen": {func(w *fixture) { w.acquire("w/1") }, &analysislock.Seen{Status: analysislock.Queued}, lease.ErrConflict, false, 0},
		"released":                 {func(w *fixture) { w.check(retry(w.Context(), nil, w.acquire("w/1").Hold)) }, nil, nil, true, 0},
		"ready":                    {finished(analysislock.Ready, ""), nil, lease.ErrFinished, false, 0},
		"failed":                   {finished(analysislock.Failed, "c"), nil, lease.ErrFinished, false, 0},
		"failed without error":     {finished(analysislock.Failed, ""), nil, lease.ErrFinished, false, 0},
		"cancelled":                {finished(analysislock.Failed, analysislock.Cancelled), nil, nil, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				tc.before(w)
				was := w.doc()
				before, err := w.locks.Cancel(w.Context(), "x", "ana", tc.seen)
				d := w.doc()
				if !errors.Is(err, tc.err) || before.Status != was.Status {
					w.Errorf("%+v, %v; want %v", before, err, tc.err)
				}
				want := was.Lock
				if tc.writes {
					want = lease.Lease{Token: was.Lock.Token + 1, Attempts: was.Lock.Attempts, Finished: true, FinishedBy: "operator"}
					if d.Status != analysislock.Failed || d.Error == nil || *d.Error != (analysislock.Error{Code: analysislock.Cancelled, Message: "cancelled by ana"}) {
						w.Errorf("%s, %+v", d.Status, d.Error)
					}
				}
				if d.Lock != want {
					w.Errorf("lock %+v, want %+v", d.Lock, want)
				}
				ended := 0
				for _, a := range d.History {
					if a.Outcome == analysislock.OutcomeCancelled && a.Code == analysislock.Cancelled && a.Message == "cancelled by ana" {
						ended++
					}
				}
				if ended != tc.ended {
					w.Errorf("history %+v, want %d cancelled", d.History, tc.ended)
				}
			})
		})
	}
}

func TestACancelEndsTheRunAndRefusesItsResult(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		h, got := w.acquire("w/1").Hold, &outcomes{}
		began := time.Now()
		err := h.Run(w.Context(), func(ctx context.Context, _ analysislock.Work) error {
			time.Sleep(time.Minute)
			if _, err := w.locks.Cancel(w.Context(), "x", "ana", nil); err != nil {
				w.Error(err)
			}
			h.Report(checkpoint("late"), time.Hour, got.done("r"))
			<-ctx.Done()
			return ctx.Err()
		})
		var lost *lease.LostError
		if !errors.As(err, &lost) || lost.Reason != lease.Finished || time.Since(began) > lease.DefaultTTL/3+time.Second {
			w.Errorf("%v after %v", err, time.Since(began))
		}
		got.want(w, "r lost")
		if e := h.Lost().Error; e == nil || e.Code != analysislock.Cancelled {
			w.Errorf("lost with the error %+v, want that of the cancel", e)
		}
		cancelled := w.doc()
		if err := h.Complete(w.Context(), "late"); !errors.Is(err, lease.ErrLost) {
			w.Errorf("complete: %v, want ErrLost", err)
		}
		if d := w.doc(); d.Lock != cancelled.Lock || d.Result != nil || d.Checkpoint != nil {
			w.Errorf("%+v", d)
		}
		if _, err := w.locks.Requeue(w.Context(), "x", nil, false); err != nil || w.acquire("w/2").Grant.Token != 3 {
			w.Errorf("requeue: %v", err)
		}
	})
}
