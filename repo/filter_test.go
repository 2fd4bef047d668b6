package repo_test

import (
	"slices"
	"testing"
	"time"

	"taskguard/emulator/emulatortest"
	"taskguard/repo"
)

// found returns the ids that a filter finds, sorted.
func found(t *testing.T, b *emulatortest.Backend, f repo.Filter, limit int) (ids []string) {
	t.Helper()
	a, err := repo.Open(t.Context(), b.Project, repo.Options{}, b.Client(t)...)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close() //nolint:errcheck // nothing is written
	all, err := a.Find(t.Context(), f, limit)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		ids = append(ids, all[i].ID)
	}
	slices.Sort(ids)
	return ids
}

func TestFindComparesEachTypeOfUpdatedAt(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		since, before := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC), time.Date(2026, 1, 31, 13, 0, 0, 0, time.UTC)
		for name, at := range map[string]time.Time{"a-early": since.Add(-time.Millisecond), "b-since": since, "c-last": before.Add(-time.Millisecond), "d-before": before} {
			b.Put(t, name+"-text", map[string]any{"updatedAt": at.Format("2006-01-02T15:04:05.000Z"), "status": "FAILED", "error": map[string]any{"code": "c"}})
			b.Put(t, name+"-time", map[string]any{"updatedAt": at, "status": "FAILED", "lastError": map[string]any{"code": "c"}})
			b.Put(t, name+"-number", map[string]any{"updatedAt": at.UnixMilli(), "status": "QUEUED", "error": map[string]any{"code": "c"}, "lastError": map[string]any{"code": "c"}})
		}
		b.Put(t, "offset", map[string]any{"updatedAt": "2026-01-31T12:30:00+09:00", "status": "FAILED"}) // 03:30 UTC: as a string, it is between the limits
		b.Put(t, "none", map[string]any{"status": "FAILED", "error": map[string]any{"code": "c"}})
		in := []string{"b-since-number", "b-since-text", "b-since-time", "c-last-number", "c-last-text", "c-last-time"}
		for _, tc := range []struct {
			name   string
			filter repo.Filter
			want   []string
		}{
			{"both limits", repo.Filter{Since: since, Before: before}, in},
			{"both limits and a code", repo.Filter{Since: since, Before: before, Code: "c"}, in},
			{"all conditions", repo.Filter{Since: since, Before: before, Code: "c", Status: "QUEUED"}, []string{"b-since-number", "c-last-number"}},
			{"another code", repo.Filter{Code: "d"}, nil},
			{"since", repo.Filter{Since: before}, []string{"d-before-number", "d-before-text", "d-before-time"}},
			{"before", repo.Filter{Before: since}, []string{"a-early-number", "a-early-text", "a-early-time"}},
		} {
			if got := found(t, b, tc.filter, 100); !slices.Equal(got, tc.want) {
				t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
			}
		}
		if got := found(t, b, repo.Filter{}, 5); len(got) != 5 {
			t.Errorf("%q, want 5", got)
		}
	})
}
