package analysislock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// fixture is a store in memory with one analysis, x, in virtual time.
type fixture struct {
	*testing.T
	lease.Memory[analysislock.Analysis]
	locks *analysislock.Locks
}

func inBubble(t *testing.T, x analysislock.Analysis, run func(w *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{T: t}
		w.Put("x", x)
		var err error
		if w.locks, err = analysislock.New(&w.Memory, lease.Policy{MaxAttempts: 3}, 0, nil); err != nil {
			t.Fatal(err)
		}
		run(w)
	})
}

func (w *fixture) acquire(owner string) analysislock.Acquisition {
	w.Helper()
	acq, err := w.locks.AcquireAnalysisLock(w.Context(), "x", owner, 0)
	if err != nil || acq.Acquired != (acq.Hold != nil) || acq.Acquired != (acq.Reason == "") {
		w.Fatalf("acquire as %s: %+v, %v", owner, acq, err)
	}
	return acq
}

func (w *fixture) doc() analysislock.Analysis {
	w.Helper()
	c, err := w.Load(w.Context(), "x")
	if err != nil {
		w.Fatal(err)
	}
	return c.Doc
}

func queued() analysislock.Analysis {
	return analysislock.Analysis{ID: "x", Status: analysislock.Queued, Input: 7}
}

func TestARunKeepsItsLockAndCompletes(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		acq, refreshes := w.acquire("w/1"), 0
		if d := w.doc(); d.Status != analysislock.Processing || acq.Attempt != 1 || acq.Grant != d.Lock.Grant() || acq.Stolen || acq.Last || acq.RunTime != 0 {
			w.Errorf("%+v of %+v", acq, d)
		}
		err := acq.Hold.Run(w.Context(), func(_ context.Context, work analysislock.Work) error {
			time.Sleep(lease.DefaultTTL * 5 / 6)
			if got := w.acquire("w/2"); got.Reason != analysislock.Locked || got.Grant != acq.Grant || got.Remaining <= 0 || string(work.Input) != "7" {
				w.Errorf("%+v, with %s", got, work.Input)
			}
			return nil
		}, func(context.Context, time.Duration, error) { refreshes++ })
		if err != nil || refreshes != 2 {
			w.Errorf("%v after %d refreshes, want 2", err, refreshes)
		}
		if err := acq.Hold.Complete(w.Context(), "done"); err != nil {
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

func TestAFailureForGoodIsRecorded(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		if err := w.acquire("w/1").Hold.Fail(w.Context(), "c", "m"); err != nil {
			w.Error(err)
		}
		if d := w.doc(); d.Status != analysislock.Failed || d.Error == nil || *d.Error != (analysislock.Error{Code: "c", Message: "m"}) || d.Lock.FinishedBy != "w/1" {
			w.Errorf("%+v, error %v", d, d.Error)
		}
	})
}

func TestARunReturnsItsBodysErrorOrThatOfItsInput(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		failed, unreadable, ran := errors.New("failed"), errors.New("unreadable"), false
		body := func(context.Context, analysislock.Work) error { ran = true; return failed }
		if err := w.acquire("w/1").Hold.Run(w.Context(), body); !errors.Is(err, failed) || !ran {
			w.Errorf("%v", err)
		}
		time.Sleep(lease.DefaultTTL)
		var err error
		w.locks, err = analysislock.New(&w.Memory, lease.Policy{}, 0, func(context.Context, analysislock.Analysis) (analysislock.Work, error) {
			return analysislock.Work{}, unreadable
		})
		if err != nil {
			w.Fatal(err)
		}
		ran = false
		if err := w.acquire("w/2").Hold.Run(w.Context(), body); !errors.Is(err, unreadable) || ran {
			w.Errorf("%v; ran %v", err, ran)
		}
		time.Sleep(lease.DefaultTTL)
		w.faulty()
		w.Put("x", analysislock.Analysis{Input: math.NaN()}) // has no JSON
		if err := w.acquire("w/3").Hold.Run(w.Context(), body); err == nil || ran {
			w.Errorf("%v; ran %v", err, ran)
		}
		if _, err := analysislock.New(&w.Memory, lease.Policy{TTL: -1}, 0, nil); err == nil {
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
			"run":      old.Run(w.Context(), func(context.Context, analysislock.Work) error { return nil }),
			"refresh":  old.Refresh(w.Context(), 0),
			"complete": old.Complete(w.Context(), "late"),
			"fail":     old.Fail(w.Context(), "c", "late"),
			"retry":    retry(w.Context(), nil, old),
			"by name":  w.locks.RefreshAnalysisLock(w.Context(), "x", "w/1", 0),
		} {
			if !errors.Is(err, lease.ErrLost) {
				w.Errorf("%s: %v, want ErrLost", name, err)
			}
		}
		silent := errors.Join(old.Release(w.Context(), analysislock.OutcomeShuttingDown, true),
			w.locks.ReleaseAnalysisLock(w.Context(), "x", "w/1"), w.locks.ReleaseAnalysisLock(w.Context(), "missing", "w/1"))
		if after := w.doc(); silent != nil || after.Lock != before.Lock || after.Status != before.Status || after.LastError != nil {
			w.Errorf("%v; %+v, was %+v", silent, after, before)
		}
	})
}

func TestAnotherProcessRefreshesAndReleasesByOwner(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		w.acquire("w/1")
		if err := w.locks.RefreshAnalysisLock(w.Context(), "x", "w/1", time.Hour); err != nil || time.Until(w.doc().Lock.ExpiresAt) != time.Hour {
			w.Errorf("%v; %+v", err, w.doc().Lock)
		}
		if err := w.locks.ReleaseAnalysisLock(w.Context(), "x", "w/1"); err != nil || w.doc().Lock.Owner != "" || w.doc().Status != analysislock.Queued {
			w.Errorf("%v; %+v", err, w.doc())
		}
	})
}

func TestTheLastErrorIsRecordedWhereNoAttemptIsLeft(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		for _, owner := range []string{"w/1", "w/2"} {
			if _, err := w.acquire(owner).Hold.Retry(w.Context(), "c", "ü\xff"+strings.Repeat("x", 5000), 0); err != nil {
				w.Error(err)
			}
		}
		if e := w.doc().LastError; e.Code != "c" || e.Message != "ü"+strings.Repeat("x", 4093) {
			w.Errorf("%s, a message of %d bytes", e.Code, len(e.Message))
		}
		if acq := w.acquire("w/3"); !acq.Last {
			w.Errorf("%+v, want the last attempt", acq)
		}
		time.Sleep(lease.DefaultTTL) // it has crashed
		acq, d := w.acquire("w/4"), w.doc()
		if acq.Reason != analysislock.AttemptsExhausted || acq.Grant.Token != 4 || d.Status != analysislock.Failed || d.LastError == nil || d.LastError.Code != "c" ||
			d.Error.Code != analysislock.AttemptsExhausted || !strings.HasPrefix(d.Error.Message, "gave up after 3 attempts; last error: üx") {
			w.Errorf("%+v; %+v", acq, d)
		}
	})
}

func TestAnIDThatFirestoreCannotHoldIsRefused(t *testing.T) {
	long := strings.Repeat("x", 1501)
	for _, id := range []string{"", ".", "..", "../x", "a/b/c", "/", "__x__", "__x____", long, "\xff", "a\nb", "\x7f"} {
		if err := analysislock.CheckID(id); !errors.Is(err, lease.ErrInvalidKey) {
			t.Errorf("CheckID(%.20q) = %v, want ErrInvalidKey", id, err)
		}
	}
	for _, id := range []string{"a", "...", "__x", "x__", "___", long[:1500], "東京 #?%", "__"} {
		if err := analysislock.CheckID(id); err != nil {
			t.Errorf("CheckID(%.20q) = %v", id, err)
		}
	}
	inBubble(t, queued(), func(w *fixture) {
		_, acquire := w.locks.AcquireAnalysisLock(w.Context(), "a/b", "w/1", 0)
		_, unlock := w.locks.Unlock(w.Context(), "a/b", nil)
		for _, err := range []error{acquire, unlock, w.locks.RefreshAnalysisLock(w.Context(), "a/b", "w/1", 0), w.locks.ReleaseAnalysisLock(w.Context(), "a/b", "w/1")} {
			if !errors.Is(err, lease.ErrInvalidKey) {
				t.Errorf("%v, want ErrInvalidKey", err)
			}
		}
	})
}
