package repo

import (
	"testing"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Two programs that write one account's number as an integer and as a double mean one key.
func TestKeyOfANumber(t *testing.T) {
	c := Concurrency{Fields: []string{"account"}}
	for value, want := range map[any]string{
		int64(1_000_000): "1000000", 1e6: "1000000", 1e21: "1000000000000000000000", 1.5: "1.5", -2.0: "-2",
		true: "true", "1e6": "1e6", "": "", nil: "", time.Time{}: "",
	} {
		if got := c.key(reading{fields: map[string]any{"account": value}}); got != want {
			t.Errorf("the key of %T %v is %q, want %q", value, value, got, want)
		}
	}
}

// A record that a crash has left expires a day after its last slot. One for which somebody waits does not: without
// it, nobody would be woken.
func TestKeyCodec_Expiry(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	slots := func(ends ...time.Duration) map[string]analysislock.Slotted {
		all := map[string]analysislock.Slotted{}
		for _, d := range ends {
			all[d.String()] = analysislock.Slotted{Lease: lease.Lease{Owner: d.String(), ExpiresAt: now.Add(d)}}
		}
		return all
	}
	for name, tc := range map[string]struct {
		prev, next analysislock.Key
		want       any
	}{
		"the last of two slots":    {next: analysislock.Key{Slots: slots(time.Minute, time.Hour)}, want: now.Add(25 * time.Hour)},
		"somebody waits":           {next: analysislock.Key{Slots: slots(time.Minute), Waiting: true}, want: firestore.Delete},
		"somebody waits, no slots": {next: analysislock.Key{Waiting: true}, want: firestore.Delete},
		"nobody waits any more": {
			prev: analysislock.Key{Slots: slots(time.Minute), Waiting: true}, next: analysislock.Key{Slots: slots(time.Minute)},
			want: now.Add(24*time.Hour + time.Minute),
		},
		"no change": {prev: analysislock.Key{Slots: slots(time.Minute)}, next: analysislock.Key{Slots: slots(time.Minute)}},
	} {
		if got := (keyCodec{}).changes(tc.prev, &tc.next, nil, now)["expireAt"]; got != tc.want {
			t.Errorf("%s: expireAt %v, want %v", name, got, tc.want)
		}
	}
}
