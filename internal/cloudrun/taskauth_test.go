package cloudrun

import (
	"bytes"
	"strings"
	"testing"
)

func TestIAMModeOutsideCloudRunIsAWarning(t *testing.T) {
	for service, warnings := range map[string]int{"": 1, "taskguard-worker": 0} {
		t.Setenv("K_SERVICE", service)
		var log bytes.Buffer
		if _, ours, err := (TaskAuth{Mode: "iam"}).Verifier(t.Context(), NewLogger(&log, "json", 0)); ours || err != nil {
			t.Errorf("%t, %v", ours, err)
		}
		if got := strings.Count(log.String(), `"severity":"WARNING"`); got != warnings {
			t.Errorf("K_SERVICE=%s: %d warnings, want %d: %s", service, got, warnings, &log)
		}
	}
}
