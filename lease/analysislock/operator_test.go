package analysislock_test

import (
	"errors"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

func unchanged(*analysis) {}

// The store does not answer the commit, nor any call after it. It is made or not, and the error says neither.
func TestOperator_Unknown(t *testing.T) {
	for verb, change := range map[string]func(w *fixture) error{
		"unlock":  func(w *fixture) error { return w.unlock("me") },
		"requeue": func(w *fixture) error { return w.requeue("me") },
		"cancel":  func(w *fixture) error { return w.cancel("me") },
		"resolve": func(w *fixture) error { return w.resolve("me") },
	} {
		for _, fault := range []leasetest.Fault{leasetest.RequestLost, leasetest.ReplyLost, leasetest.Conflict} {
			inBubble(t, verb+", "+string(fault), func(w *fixture) {
				w.rewrite(func(d *analysis) { d.Acts = analysislock.Acts{"charge": started(1)} })
				w.faulty().SetPlan(func(c leasetest.Call) leasetest.Fault {
					switch {
					case c.Op == leasetest.Swap:
						return fault
					case c.N > 1:
						return leasetest.RequestLost
					}
					return leasetest.None
				})
				began := time.Now()
				err := change(w)
				wantErr(w, err, lease.ErrUnavailable)
				same(w, false, errors.Is(err, lease.ErrConflict))
				same(w, 15*time.Second, time.Since(began))
			})
		}
	}
}

func TestRequeue(t *testing.T) {
	inBubble(t, "a fresh one is made again after a conflict", func(w *fixture) {
		w.rewrite(func(d *analysis) { d.Checkpoint = &analysislock.Checkpoint{Value: "c"} })
		w.faulty().SetPlan(leasetest.On(leasetest.Swap, leasetest.Conflict))
		w.check(w.requeueFresh())
		same(w, nil, w.doc().Checkpoint.Value)
	})

	inBubble(t, "a fresh one does not drop an uncertain act, counted or not", func(w *fixture) {
		w.rewrite(func(d *analysis) { d.Acts = analysislock.Acts{"charge": {State: analysislock.ActStarted}} })
		wantErr(w, w.requeueFresh(), analysislock.ErrUncertain)
		w.check(w.requeue(""))
		same(w, 1, len(w.doc().Acts))
	})

	failed := func(d *analysis) {
		d.Status, d.Error = analysislock.Failed, &failure{Code: "c"}
		d.Lock.Finished, d.Lock.Attempts = true, 1
	}
	orphaned := func(d *analysis) { d.Lock.Attempts = 3 }
	acquired := func(d *analysis) {
		d.Status, d.Lock.Owner, d.Lock.Attempts = analysislock.Processing, "w/9", 1
		d.Lock.Token++
	}
	for name, c := range map[string]struct {
		was, others func(d *analysis)
		again       bool
	}{
		"no other program":                {failed, unchanged, false},
		"acquired, after it had failed":   {failed, acquired, false},
		"acquired, after it was orphaned": {orphaned, acquired, false},
		"acquired and refunded":           {orphaned, func(d *analysis) { d.Lock.Token, d.Lock.Attempts = 6, 3 }, true},
		"as it was before":                {failed, failed, true},
		"another status":                  {failed, func(d *analysis) { d.Status = analysislock.Processing }, true},
		"an error":                        {failed, func(d *analysis) { d.Error = &failure{} }, true},
		"attempts":                        {failed, func(d *analysis) { d.Lock.Attempts = 2 }, true},
		"an owner":                        {failed, func(d *analysis) { d.Lock.Owner = "stale" }, true},
	} {
		inBubble(t, "without a reply, it is made again if the analysis shows no trace of it, "+name, func(w *fixture) {
			w.rewrite(func(d *analysis) { d.Lock.Token = 5; c.was(d) })
			var left analysis
			w.interrupt(func(d *analysis) { c.others(d); left = *d })
			w.check(w.requeue(""))
			got := w.doc()
			if !c.again {
				same(w, left.Lock, got.Lock)
				same(w, left.Status, got.Status)
				return
			}
			same(w, lease.Lease{Token: got.Lock.Token}, got.Lock)
			same(w, analysislock.Queued, got.Status)
			same(w, true, got.Error == nil)
		})
	}
}

// Without a reply, it is not made again. The others take the lock, or change nothing.
func TestUnlock(t *testing.T) {
	seen := &analysislock.Seen{Status: analysislock.Processing, Grant: lease.Grant{Owner: "w/1", Token: 1}}
	for name, c := range map[string]struct {
		owner string
		seen  *analysislock.Seen
	}{
		"of what was seen": {"", seen}, "of any": {"", nil}, "of any, taken since": {"w/2", nil},
	} {
		inBubble(t, name, func(w *fixture) {
			w.acquire("w/1")
			w.interrupt(func(d *analysis) { d.Lock.Owner = c.owner })
			_, err := w.locks.Unlock(w.Context(), "x", "", c.seen, "")
			w.check(err)
			same(w, c.owner, w.doc().Lock.Owner)
		})
	}
}

func TestCancel(t *testing.T) {
	inBubble(t, "without a reply, it does not undo a requeue", func(w *fixture) {
		w.interrupt(func(d *analysis) { d.Status, d.Error, d.Lock.Finished = analysislock.Queued, nil, false })
		w.check(w.cancel("me"))
		w.wantStatus(analysislock.Queued)
	})

	// Of a held analysis see TestChange.
	for name, c := range map[string]struct {
		status, code string
		err          error
	}{
		"queued":               {analysislock.Queued, "", nil},
		"ready":                {analysislock.Ready, "", lease.ErrFinished},
		"failed":               {analysislock.Failed, "c", lease.ErrFinished},
		"failed without error": {analysislock.Failed, "", lease.ErrFinished},
		"cancelled":            {analysislock.Failed, analysislock.Cancelled, nil},
	} {
		inBubble(t, "only an unfinished analysis is cancelled, "+name, func(w *fixture) {
			w.rewrite(func(d *analysis) {
				d.Status, d.Lock.Finished = c.status, analysislock.Finished(c.status)
				d.History = []analysislock.Attempt{{Outcome: analysislock.OutcomeRetry}} // it has ended before
				if c.code != "" {
					d.Error = &failure{Code: c.code}
				}
			})
			was := w.doc()
			w.faulty().SetPlan(leasetest.On(leasetest.Swap, leasetest.RequestLost)) // then it is made again
			before, err := w.locks.Cancel(w.Context(), "x", "ana", nil)
			wantErr(w, err, c.err)
			same(w, c.status, before.Status)
			got, writes := w.doc(), c.status == analysislock.Queued
			same(w, writes, got.Lock != was.Lock)
			same(w, analysislock.OutcomeRetry, got.History[0].Outcome)
			if writes {
				same(w, "cancelled by ana", changes(&got.History[0])) // once
			}
		})
	}
}
