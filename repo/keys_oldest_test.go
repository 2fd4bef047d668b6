package repo

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
)

// A tenant's batch that waits on purpose is not the oldest one, and costs recovery a bounded number of reads.
func TestOldestUnfinished_Parked(t *testing.T) {
	for name, tc := range map[string]struct {
		parked int
		other  bool
		want   string // id; empty: none is found
	}{
		"none is parked":         {other: true, want: "other"},
		"parked ones are older":  {parked: 3, other: true, want: "other"},
		"all are parked":         {parked: 3},
		"the last that is found": {parked: maxParkedBefore - 1, other: true, want: "other"},
		"one too many":           {parked: maxParkedBefore, other: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := emulatortest.Embedded(t)
				a := withKeys(t, b, 1)
				put := func(id string, age time.Duration, parked any) {
					created := timeValue(time.Now().Add(-age))
					b.Put(t, id, map[string]any{
						"status": analysislock.Queued, "tenant": "a", "createdAt": created, "updatedAt": created, "parkedAt": parked,
					})
				}
				for n := range tc.parked {
					put(fmt.Sprint("parked", n), 2*time.Hour-time.Duration(n), timeValue(time.Now()))
				}
				if tc.other {
					put("other", time.Hour, nil)
				}

				before := b.Server.Usage().Reads
				oldest, found, err := a.OldestUnfinished(t.Context())
				if err != nil || found != (tc.want != "") || found && oldest.ID != tc.want {
					t.Errorf("got %q, %v, %v; want %q", oldest.ID, found, err, tc.want)
				}
				if reads := b.Server.Usage().Reads - before; reads > maxParkedBefore+10 {
					t.Errorf("made %d reads", reads)
				}
				if n, err := a.CountParked(t.Context()); err != nil || n != int64(tc.parked) {
					t.Errorf("%d are parked, %v; want %d", n, err, tc.parked)
				}
			})
		})
	}
}
