package repo

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
)

// What recovery reads each minute does not grow with the parked analyses of a key, and they hide no orphan: a new
// one is found at once, one amid them after some calls.
func TestParkedAnalysesCostRecoveryLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		a, err := Open(t.Context(), b.Project, Options{Concurrency: &Concurrency{
			Fields: []string{"tenant"}, Limit: func(string) int { return 1 },
		}}, b.Client(t)...)
		fatal(t, err)
		t.Cleanup(func() { _ = a.Close() })
		now, parked := time.Now(), 5*parkedPage
		put := func(id string, age time.Duration, fields map[string]any) {
			fields["status"], fields["updatedAt"] = analysislock.Queued, timeValue(now.Add(-age))
			b.Put(t, id, fields)
		}
		for n := range parked {
			age := time.Hour - time.Duration(n)*time.Second
			at := timeValue(now.Add(-age))
			put(fmt.Sprint("parked", n), age, map[string]any{
				"tenant": "a", "parkedAt": at, "parkedFor": analysislock.KeyID("a") + " " + at.(string),
			})
		}
		put("new", 6*time.Minute, map[string]any{})
		put("amid", time.Hour-time.Duration(parked/2)*time.Second, map[string]any{})

		var found []string
		for call := range 4 {
			before := b.Server.Usage().Reads
			due, _ := orphaned(t, a, orphanPage)
			if found = append(found, due...); call == 0 && !slices.Contains(due, "new") {
				t.Errorf("the first call found %q, want the new one", due)
			}
			waiting, err := a.Wakeable(t.Context())
			if err != nil || len(waiting) != 1 || waiting[0].ID != "parked0" {
				t.Errorf("%d can be woken, %v; want the first in line", len(waiting), err)
			}
			if reads := b.Server.Usage().Reads - before; reads > 2*parkedPage+10 {
				t.Errorf("call %d made %d reads, with %d parked analyses", call, reads, parked)
			}
		}
		if !slices.Contains(found, "amid") {
			t.Errorf("found %q, want the one amid them too", strings.Join(found, " "))
		}
	})
}
