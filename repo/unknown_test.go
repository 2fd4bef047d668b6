package repo

import (
	"slices"
	"testing"

	"taskguard/emulator/emulatortest"
	"taskguard/lease/analysislock"
)

func TestAnUnknownStatusIsFoundUnlessItWasAcquired(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for id, fields := range map[string]map[string]any{
			"lower": {"status": "queued", "input": "x"}, "pending": {"status": "PENDING"}, "number": {"status": 7}, "empty": {"status": ""},
			"acquired": {"status": "ANALYZING", "lockToken": 3}, "malformed": {"status": "ANALYZING", "lockToken": "3"},
			"none": {}, "null": {"status": nil}, analysislock.Queued: {"status": analysislock.Queued}, analysislock.Processing: {"status": analysislock.Processing}, analysislock.Ready: {"status": analysislock.Ready}, analysislock.Failed: {"status": analysislock.Failed},
		} {
			b.Put(t, id, fields)
		}
		found, err := a.UnknownStatus(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := range found {
			got = append(got, found[i].ID+"="+found[i].Status)
			if found[i].Input != nil {
				t.Errorf("%s has its input", found[i].ID)
			}
		}
		if want := []string{"number=(the number 7)", "empty=", "pending=PENDING", "lower=queued"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if found, err = a.UnknownStatus(t.Context(), 2); err != nil || len(found) != 2 {
			t.Errorf("%d, %v; want 2", len(found), err)
		}
	})
}
