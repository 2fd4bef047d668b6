package analysislock_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

func TestOfHistoryTheLastAttemptsAreKeptWithinItsLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		owner, message string
		want           int
	}{
		"short": {"w/", "m", 10},
		"long":  {strings.Repeat("o", 140), "x" + strings.Repeat("ü", 400), 8}, // the limit of its bytes
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				w.serve(w, lease.Policy{MaxAttempts: 100}, 0, nil)
				for n := range 12 {
					h := w.acquire(fmt.Sprint(tc.owner, n)).Hold
					_, err := h.Retry(w.Context(), analysislock.AttemptsExhausted, tc.message, 0)
					w.check(err)
					text, err := json.Marshal(w.doc().History)
					if err != nil || len(text) > 5<<10 {
						w.Errorf("attempt %d: %d bytes, %v", n, len(text), err)
					}
				}
				all := w.doc().History
				last := all[len(all)-1]
				if len(all) != tc.want || last.Number != 12 || last.Token != 12 || last.Outcome != analysislock.OutcomeRetry {
					w.Errorf("%d entries, want %d; the last %+v", len(all), tc.want, last)
				}
				if len(last.Message) > 256 || !utf8.ValidString(last.Message) || !strings.HasPrefix(tc.message, last.Message) {
					w.Errorf("message %q", last.Message)
				}
			})
		})
	}
}

// Each attempt's entry has its outcome; that of a crash has none.
func TestHistoryShowsHowEachAttemptEnded(t *testing.T) {
	inBubble(t, queued(), func(w *fixture) {
		w.serve(w, lease.Policy{MaxAttempts: 100}, 0, nil)
		began := w.now()
		w.check(w.acquire("w/1").Hold.Release(w.Context(), analysislock.OutcomeContinued, true))
		w.acquire("w/2")
		time.Sleep(lease.DefaultTTL) // it has crashed
		w.acquire("w/3")
		_, err := w.locks.Unlock(w.Context(), "x", nil)
		w.check(err)
		w.check(w.acquire("w/4").Hold.Fail(w.Context(), "c", "m"))
		_, err = w.locks.Requeue(w.Context(), "x", nil, false)
		w.check(err)
		w.check(w.acquire("w/5").Hold.Complete(w.Context(), "done"))
		var got []string
		for _, a := range w.doc().History {
			if a.EndedAt.IsZero() != (a.Outcome == "") || a.StartedAt.Before(began) || a.Outcome != "" && a.EndedAt.Before(a.StartedAt) {
				w.Errorf("%+v", a)
			}
			got = append(got, fmt.Sprintln(a.Number, a.Token, a.Owner, a.Outcome, a.Code, a.Message))
		}
		want := []string{"1 1 w/1 continued  \n", "1 2 w/2   \n", "2 3 w/3 lock_lost  \n", "3 4 w/4 failed c m\n", "1 5 w/5 ready  \n"}
		if !slices.Equal(got, want) {
			w.Errorf("%q, want %q", got, want)
		}
	})
}
