package analysislock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

var (
	asDelivery = options{SkipSuspects: true}
	asAlone    = options{Alone: true}
)

func TestCrash(t *testing.T) {
	inBubble(t, "an acquisition records the crash that it finds", func(w *fixture) {
		w.check(w.acquire("rev/i1/d1", asDelivery).Hold.Renew(w.Context()))
		heartbeat := w.doc().Lock.HeartbeatAt
		die()

		w.acquire("rev/i2/d2", asDelivery)
		d := w.doc()
		same(w, "crashed ", w.outcomes()) // the second attempt runs
		past := d.History[0]
		same(w, "rev/i1", past.Instance())
		same(w, heartbeat, past.EndedAt)
		if last := d.LastError; last.Code != analysislock.Crashed || !strings.Contains(last.Message, "rev/i1") {
			w.Errorf("last error %+v", last)
		}
	})

	inBubble(t, "a suspect runs alone and is failed if that does not help", func(w *fixture) {
		w.serve(w, 10, 0)
		for _, owner := range []string{"i/1", "i/2"} {
			w.acquire(owner, asDelivery)
			die()
		}
		for _, owner := range []string{"i/3", "i/4"} {
			before := w.cell()
			acq := w.acquire(owner, asDelivery)
			same(w, analysislock.Suspect, acq.Reason)
			same(w, false, acq.MustRun)
			same(w, before.Rev, w.cell().Rev) // a skip writes nothing
			w.acquire(owner, asAlone)
			die()
		}

		acq, d := w.acquire("i/5", asDelivery), w.doc()
		same(w, analysislock.Crashed, acq.Reason)
		same(w, d.Error.Message, acq.Message)
		same(w, lease.Grant{Owner: "i/5", Token: 5}, acq.Grant)
		same(w, lease.Lease{Token: 5, Attempts: 4, Finished: true, FinishedBy: "i/5"}, d.Lock)
		same(w, analysislock.Failed, d.Status)
		same(w, analysislock.Crashed, d.Cause().Code)
		same(w, "crashed crashed crashed* crashed*", w.outcomes())
	})
}

// steps are what can happen to an analysis.
var steps = map[string]func(w *fixture){
	"crash":       func(w *fixture) { w.acquire(name(), asDelivery); die() },
	"beside":      func(w *fixture) { w.acquire(name()); die() },
	"alone":       func(w *fixture) { w.acquire(name(), asAlone); die() },
	"only":        func(w *fixture) { w.acquire(name(), options{SkipSuspects: true, Alone: true}); die() },
	"fail":        func(w *fixture) { h := w.acquire(name()).Hold; w.end(h, retrying(h)) },
	"continue":    releases(analysislock.OutcomeContinued),
	"stop":        releases(analysislock.OutcomeShuttingDown),
	"lose":        releases(analysislock.OutcomeLockLost, asAlone),
	"unlock live": func(w *fixture) { w.acquire(name()); w.check(w.unlock("")) },
	"unlock dead": func(w *fixture) { w.acquire(name()); die(); w.check(w.unlock("")) },
	"unlock free": func(w *fixture) { w.check(w.unlock("me")) },
	"requeue":     func(w *fixture) { w.check(w.requeue("me")) },
}

func releases(outcome string, o ...options) func(w *fixture) {
	return func(w *fixture) {
		h := w.acquire(name(), o...).Hold
		w.end(h, analysislock.Releasing(h.Now(), outcome, "", false))
	}
}

// name returns a new owner.
func name() string { return "i/" + time.Now().String() }

func TestSuspect(t *testing.T) {
	const acquired, suspect, killer = "", analysislock.Suspect, analysislock.Crashed
	const killed = "crash, crash, alone, alone, crash, requeue, "
	for name, c := range map[string]struct {
		steps, next string // next is how the following acquisition ends
	}{
		"one":                             {"crash", acquired},
		"two":                             {"crash, crash", suspect},
		"two, then a failure":             {"crash, crash, fail", acquired},
		"a failure between":               {"crash, fail, crash", acquired},
		"a continuation between":          {"crash, continue, crash", acquired},
		"a stop between":                  {"crash, stop, crash", suspect},
		"two, then a stop":                {"crash, crash, stop", suspect},
		"an operator unlocked a live run": {"crash, unlock live", acquired},
		"an operator unlocked a dead one": {"crash, unlock dead", suspect},
		"two, then an operator requeued":  {"crash, crash, requeue", suspect},
		"an operator requeued between":    {"crash, requeue, crash, unlock free", suspect},
		"one, then an operator, often":    {"crash, requeue, unlock free, requeue", acquired},

		"two that always run alone, as in taskguard run": {"only, only", killer},
		"one of the last two was beside others":          {"crash, crash, alone, beside, alone", suspect},
		"a requeued killer is still a suspect":           {killed + "alone", suspect},
		"a requeued killer has two more attempts alone":  {killed + "alone, alone", killer},
		// Attempts that say nothing do not use up those two.
		"a requeued killer that only loses its lock": {killed + "lose, lose, lose", suspect},
	} {
		inBubble(t, name, func(w *fixture) {
			w.serve(w, 10, 0)
			for step := range strings.SplitSeq(c.steps, ", ") {
				steps[step](w)
			}
			if acq := w.acquire("i/last", asDelivery); acq.Reason != c.next {
				w.Errorf("%+v after %q; want %q", acq, w.outcomes(), c.next)
			}
		})
	}
}

func TestDelay(t *testing.T) {
	inBubble(t, "it frees the lock and is counted", func(w *fixture) {
		steps["crash"](w)
		steps["crash"](w)
		task := func(time.Time) string { return "task" }
		for n := 1; n <= 10; n++ {
			skipped := w.acquire("i/x", asDelivery)
			same(w, false, skipped.MustRun)
			next, err := w.locks.Delay(w.Context(), skipped, 15*time.Second, task)
			w.check(err)
			d := w.doc()
			same(w, d.ReadAt.Add(15*time.Second).Truncate(time.Millisecond), next)
			same(w, next, d.NextAttemptAt)
			same(w, "task", d.BookedTask)
			same(w, analysislock.Queued, d.Status)
			same(w, lease.Lease{Token: 2, Attempts: 2}, d.Lock)
			same(w, n, d.History[1].Delays)
			same(w, analysislock.Crashed, d.LastError.Code)
			same(w, "crashed crashed", w.outcomes())
			if _, err := w.locks.Delay(w.Context(), skipped, time.Second, task); !errors.Is(err, lease.ErrConflict) {
				w.Fatalf("the delay of a stale reading: %v, want a conflict", err)
			}
			time.Sleep(15 * time.Second)
		}
		same(w, true, w.acquire("i/x", asDelivery).MustRun)
		w.acquire("i/3")
		same(w, false, w.doc().History[2].Alone)
	})

	inBubble(t, "it is counted without a queue too", func(w *fixture) {
		steps["crash"](w)
		steps["crash"](w)
		_, err := w.locks.Delay(w.Context(), w.acquire("i/x", asDelivery), time.Minute, nil)
		w.check(err)
		d := w.doc()
		same(w, 1, d.History[1].Delays)
		same(w, true, d.NextAttemptAt.IsZero())
		same(w, "", d.BookedTask)
	})
}
