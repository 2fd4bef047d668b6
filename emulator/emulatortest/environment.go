package emulatortest

import (
	"os"
	"slices"
	"strings"
)

// Whoever runs the tests may have exported, for work of their own, what the
// programs, Google's libraries and OpenTelemetry's read: by how the names begin,
// and by name.
var (
	theirs = []string{
		"CLOUD_TASKS_", "DOCUMENT_LOCK", "FIRESTORE_", "GCE_METADATA_", "GOOGLE_", "ITERM_", "K_", "LOCK_", "LOG_",
		"OTEL_", "PROJECT_LOCK_", "SESSION_", "TASK_", "TERM_SESSION_",
	}
	theirsToo = []string{
		"ANALYSES_COLLECTION", "ANALYSIS_ID", "ANALYZER", "ANALYZER_OUTPUT", "ATTEMPT", "CLOUDSDK_CORE_PROJECT", "CLOUDSDK_RUN_REGION",
		"MAX_ATTEMPTS", "MAX_RUNS", "NO_COLOR", "OPERATORS_FILE", "PORT", "RUN_TIMEOUT", "SWEEP_INTERVAL", "TRACEPARENT", "TRACESTATE",
	}
	notTheirs = []string{"GOOGLE_FIRESTORE_EMULATOR_JAR"} // tells tests where the emulator is
)

// Isolate takes out of the process's environment what the code under test would
// read there, so that a test has only what it sets itself. [Google] still finds
// the emulator that FIRESTORE_EMULATOR_HOST has named; the library must not: it
// would dial it from a bubble, whose time then stands still. Call it before the
// tests, and not where the test binary is a program that a test has started.
// [Main] does.
func Isolate() {
	if os.Getenv(hostVariable) != "" {
		_, _ = process.get(os.Getenv, start) // is kept for Google
	}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); disturbs(name) {
			if err := os.Unsetenv(name); err != nil {
				panic(err)
			}
		}
	}
}

func disturbs(name string) bool {
	begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	return !slices.Contains(notTheirs, name) && (slices.Contains(theirsToo, name) || slices.ContainsFunc(theirs, begins))
}
