package env

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestIAMModeOutsideCloudRunIsAWarning(t *testing.T) {
	for _, tc := range []struct {
		service, mode string
		warnings      int
	}{{"", "iam", 1}, {"", "none", 0}, {"taskguard-worker", "iam", 0}} {
		t.Setenv("K_SERVICE", tc.service)
		var log bytes.Buffer
		TaskAuth{Mode: tc.mode}.Warn(t.Context(), slog.New(slog.NewJSONHandler(&log, nil)))
		if got := strings.Count(log.String(), `"level":"WARN"`); got != tc.warnings {
			t.Errorf("%+v: %d warnings: %s", tc, got, &log)
		}
	}
}
