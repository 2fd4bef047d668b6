package operate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
	"taskguard/worker"
)

// Whatever the collection has, the reads of a digest depend on its limit, and on the failures that it groups.
func TestDigest_Reads(t *testing.T) {
	b := emulatortest.Embedded(t)
	cl, reads := openBilled(t, b, func() {})
	fill := func(from, to int) {
		for i := from; i < to; i++ {
			old, code := at(-time.Duration(i)*time.Minute), fmt.Sprint("code", i)
			for name, fields := range map[string]doc{
				"ready":  {"status": "READY", "updatedAt": old, "createdAt": old},
				"queued": {"status": "QUEUED", "updatedAt": old, "createdAt": old},
				"waits":  {"status": "QUEUED", "updatedAt": old, "nextAttemptAt": at(time.Hour)},
				"failed": {"status": "FAILED", "updatedAt": old, "error": doc{"code": code}},
				"runs": {
					"status": "PROCESSING", "updatedAt": at(0), "lockOwner": "w", "lockExpiresAt": at(time.Hour),
				},
				"undated": {"status": "READY"},
			} {
				b.Put(t, fmt.Sprint(name, i), fields)
			}
		}
	}
	measure := func() int64 {
		t.Helper()
		before := reads.Load()
		c, _ := call("status")
		_, err := cl.digest(t.Context(), c, 10)
		ok(t, err)
		return reads.Load() - before
	}
	fill(0, 40)
	few := measure()
	fill(40, 140)
	failures, many := int64(100), measure()
	if few > 170 || many > few+failures {
		t.Errorf("%d and %d reads, want at most 170 and %d", few, many, few+failures)
	}
}

// Older failures may be behind as many cancelled analyses as a digest reads.
func TestDigest_Cancelled(t *testing.T) {
	cancelled := analysislock.Analysis{Error: &analysislock.Error{Code: analysislock.Cancelled}}
	for n, want := range map[int]string{
		maxGrouped - 1: "", maxGrouped: "taskguard status --kind order --status FAILED --since 24h\n",
	} {
		c, out := call("status")
		cl := &Client{place: cli.Place{Kind: worker.Kind{Name: "order"}}}
		cl.printCauses(c, &digest{failed: slices.Repeat([]analysislock.Analysis{cancelled}, n)}, 10, 0)
		if got := out.String(); !strings.HasSuffix(got, want) || (want == "") != (got == "") {
			t.Errorf("with %d cancelled: %q, want %q", n, got, want)
		}
	}
}
