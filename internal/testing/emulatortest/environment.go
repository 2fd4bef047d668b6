package emulatortest

import (
	"os"
	"slices"
	"strings"
)

// The variables that the programs, Google's libraries and OpenTelemetry's read,
// by prefix and by name. The developer who runs the tests may have exported them.
var (
	isolatedPrefixes = []string{
		"CLOUD_TASKS_", "DOCLOCK_", "DOCUMENT_LOCK", "FIRESTORE_", "GCE_METADATA_", "GOOGLE_", "ITERM_", "K_",
		"LOCK_", "LC_", "LOG_", "OTEL_", "PROJECT_LOCK_", "PUSHER_", "SESSION_", "TASK_", "TERM_SESSION_",
	}
	isolatedNames = []string{
		"ALLOWED_ORIGINS", "ANALYSES_COLLECTION", "ANALYSIS_ID", "ANALYZER", "ANALYZER_ENV", "ANALYZER_OUTPUT",
		"ATTEMPT", "CHECKPOINT_INTERVAL", "CLOUDSDK_CORE_PROJECT", "CLOUDSDK_RUN_REGION", "KEEP_FINISHED", "KINDS",
		"LANG", "LOCKS_PER_SESSION", "MAX_ATTEMPTS", "MAX_RUNS", "MAX_RUN_TIME", "NO_COLOR", "OPERATORS_FILE", "PORT",
		"RETRY_MAX", "RETRY_MIN", "RUN_TIMEOUT", "SMOKE_INPUT", "SOCKETS_PER_SESSION", "STALL_TIMEOUT",
		"SWEEP_INTERVAL", "TRACEPARENT", "TRACESTATE",
	}
)

// Isolate removes the variables that the code under test reads from the process's
// environment, so that a test has only those that it sets itself. [Google] still finds
// the emulator that FIRESTORE_EMULATOR_HOST named. The client library does not: it would
// dial the emulator from a bubble, whose time then stands still. [Main] calls Isolate. A
// test binary that a test has started as a program must not call it.
func Isolate() {
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		isolated := slices.Contains(isolatedNames, name) ||
			slices.ContainsFunc(isolatedPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if isolated {
			_ = os.Unsetenv(name) // fails only for an empty name
		}
	}
}
