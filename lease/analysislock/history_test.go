package analysislock_test

import (
	"encoding/json"
	"fmt"
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
		message2       string // as stored
	}{
		"short": {"w/", "m", 10, "m"},
		"long":  {strings.Repeat("o", 70), "x" + strings.Repeat("ü", 400) + "KeyError", 4, "x" + strings.Repeat("ü", 62) + " … " + strings.Repeat("ü", 58) + "KeyError"}, // the limit of its bytes
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, queued(), func(w *fixture) {
				w.serve(w, lease.Policy{MaxAttempts: 100}, 0, nil)
				for n := range 12 {
					h := w.acquire(fmt.Sprint(tc.owner, n)).Hold
					err := h.End(w.Context(), analysislock.Retrying(h.Now(), analysislock.AttemptsExhausted, tc.message, time.Time{}, "", false))
					w.check(err)
					for range 4 {
						_, err = w.locks.Unlock(w.Context(), "x", tc.owner+tc.owner, nil, "")
						w.check(err)
					}
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
				if len(last.Message) > 256 || !utf8.ValidString(last.Message) || last.Message != tc.message2 {
					w.Errorf("message %q", last.Message)
				}
			})
		})
	}
}
