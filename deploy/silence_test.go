package deploy

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var silence = regexp.MustCompile(`\[(\d+)m\]\)\) or vector\(0\)\) < (\d+)$`)

// firesAfter returns the minute at which an alert on a lack of calls fires, or -1: counted
// has the number of calls that are counted in each minute.
func firesAfter(t *testing.T, query, lasting string, counted []int) int {
	t.Helper()
	seconds, err := strconv.Atoi(strings.TrimSuffix(lasting, "s"))
	m := silence.FindStringSubmatch(query)
	if err != nil || m == nil {
		t.Fatalf("%v: %s for %s", err, query, lasting)
	}
	window, _ := strconv.Atoi(m[1])
	least, _ := strconv.Atoi(m[2])
	since := -1
	for now := window; now < len(counted); now++ {
		sum := 0
		for _, n := range counted[now-window : now] {
			sum += n
		}
		switch {
		case sum >= least:
			since = -1
		case since < 0:
			since = now
		}
		if since >= 0 && (now-since)*60 >= seconds {
			return now
		}
	}
	return -1
}

// A log metric counts a line minutes late, now and then.
func TestALateLineDoesNotDelayTheAlertThatRecoveryHasStopped(t *testing.T) {
	alert := readMonitoring(t).Alerts["Taskguard: recovery has stopped"]
	const stop = 60
	calls := make([]int, 120) // one a minute
	for i := range stop {
		calls[i] = 1
	}
	stopped := firesAfter(t, alert.Query, alert.Lasting, calls)
	if stopped < stop || stopped > stop+25 {
		t.Errorf("the alert fires at minute %d, %d minutes after the last call", stopped, stopped-stop)
	}
	for late := stop; late < stopped; late++ {
		counted := slices.Clone(calls)
		counted[stop-1], counted[late] = 0, 1
		if got := firesAfter(t, alert.Query, alert.Lasting, counted); got < 0 || got > stopped {
			t.Errorf("with a line counted at minute %d the alert fires at %d instead of %d", late, got, stopped)
		}
	}
	for lost := range 5 { // counted late, or not at all
		counted := slices.Clone(calls[:stop])
		for i := range lost {
			counted[30+i] = 0
		}
		if got := firesAfter(t, alert.Query, alert.Lasting, counted); got >= 0 {
			t.Errorf("with %d lines missing the alert fires at %d", lost, got)
		}
	}
}
