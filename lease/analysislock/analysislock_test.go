package analysislock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

// ahead is how far the store's clock is ahead of the worker's, which decides nothing.
const ahead = 7 * time.Minute

// fixture is a store in memory with one analysis, x, in virtual time.
type fixture struct {
	*testing.T
	lease.Memory[analysislock.Analysis]
	locks *analysislock.Locks
}

func (w *fixture) Load(ctx context.Context, key string, _ lease.Want) (lease.Cell[analysislock.Analysis], error) {
	c, err := w.Memory.Load(ctx, key, lease.OnlyLease)
	c.Doc.ReadAt = c.At
	return c, err
}

// now returns the store's time.
func (w *fixture) now() time.Time { return time.Now().Add(ahead) }

func inBubble(t *testing.T, x analysislock.Analysis, run func(w *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{T: t}
		w.Now = w.now
		w.Put("x", x)
		w.serve(w, lease.Policy{MaxAttempts: 3}, 0, nil)
		run(w)
	})
}

// serve makes the fixture's locks anew.
func (w *fixture) serve(s lease.Store[analysislock.Analysis], p lease.Policy, maxRun time.Duration,
	work func(ctx context.Context, c lease.Cell[analysislock.Analysis]) (analysislock.Work, error),
) {
	w.Helper()
	var err error
	if w.locks, err = analysislock.New(s, p, maxRun, work); err != nil {
		w.Fatal(err)
	}
}

func (w *fixture) acquire(owner string) analysislock.Acquisition {
	w.Helper()
	acq, err := w.locks.AcquireAnalysisLock(w.Context(), "x", owner, 0, analysislock.AcquireOptions{})
	if err != nil || acq.Acquired != (acq.Hold != nil) || acq.Acquired != (acq.Reason == "") {
		w.Fatalf("acquire as %s: %+v, %v", owner, acq, err)
	}
	return acq
}

// runWork runs body with the work of h, as a delivery does.
func (w *fixture) runWork(h *analysislock.Hold, body func(work analysislock.Work) error, renewed lease.Renewed) error {
	return h.Run(w.Context(), func(ctx context.Context) error {
		work, err := w.locks.Work(ctx, h)
		if err != nil {
			return err
		}
		return body(work)
	}, renewed)
}

func (w *fixture) doc() analysislock.Analysis {
	w.Helper()
	c, err := w.Load(w.Context(), "x", lease.OnlyLease)
	if err != nil {
		w.Fatal(err)
	}
	return c.Doc
}

func queued() analysislock.Analysis {
	return analysislock.Analysis{ID: "x", Status: analysislock.Queued, Input: 7}
}

func TestARunKeepsItsLockAndCompletes(t *testing.T) {
	x := queued()
	x.Checkpoint, x.Acts = &analysislock.Checkpoint{Value: "c"}, analysislock.Acts{"a": *done("null")}
	inBubble(t, x, func(w *fixture) {
		acq, refreshes := w.acquire("w/1"), 0
		if d := w.doc(); d.Status != analysislock.Processing || acq.Attempt != 1 || acq.Grant != d.Lock.Grant() || acq.Stolen || acq.Last || acq.RunTime != 0 {
			w.Errorf("%+v of %+v", acq, d)
		}
		err := w.runWork(acq.Hold, func(work analysislock.Work) error {
			time.Sleep(lease.DefaultTTL * 5 / 6)
			if got := w.acquire("w/2"); got.Reason != analysislock.Locked || got.Grant != acq.Grant || got.Remaining <= 0 || fmt.Sprintf("%s %s %d", work.Input, work.Checkpoint, len(work.Acts)) != `7 "c" 1` {
				w.Errorf("%+v, with %+v", got, work)
			}
			return nil
		}, func(context.Context, time.Duration, error) { refreshes++ })
		if err != nil || refreshes != 2 {
			w.Errorf("%v after %d refreshes, want 2", err, refreshes)
		}
		if err := acq.Hold.End(w.Context(), analysislock.Completing(acq.Hold.Now(), "done")); err != nil {
			w.Error(err)
		}
		if d := w.doc(); d.Status != analysislock.Ready || d.Result != "done" || d.Lock.Owner != "" || d.Lock.FinishedBy != "w/1" {
			w.Errorf("%+v", d)
		}
		if got := w.acquire("w/3"); got.Reason != analysislock.AlreadyFinished || got.Status != analysislock.Ready {
			w.Errorf("%+v", got)
		}
	})
}

// Else no document could hold it, and the finish would be tried for a minute by each delivery.
func TestAFailureIsRecordedAsValidTextWithinItsLimits(t *testing.T) {
	type failure = analysislock.Error
	long := failure{Code: "ü\xff" + strings.Repeat("c", 100), Message: "ü\xff" + strings.Repeat("m", 5000)}
	kept := failure{Code: "ü" + strings.Repeat("c", 61), Message: "ü" + strings.Repeat("m", 4093)}
	exhausted := failure{Code: analysislock.AttemptsExhausted, Message: "summary"}
	tail := map[bool]string{false: " … " + strings.Repeat("m", 125)}
	for name, tc := range map[string]struct {
		do                func(ctx context.Context, h *analysislock.Hold, f failure) error
		status            string
		error, last, past *failure // past is in the history
	}{
		"for good": {func(ctx context.Context, h *analysislock.Hold, f failure) error {
			return h.End(ctx, analysislock.Failing(h.Now(), f.Code, f.Message))
		}, analysislock.Failed, &kept, nil, &kept},
		"for now": {func(ctx context.Context, h *analysislock.Hold, f failure) error {
			return h.End(ctx, analysislock.Retrying(h.Now(), f.Code, f.Message, time.Time{}, "", false))
		}, analysislock.Queued, nil, &kept, &kept},
		"for now, of the last attempt": {func(ctx context.Context, h *analysislock.Hold, f failure) error {
			return h.End(ctx, analysislock.Exhausting(h.Now(), "summary", f.Code, f.Message))
		}, analysislock.Failed, &exhausted, &kept, &exhausted},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				w.check(tc.do(w.Context(), w.acquire("w/1").Hold, long))
				d := w.doc()
				if d.Status != tc.status || !reflect.DeepEqual(d.Error, tc.error) || !reflect.DeepEqual(d.LastError, tc.last) || d.Lock.Owner != "" {
					w.Errorf("%+v; error %+v, last %+v", d, d.Error, d.LastError)
				}
				past, begin := d.History[0], tc.past.Message[:min(len(tc.past.Message), 124)]
				if past.Code != tc.past.Code || !strings.HasPrefix(past.Message, begin) || !strings.HasSuffix(past.Message, tail[tc.past == &exhausted]) {
					w.Errorf("history %+v", past)
				}
			})
		})
	}
}

// Each change begins with an analysis that is held and has every field, and is compared with
// what it must leave of it.
func TestAChangeLeavesTheOtherFields(t *testing.T) {
	type document = analysislock.Analysis
	none := &analysislock.Checkpoint{}
	free := func(d *document) { d.Lock.Owner, d.Lock.HeartbeatAt, d.Lock.ExpiresAt = "", time.Time{}, time.Time{} }
	end := func(d *document, outcome, code, message string) {
		past := d.History[0]
		past.EndedAt, past.Outcome, past.Code, past.Message = d.ReadAt, outcome, code, message
		d.History = []analysislock.Attempt{past}
	}
	finish := func(d *document, status string, err *analysislock.Error) {
		free(d)
		d.Status, d.Error, d.NextAttemptAt, d.Lock.Finished, d.Lock.FinishedBy = status, err, time.Time{}, true, "w/1"
	}
	reopen := func(d *document) {
		free(d)
		d.Status, d.Error, d.LastError, d.StartedAt, d.Progress, d.NextAttemptAt = analysislock.Queued, nil, nil, time.Time{}, nil, time.Time{}
		d.Lock.Attempts = 0
	}
	failure, cancelled := &analysislock.Error{Code: "c", Message: "m"}, &analysislock.Error{Code: analysislock.Cancelled, Message: "cancelled by ana"}
	requeue := func(fresh bool) func(w *fixture, h *analysislock.Hold) error {
		return func(w *fixture, _ *analysislock.Hold) error {
			time.Sleep(2 * lease.DefaultTTL) // else it is refused
			_, err := w.locks.Requeue(w.Context(), "x", "", nil, fresh, "")
			return err
		}
	}
	adopt := func(status string) func(w *fixture, h *analysislock.Hold) error {
		return func(w *fixture, h *analysislock.Hold) error {
			d := w.doc()
			d.Status, d.Lock.Finished = status, true
			w.Put("x", d)
			if early, err := h.Adoptable(), h.End(w.Context(), analysislock.Completing(h.Now(), "own")); early || !errors.Is(err, lease.ErrLost) || !h.Adoptable() {
				w.Errorf("complete: %v; adoptable %v, then %v", err, early, h.Adoptable())
			}
			return h.End(w.Context(), analysislock.Adopting(h.Now()))
		}
	}
	for name, tc := range map[string]struct {
		do   func(w *fixture, h *analysislock.Hold) error
		want func(d *document)
	}{
		"unlock": {func(w *fixture, _ *analysislock.Hold) error {
			_, err := w.locks.Unlock(w.Context(), "x", "", nil, "task")
			return err
		}, func(d *document) {
			free(d)
			end(d, analysislock.OutcomeLockLost, "", "")
			d.Status, d.NextAttemptAt, d.BookedTask = analysislock.Queued, time.Time{}, "task"
		}},
		"cancel": {func(w *fixture, _ *analysislock.Hold) error {
			_, err := w.locks.Cancel(w.Context(), "x", "ana", nil)
			return err
		}, func(d *document) {
			end(d, analysislock.OutcomeCancelled, cancelled.Code, cancelled.Message)
			past := &d.History[0]
			past.Changes = []analysislock.OperatorChange{{Change: analysislock.ChangeCancelled, By: "ana", At: past.EndedAt}}
			finish(d, analysislock.Failed, cancelled)
			d.Lock.Token, d.Lock.FinishedBy = 2, "operator"
		}},
		"requeue":        {requeue(false), reopen},
		"requeue, fresh": {requeue(true), func(d *document) { reopen(d); d.Checkpoint, d.Acts = none, analysislock.Acts{} }},
		"requeue of what another program finished": {func(w *fixture, h *analysislock.Hold) error {
			d := w.doc()
			d.Status, d.Lock.Finished = analysislock.Ready, true
			w.Put("x", d)
			return requeue(false)(w, h)
		}, func(d *document) { reopen(d); d.Checkpoint = none }},
		"raise the token": {func(w *fixture, _ *analysislock.Hold) error {
			if _, err := w.locks.RaiseToken(w.Context(), "x", 9); !errors.As(err, new(*lease.HeldError)) {
				w.Errorf("while it is held: %v", err)
			}
			time.Sleep(2 * lease.DefaultTTL)
			_, err := w.locks.RaiseToken(w.Context(), "x", 9)
			return err
		}, func(d *document) { d.Lock.Token = 9 }},
		"complete": {func(w *fixture, h *analysislock.Hold) error {
			return h.End(w.Context(), analysislock.Completing(h.Now(), "new"))
		}, func(d *document) {
			finish(d, analysislock.Ready, nil)
			end(d, analysislock.OutcomeReady, "", "")
			d.Result, d.LastError, d.Progress, d.Checkpoint = "new", nil, nil, none
		}},
		"fail": {func(w *fixture, h *analysislock.Hold) error {
			return h.End(w.Context(), analysislock.Failing(h.Now(), "c", "m"))
		}, func(d *document) {
			finish(d, analysislock.Failed, failure)
			end(d, analysislock.OutcomeFailed, "c", "m")
		}},
		"retry": {func(w *fixture, h *analysislock.Hold) error {
			next := h.Now().Add(time.Minute).Truncate(time.Millisecond)
			err := h.End(w.Context(), analysislock.Retrying(h.Now(), "c", "m", next, "", false))
			if d := w.doc(); !d.Waits() || !next.Truncate(time.Second).Equal(w.now().Add(time.Minute).Truncate(time.Second)) {
				w.Errorf("next at %v", next)
			}
			return err
		}, func(d *document) {
			free(d)
			end(d, analysislock.OutcomeRetry, "c", "m")
			d.Status, d.LastError, d.NextAttemptAt = analysislock.Queued, failure, d.ReadAt.Add(time.Minute)
		}},
		"release": {func(w *fixture, h *analysislock.Hold) error {
			return h.End(w.Context(), analysislock.Releasing(h.Now(), analysislock.OutcomeContinued, "", true))
		}, func(d *document) {
			free(d)
			end(d, analysislock.OutcomeContinued, "", "")
			d.Status, d.Lock.Attempts = analysislock.Queued, 0
		}},
		"adopt READY": {adopt(analysislock.Ready), func(d *document) { // R11: a finish by the holder, and not a loss
			finish(d, analysislock.Ready, d.Error)
			end(d, analysislock.OutcomeReady, "", "")
			d.LastError, d.Progress, d.Checkpoint = nil, nil, none
		}},
		"adopt FAILED": {adopt(analysislock.Failed), func(d *document) {
			finish(d, analysislock.Failed, d.Error)
			end(d, analysislock.OutcomeFailed, "", "")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				h, d := w.acquire("w/1").Hold, w.doc()
				d.Result, d.Error, d.LastError = "theirs", &analysislock.Error{Code: "e"}, &analysislock.Error{Code: "l"}
				d.Progress, d.Checkpoint = &analysislock.Progress{Message: "p"}, &analysislock.Checkpoint{Value: "c"}
				d.CreatedAt, d.NextAttemptAt = w.now(), w.now()
				w.Put("x", d)
				w.check(tc.do(w, h))
				tc.want(&d)
				got := w.doc()
				d.ReadAt = got.ReadAt
				if past := &got.History[0]; !past.EndedAt.IsZero() { // a conflict's pause is milliseconds
					past.EndedAt, got.NextAttemptAt = past.EndedAt.Truncate(time.Second), got.NextAttemptAt.Truncate(time.Second)
					for i := range past.Changes {
						past.Changes[i].At = past.Changes[i].At.Truncate(time.Second)
					}
				}
				if !reflect.DeepEqual(got, d) { //nolint:govet // its only error is nil
					w.Errorf("got\n%+v, want\n%+v; history %+v", got, d, got.History)
				}
			})
		})
	}
}

// The reply to the last acquisition is lost.
func TestAnAnalysisIsNotAcquiredOnceItsRunTimeIsOver(t *testing.T) {
	for most, want := range map[int]analysislock.Error{
		2: {Code: analysislock.AttemptsExhausted, Message: "gave up after 2 attempts; last error: m"},
		3: {Code: analysislock.RunTimeExhausted, Message: "gave up 1h0m0s after the first attempt began"},
	} {
		inBubble(t, queued(), func(w *fixture) {
			s := leasetest.NewFaulty[analysislock.Analysis](w, nil)
			w.serve(s, lease.Policy{MaxAttempts: most}, time.Hour, nil)
			for i, left := range []time.Duration{time.Hour, time.Millisecond} {
				acq := w.acquire("w/1")
				if acq.RunTime != left || acq.Last != (i+1 == most) {
					w.Errorf("%+v, want %v left", acq, left)
				}
				w.check(retry(w.Context(), acq.Hold))
				time.Sleep(left - time.Millisecond)
			}
			time.Sleep(time.Millisecond)
			s.SetPlan(leasetest.On(leasetest.Swap, leasetest.DropAfter))
			acq, d := w.acquire("w/2"), w.doc()
			if acq.Reason != want.Code || acq.Grant != (lease.Grant{Owner: "w/2", Token: 3}) || d.Status != analysislock.Failed || *d.Error != want || *d.LastError != (analysislock.Error{Code: "c", Message: "m"}) || len(d.History) != 2 {
				w.Errorf("%+v; %+v", acq, d)
			}
			if want := (lease.Lease{Token: 3, Attempts: most, Finished: true, FinishedBy: "w/2"}); d.Lock != want {
				w.Errorf("lock %+v, want %+v", d.Lock, want)
			}
		})
	}
}

func TestARunReturnsItsBodysErrorOrThatOfItsInput(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		failed, unreadable, ran := errors.New("failed"), errors.New("unreadable"), false
		body := func(analysislock.Work) error { ran = true; return failed }
		if err := w.runWork(w.acquire("w/1").Hold, body, nil); !errors.Is(err, failed) || !ran {
			w.Errorf("%v", err)
		}
		time.Sleep(lease.DefaultTTL)
		w.serve(w, lease.Policy{}, 0, func(context.Context, lease.Cell[analysislock.Analysis]) (analysislock.Work, error) {
			return analysislock.Work{}, unreadable
		})
		ran = false
		if err := w.runWork(w.acquire("w/2").Hold, body, nil); !errors.Is(err, unreadable) || ran {
			w.Errorf("%v; ran %v", err, ran)
		}
		time.Sleep(lease.DefaultTTL)
		w.faulty()
		w.Put("x", analysislock.Analysis{Input: math.NaN()}) // has no JSON
		if err := w.runWork(w.acquire("w/3").Hold, body, nil); err == nil || ran {
			w.Errorf("%v; ran %v", err, ran)
		}
		if _, err := analysislock.New(w, lease.Policy{TTL: -1}, 0, nil); err == nil {
			w.Error("a negative TTL is no error")
		}
	})
}

func TestAProblemIsNamedWithoutItsKind(t *testing.T) {
	d := analysislock.Analysis{Malformed: fmt.Errorf("lockToken is a string: %w", lease.ErrMalformed)}
	if got := d.Problem() + (&analysislock.Analysis{}).Problem(); got != "lockToken is a string" {
		t.Errorf("%q", got)
	}
}

func TestASupersededHoldChangesNothing(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		old := w.acquire("w/1").Hold
		time.Sleep(lease.DefaultTTL)
		if acq := w.acquire("w/2"); !acq.Stolen || acq.Grant.Token != 2 {
			w.Errorf("%+v, want it stolen", acq)
		}
		before := w.doc()
		for name, err := range map[string]error{
			"run":      w.runWork(old, func(analysislock.Work) error { return nil }, nil),
			"refresh":  old.Renew(w.Context()),
			"complete": old.End(w.Context(), analysislock.Completing(old.Now(), "late")),
			"fail":     old.End(w.Context(), analysislock.Failing(old.Now(), "c", "late")),
			"exhaust":  old.End(w.Context(), analysislock.Exhausting(old.Now(), "summary", "c", "late")),
			"retry":    retry(w.Context(), old),
			"by name":  w.locks.RefreshAnalysisLock(w.Context(), "x", "w/1", 0),
		} {
			if !errors.Is(err, lease.ErrLost) {
				w.Errorf("%s: %v, want ErrLost", name, err)
			}
		}
		if err := old.End(w.Context(), analysislock.Releasing(old.Now(), analysislock.OutcomeShuttingDown, "", true)); !errors.Is(err, lease.ErrLost) {
			w.Errorf("release: %v, want ErrLost", err)
		}
		silent := errors.Join(w.locks.ReleaseAnalysisLock(w.Context(), "x", "w/1"), w.locks.ReleaseAnalysisLock(w.Context(), "missing", "w/1"))
		if after := w.doc(); silent != nil || after.Lock != before.Lock || after.Status != before.Status || !reflect.DeepEqual(after.LastError, before.LastError) {
			w.Errorf("%v; %+v, was %+v", silent, after, before)
		}
	})
}

func TestAnotherProcessRefreshesAndReleasesByOwner(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		w.acquire("w/1")
		if err := w.locks.RefreshAnalysisLock(w.Context(), "x", "w/1", time.Hour); err != nil || w.doc().Lock.ExpiresAt.Sub(w.now()) != time.Hour {
			w.Errorf("%v; %+v", err, w.doc().Lock)
		}
		w.faulty().SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse, leasetest.Refuse))
		for _, err := range []error{w.locks.RefreshAnalysisLock(w.Context(), "x", "w/1", 0), w.locks.ReleaseAnalysisLock(w.Context(), "x", "w/1")} {
			if !errors.Is(err, lease.ErrRefused) {
				w.Errorf("%v, want ErrRefused", err)
			}
		}
		if err := w.locks.ReleaseAnalysisLock(w.Context(), "x", "w/1"); err != nil || w.doc().Lock.Owner != "" || w.doc().Status != analysislock.Queued {
			w.Errorf("%v; %+v", err, w.doc())
		}
	})
}

func TestAnIDThatFirestoreCannotHoldIsRefused(t *testing.T) {
	for bytes, want := range map[int]error{1500: nil, 1501: lease.ErrInvalidKey} {
		if err := analysislock.CheckID(strings.Repeat("x", bytes)); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, want %v", bytes, err, want)
		}
	}
	inBubble(t, queued(), func(w *fixture) {
		if _, err := w.locks.AcquireAnalysisLock(w.Context(), "x", "w/1", -1, analysislock.AcquireOptions{}); err == nil {
			t.Error("a negative TTL is no error")
		}
		_, acquire := w.locks.AcquireAnalysisLock(w.Context(), "a/b", "w/1", 0, analysislock.AcquireOptions{})
		_, unlock := w.locks.Unlock(w.Context(), "a/b", "", nil, "")
		for _, err := range []error{acquire, unlock, w.locks.RefreshAnalysisLock(w.Context(), "a/b", "w/1", 0), w.locks.ReleaseAnalysisLock(w.Context(), "a/b", "w/1")} {
			if !errors.Is(err, lease.ErrInvalidKey) {
				t.Errorf("%v, want ErrInvalidKey", err)
			}
		}
	})
}
