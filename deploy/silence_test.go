package deploy

import (
	"regexp"
	"strconv"
	"testing"
	"time"
)

var silence = regexp.MustCompile(`\[(\d+)m\]\)\) or vector\(0\)\) < (\d+)$`)

// There is one call a minute. A log metric counts its line minutes late, now and then, or not at all.
func TestALateLineDoesNotDelayTheAlertThatRecoveryHasStopped(t *testing.T) {
	alert := readMonitoring(t).Alerts["Taskguard: recovery has stopped"]
	m := silence.FindStringSubmatch(alert.Query)
	lasting, err := time.ParseDuration(alert.Lasting)
	if err != nil || m == nil {
		t.Fatalf("%v: %s for %s", err, alert.Query, alert.Lasting)
	}
	window := must(strconv.Atoi(m[1]))(t)
	least := must(strconv.Atoi(m[2]))(t)

	if least < 2 {
		t.Error("a single line that is counted late ends the silence")
	}
	if window-least < 4 {
		t.Errorf("%d of %d lines missing are a silence", window-least+1, window)
	}
	if after := time.Duration(window-least+1)*time.Minute + lasting; after > 25*time.Minute {
		t.Errorf("the alert fires %v after the last call", after)
	}
}
