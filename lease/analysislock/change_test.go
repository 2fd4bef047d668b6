package analysislock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Else no document could hold it, and the finish would be tried for a minute by each delivery.
func TestFailure(t *testing.T) {
	code, message := "ü\xff"+strings.Repeat("c", 100), "ü\xff"+strings.Repeat("m", 5000)
	kept := &failure{Code: "ü" + strings.Repeat("c", 61), Message: "ü" + strings.Repeat("m", 4093)}
	exhausted := &failure{Code: analysislock.AttemptsExhausted, Message: "summary"}
	for name, c := range map[string]struct {
		end         func(now time.Time) ending
		error, last *failure
	}{
		"for good": {func(now time.Time) ending { return analysislock.Failing(now, code, message) }, kept, nil},
		"for now": {func(now time.Time) ending {
			return analysislock.Retrying(now, code, message, time.Time{}, "", false)
		}, nil, kept},
		"for now, of the last attempt": {func(now time.Time) ending {
			return analysislock.Exhausting(now, "summary", code, message)
		}, exhausted, kept},
	} {
		inBubble(t, "it is valid text within its limits, "+name, func(w *fixture) {
			h := w.acquire("w/1").Hold
			w.end(h, c.end(h.Now()))
			d := w.doc()
			same(w, c.error, d.Error)
			same(w, c.last, d.LastError)
			past := d.History[0]
			if c.error == exhausted {
				same(w, *exhausted, failure{Code: past.Code, Message: past.Message})
				return
			}
			same(w, kept.Code, past.Code)
			begin, tail, _ := strings.Cut(past.Message, " … ")
			same(w, kept.Message[:124], begin[:min(124, len(begin))]) // a byte that is not UTF-8 may count
			same(w, strings.Repeat("m", 125), tail)
		})
	}
}

// change is what is done to an analysis that is held by h.
type change = func(w *fixture, h *hold) error

// endingBy returns the change that ends the acquisition.
func endingBy(e func(now time.Time) ending) change {
	return func(w *fixture, h *hold) error { return h.End(w.Context(), e(h.Now())) }
}

// afterwards makes a change once the lock has expired. Before that it is refused.
func afterwards(do func(w *fixture) error) change {
	return func(w *fixture, _ *hold) error {
		if err := do(w); !errors.As(err, new(*lease.HeldError)) {
			w.Errorf("while it is held: %v", err)
		}
		time.Sleep(2 * lease.DefaultTTL)
		return do(w)
	}
}

// adopting adopts what another program has made of the analysis. (R11)
func adopting(status string) change {
	return func(w *fixture, h *hold) error {
		w.rewrite(func(d *analysis) { d.Status, d.Lock.Finished = status, true })
		same(w, false, h.Adoptable())
		wantErr(w, h.End(w.Context(), analysislock.Completing(h.Now(), "own")), lease.ErrLost)
		same(w, true, h.Adoptable())
		return h.End(w.Context(), analysislock.Adopting(h.Now()))
	}
}

// Each change begins with an analysis that is held and has every field, and is compared with
// what it must leave of it.
func TestChange(t *testing.T) {
	none := &analysislock.Checkpoint{}
	free := func(d *analysis) { d.Lock.Owner, d.Lock.HeartbeatAt, d.Lock.ExpiresAt = "", time.Time{}, time.Time{} }
	end := func(d *analysis, outcome, code, message string) {
		past := d.History[0]
		past.EndedAt, past.Outcome, past.Code, past.Message = d.ReadAt, outcome, code, message
		d.History = []analysislock.Attempt{past}
	}
	unbook := func(d *analysis) { d.NextAttemptAt, d.Starts = time.Time{}, 0 }
	finish := func(d *analysis, status string, err *failure) {
		free(d)
		unbook(d)
		d.Status, d.Error, d.Lock.Finished, d.Lock.FinishedBy = status, err, true, "w/1"
	}
	complete := func(d *analysis, result any, err *failure) {
		finish(d, analysislock.Ready, err)
		end(d, analysislock.OutcomeReady, "", "")
		d.Result, d.LastError, d.Progress, d.Checkpoint = result, nil, nil, none
	}
	reopen := func(d *analysis) {
		free(d)
		unbook(d)
		d.Status, d.Lock.Attempts, d.StartedAt = analysislock.Queued, 0, time.Time{}
		d.Error, d.LastError, d.Progress = nil, nil, nil
	}
	for name, c := range map[string]struct {
		do   change
		want func(d *analysis)
	}{
		"unlock": {func(w *fixture, _ *hold) error {
			_, err := w.locks.Unlock(w.Context(), "x", "", nil, "task")
			return err
		}, func(d *analysis) {
			free(d)
			unbook(d)
			end(d, analysislock.OutcomeLockLost, "", "")
			d.Status, d.BookedTask = analysislock.Queued, "task"
		}},
		"cancel": {func(w *fixture, _ *hold) error { return w.cancel("ana") }, func(d *analysis) {
			end(d, analysislock.OutcomeCancelled, analysislock.Cancelled, "cancelled by ana")
			past := &d.History[0]
			by := analysislock.OperatorChange{Change: analysislock.ChangeCancelled, By: "ana", At: past.EndedAt}
			past.Changes = []analysislock.OperatorChange{by}
			finish(d, analysislock.Failed, &failure{Code: past.Code, Message: past.Message})
			d.Lock.Token, d.Lock.FinishedBy = 2, "operator"
		}},
		"requeue": {afterwards(func(w *fixture) error { return w.requeue("") }), reopen},
		"requeue, fresh": {afterwards((*fixture).requeueFresh), func(d *analysis) {
			reopen(d)
			d.Checkpoint, d.Acts = none, analysislock.Acts{}
		}},
		"requeue of what another program finished": {func(w *fixture, _ *hold) error {
			w.rewrite(func(d *analysis) { d.Status, d.Lock.Finished = analysislock.Ready, true })
			return w.requeue("")
		}, func(d *analysis) { reopen(d); d.Checkpoint = none }},
		"raise the token": {afterwards(func(w *fixture) error {
			_, err := w.locks.RaiseToken(w.Context(), "x", 9)
			return err
		}), func(d *analysis) { d.Lock.Token = 9 }},
		"complete": {
			endingBy(func(now time.Time) ending { return analysislock.Completing(now, "new") }),
			func(d *analysis) { complete(d, "new", nil) },
		},
		"fail": {
			endingBy(func(now time.Time) ending { return analysislock.Failing(now, "c", "m") }),
			func(d *analysis) {
				finish(d, analysislock.Failed, &failure{Code: "c", Message: "m"})
				end(d, analysislock.OutcomeFailed, "c", "m")
			},
		},
		"retry": {endingBy(func(now time.Time) ending {
			return analysislock.Retrying(now, "c", "m", now.Add(time.Minute), "", false)
		}), func(d *analysis) {
			free(d)
			end(d, analysislock.OutcomeRetry, "c", "m")
			d.Status, d.NextAttemptAt = analysislock.Queued, d.ReadAt.Add(time.Minute)
			d.LastError = &failure{Code: "c", Message: "m"}
		}},
		"release": {endingBy(func(now time.Time) ending {
			return analysislock.Releasing(now, analysislock.OutcomeContinued, "", true)
		}), func(d *analysis) {
			free(d)
			end(d, analysislock.OutcomeContinued, "", "")
			d.Status, d.Lock.Attempts = analysislock.Queued, 0
		}},
		"adopt READY": {adopting(analysislock.Ready), func(d *analysis) { complete(d, d.Result, d.Error) }},
		"adopt FAILED": {adopting(analysislock.Failed), func(d *analysis) {
			finish(d, analysislock.Failed, d.Error)
			end(d, analysislock.OutcomeFailed, "", "")
		}},
	} {
		inBubble(t, name, func(w *fixture) {
			h := w.acquire("w/1").Hold
			w.rewrite(func(d *analysis) {
				d.Result, d.Error, d.LastError = "theirs", &failure{Code: "e"}, &failure{Code: "l"}
				d.Progress, d.Checkpoint = &analysislock.Progress{Message: "p"}, &analysislock.Checkpoint{Value: "c"}
				d.CreatedAt, d.NextAttemptAt, d.Starts = w.now(), w.now(), 1
			})
			want := w.doc()
			w.check(c.do(w, h))
			c.want(&want)
			got := w.doc()
			want.ReadAt = got.ReadAt
			aPause := func(a, b time.Time) bool { return a.Sub(b).Abs() < time.Second } // after a conflict
			if diff := cmp.Diff(want, got, cmp.Comparer(aPause)); diff != "" {
				w.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
