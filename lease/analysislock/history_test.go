package analysislock_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"taskguard/lease/analysislock"
)

// The last attempts are kept, within the limits of their number and bytes.
func TestHistory(t *testing.T) {
	long := "x" + strings.Repeat("ü", 400) + "KeyError"
	cut := "x" + strings.Repeat("ü", 62) + " … " + strings.Repeat("ü", 58) + "KeyError" // 256 bytes
	for name, c := range map[string]struct {
		owner, message string
		attempts       int // that are kept
		kept           string
	}{
		"short": {owner: "w/", message: "m", attempts: 10, kept: "m"},
		"long":  {owner: strings.Repeat("o", 70), message: long, attempts: 4, kept: cut},
	} {
		inBubble(t, name, func(w *fixture) {
			w.serve(w, 100, 0)
			for n := range 12 {
				h := w.acquire(fmt.Sprint(c.owner, n)).Hold
				code := analysislock.AttemptsExhausted
				w.end(h, analysislock.Retrying(h.Now(), code, c.message, time.Time{}, "", false))
				for range 4 {
					w.check(w.unlock(c.owner + c.owner))
				}
				text, err := json.Marshal(w.doc().History)
				if err != nil || len(text) > 5<<10 {
					w.Errorf("attempt %d: %d bytes, %v", n, len(text), err)
				}
			}
			all := w.doc().History
			same(w, c.attempts, len(all))
			last := all[len(all)-1]
			same(w, c.kept, last.Message)
			same(w, 12, last.Number)
			same(w, int64(12), last.Token)
			same(w, analysislock.OutcomeRetry, last.Outcome)
		})
	}
}

func TestProgress_Percent(t *testing.T) {
	third := 0.336
	same(t, 34, (&analysislock.Progress{Fraction: &third}).Percent())
	same(t, -1, (&analysislock.Progress{Message: "m"}).Percent())
	same(t, -1, (*analysislock.Progress)(nil).Percent())
}

// changes returns what operators have done since the attempt began, without the times, none of which is zero.
func changes(a *analysislock.Attempt) string {
	var all []string
	for _, c := range a.Changes {
		if !c.At.IsZero() {
			all = append(all, c.Change+" by "+c.By)
		}
	}
	return strings.Join(all, ", ")
}

// The history names the operator of a change. Of a program see TestChange.
func TestHistory_Operators(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(w *fixture, who string) error
		crashed bool // else the attempt still runs
		want    string
	}{
		"unlock":               {(*fixture).unlock, false, "lock_lost: unlocked by me"},
		"unlock of a dead one": {(*fixture).unlock, true, "crashed: unlocked by me"},
		"requeue":              {(*fixture).requeue, true, ": requeued by me"},
		"resolve":              {(*fixture).resolve, true, ": resolved by me"},
		"cancel":               {(*fixture).cancel, false, "cancelled: cancelled by me"},
	} {
		inBubble(t, name, func(w *fixture) {
			w.acquire("w/1")
			w.rewrite(func(d *analysis) {
				d.Acts = analysislock.Acts{"charge": {State: analysislock.ActStarted, Token: 1}}
			})
			if c.crashed {
				die()
			}
			w.check(c.change(w, "me"))
			same(w, c.want, w.outcomes()+": "+changes(&w.doc().History[0]))
		})
	}

	inBubble(t, "the last three are kept", func(w *fixture) {
		w.acquire("w/1")
		for _, who := range []string{"ana", "bo", "cy"} {
			w.check(w.unlock(who))
		}
		w.check(w.requeue("di"))
		same(w, "unlocked by bo, unlocked by cy, requeued by di", changes(&w.doc().History[0]))
	})
	inBubble(t, "without an attempt there is no entry", func(w *fixture) {
		w.check(w.requeue("me"))
		w.check(w.cancel("me"))
		same(w, 0, len(w.doc().History))
		same(w, "cancelled by me", w.doc().Error.Message)
	})
	inBubble(t, "an unlock of what is finished and free is no change", func(w *fixture) {
		h := w.acquire("w/1").Hold
		w.end(h, analysislock.Completing(h.Now(), "r"))
		w.check(w.unlock("me"))
		same(w, "", changes(&w.doc().History[0]))
	})
}
