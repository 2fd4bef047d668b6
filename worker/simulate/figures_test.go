package simulate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// figures count what has happened; times are in nanoseconds, and the most.
type figures map[string]int64

func (f figures) most(name string, d time.Duration) { f[name] = max(f[name], int64(d)) }

func isTime(name string) bool {
	return strings.HasPrefix(name, "longest") || strings.HasPrefix(name, "largest")
}

func (f figures) add(g figures) {
	for name, n := range g {
		if isTime(name) {
			f.most(name, time.Duration(n))
		} else {
			f[name] += n
		}
	}
}

// expected are the figures without which a run of many seeds has proved nothing.
var expected = []string{
	"seeds", "deliveries", "runs", "finishes", "steals", "superseded writes refused", "losses", "follow-ups", "recoveries booked",
	"replacements booked", "attempts exhausted", "unlocks", "requeues", "failures for now",
	"crashes", "pauses", "stops", "cuts", "operations checked", "operations of unknown outcome", "operations of kind renew",
	"largest clock skew", "longest unheld after a single crash", "first acquired after a crash", "stopped runs refunded",
	"longest until all is finished after the faults",
	string(dropBefore), string(dropAfter), string(late), string(aborted), string(abortedAfter), string(unavailable), string(exceeded),
	string(slowRequest), string(slowReply), string(storeDark), string(workerDark), string(foreignWrite), string(bookingDark),
	string(bookingLost), string(nameTaken), string(duplicate), string(lateDispatch), string(answerLost), string(outOfDispatch),
	string(purged), string(neverQueued),
}

// missing are the expected figures that are zero.
func (f figures) missing() (names []string) {
	for _, name := range expected {
		if f[name] == 0 {
			names = append(names, name)
		}
	}
	return names
}

func (f figures) String() string {
	var s strings.Builder
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if isTime(name) {
			fmt.Fprintf(&s, "%50s  %v\n", name, time.Duration(f[name]).Round(time.Millisecond))
		} else {
			fmt.Fprintf(&s, "%50s  %d\n", name, f[name])
		}
	}
	return s.String()
}
