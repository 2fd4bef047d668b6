package operate

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/worker"
)

// Whatever the collection has, the reads of a digest depend on its limit, and on the failures that it groups.
func TestADigestReadsFewDocuments(t *testing.T) {
	b := emulatortest.Embedded(t)
	cl, reads := openBilled(t, b, func(string) {})
	at := func(ago time.Duration) string { return iso8601.Format(time.Now().Add(-ago)) }
	fill := func(from, to int) {
		for i := from; i < to; i++ {
			old := at(time.Duration(i) * time.Minute)
			b.Put(t, fmt.Sprint("ready", i), map[string]any{"status": "READY", "updatedAt": old, "createdAt": old})
			b.Put(t, fmt.Sprint("queued", i), map[string]any{"status": "QUEUED", "updatedAt": old, "createdAt": old})
			b.Put(t, fmt.Sprint("waits", i), map[string]any{"status": "QUEUED", "updatedAt": old, "nextAttemptAt": at(-time.Hour)})
			b.Put(t, fmt.Sprint("failed", i), map[string]any{
				"status": "FAILED", "updatedAt": old, "error": map[string]any{"code": fmt.Sprint("code", i), "message": "x"},
			})
			b.Put(t, fmt.Sprint("runs", i), map[string]any{
				"status": "PROCESSING", "lockOwner": "w", "lockToken": 1, "lockExpiresAt": at(-time.Hour), "updatedAt": at(0),
			})
			b.Put(t, fmt.Sprint("undated", i), map[string]any{"status": "READY"})
		}
	}
	measure := func() int64 {
		t.Helper()
		before := reads.Load()
		if _, err := cl.digest(t.Context(), &cli.Call{Streams: cli.Streams{Out: io.Discard, Err: io.Discard}}, 10); err != nil {
			t.Fatal(err)
		}
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
func TestADigestSaysThatFailuresMayBeBehindCancelledOnes(t *testing.T) {
	cancelled := analysislock.Analysis{Error: &analysislock.Error{Code: analysislock.Cancelled}}
	for n, want := range map[int]string{
		maxGrouped - 1: "",
		maxGrouped: "\nFAILED IN THE LAST 24 HOURS\n" +
			"The newest 300 were cancelled or have an uncertain side effect. To list the others too:\n" +
			"  taskguard status --kind order --status FAILED --since 24h\n",
	} {
		var out strings.Builder
		cl := &Client{place: cli.Place{Kind: worker.Kind{Name: "order"}}}
		cl.printCauses(&cli.Call{Streams: cli.Streams{Out: &out}}, &digest{failed: slices.Repeat(
			[]analysislock.Analysis{cancelled}, n)}, 10, 0)
		if got := out.String(); got != want {
			t.Errorf("with %d cancelled:\n%s\nwant\n%s", n, got, want)
		}
	}
}
