package operate

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/emulator/emulatortest"
	"taskguard/lease/analysislock"
	"taskguard/repo"
	"taskguard/worker/console"
)

func TestChangesKeepToTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, began, n := bulk{rate: 4}, time.Now(), make(chan struct{}, 100)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Second+time.Millisecond, cancel)
		b.each(ctx, make([]analysislock.Analysis, 100), func(*analysislock.Analysis) { n <- struct{}{} })
		if len(n) != 20 || time.Since(began) != 5*time.Second+time.Millisecond {
			t.Errorf("%d changes in %s, want 20 in 5 s, and then the end", len(n), time.Since(began))
		}
		b.dryRun = true
		b.each(t.Context(), make([]analysislock.Analysis, 100), func(*analysislock.Analysis) {})
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("a dry run took until %s, want no limit", took)
		}
	})
}

func TestAnAnalysisThatHasChangedSinceItWasListedIsSkipped(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, back *emulatortest.Backend) {
		a, err := repo.Open(t.Context(), back.Project, repo.Options{}, back.Client(t)...)
		if err != nil {
			t.Fatal(err)
		}
		for _, what := range []console.Change{console.Requeue, console.Cancel} {
			for id, change := range map[string]map[string]any{
				"requeued":  {"status": "QUEUED"},
				"run again": {"lockToken": 5},
				"held":      {"status": "PROCESSING", "lockToken": 5, "lockOwner": "w/2", "lockExpiresAt": time.Now().Add(time.Hour)},
				"deleted":   nil,
				"unchanged": {},
			} {
				back.Put(t, id, map[string]any{"status": "PROCESSING", "attempts": 3, "lockToken": 4, "updatedAt": time.Now().Add(-time.Hour), "lastError": map[string]any{"code": "c"}})
				found, err := a.Find(t.Context(), repo.Filter{Status: "PROCESSING", Code: "c", Since: time.Now().Add(-2 * time.Hour)}, 10)
				if err != nil || len(found) != 1 {
					t.Fatalf("%s: %+v, %v, want one", id, found, err)
				}
				if change == nil {
					back.Delete(t, id)
				} else if len(change) > 0 {
					back.Merge(t, id, change)
				}
				want := skipped
				if id == "unchanged" {
					want = didChange
				}
				if got, err := new(bulk).change(t.Context(), &Client{analyses: a}, what, &found[0], slog.New(slog.DiscardHandler)); got != want || err != nil {
					t.Errorf("%s of one that is %s: %s, %v, want %s", what, id, got, err, want)
				}
				back.Delete(t, id)
			}
		}
	})
}
