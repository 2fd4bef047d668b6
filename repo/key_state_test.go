package repo

import (
	"fmt"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

func TestKeyState_Before(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		limited := &Concurrency{Fields: []string{"tenant"}, Limit: func(string) int { return 1 }}
		o := optionsFor(b, Options{Policy: lease.Policy{TTL: ttl(b)}, Concurrency: limited})
		a, err := Open(t.Context(), b.Project, o, b.Client(t)...)
		fatal(t, err)
		park := func(id, tenant string, second int) {
			place := analysislock.KeyID(tenant) + " " + timeText(second)
			b.Put(t, id, map[string]any{"status": analysislock.Queued, "tenant": tenant, "parkedAt": timeText(0), "parkedFor": place})
		}
		for n := range 3 { // of the same second, so that the id decides
			park(fmt.Sprint("a", n), "a", 1)
		}
		park("a3", "a", 0)
		park("b0", "b", 0)
		for id, want := range map[string]int64{"a3": 0, "a0": 1, "a2": 3, "b0": 0} {
			d, err := a.Summary(t.Context(), id)
			fatal(t, err)
			state, err := a.KeyState(t.Context(), &d, true)
			if err != nil || state.Before == nil || *state.Before != want {
				t.Errorf("%s: %v, %v; want %d before it", id, state, err, want)
			}
		}
	})
}

// timeText is a time in the text form of a document.
func timeText(second int) string {
	return fmt.Sprint(timeValue(time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC)))
}

func TestKeyState_String(t *testing.T) {
	many := []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"}
	for want, s := range map[string]KeyState{
		"": {},
		"parked behind key k: paused: the limit is 0; 1 run: a":                                             {Key: "k", Paused: true, Parked: true, Running: []string{"a"}},
		"parked behind key k: 0 run; 1 waits before it":                                                     {Key: "k", Parked: true, Before: new(int64(1))},
		"parked behind key k: 1 of 2 run: a; kept for the next attempt of b":                                {Key: "k", Limit: 2, Parked: true, Running: []string{"a"}, Reserved: []string{"b"}},
		"parked behind key k: 12 run: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more; 1000 or more wait before it": {Key: "k", Running: many, Parked: true, Before: new(int64(MaxBefore))},
	} {
		if got := s.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
