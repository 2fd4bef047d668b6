// Package emulatortest gives tests an embedded Firestore or Google's emulator.
//
// FIRESTORE_EMULATOR_HOST names Google's emulator, which all tests share:
// each test uses a different [Project]. Without the variable they are skipped.
package emulatortest

import (
	"bytes"
	"crypto/rand"
	"flag"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// named is the host that the environment of the process names. A test may set the variable for the
// code under test.
var named = os.Getenv("FIRESTORE_EMULATOR_HOST")

var dialled = sync.OnceValue(func() error {
	conn, err := net.DialTimeout("tcp", named, 5*time.Second)
	if err == nil {
		err = conn.Close()
	}
	return err
})

// Google returns the host:port of Google's Firestore emulator. The test is skipped if
// FIRESTORE_EMULATOR_HOST does not name one, and fails if nothing answers there.
func Google(t testing.TB) string {
	t.Helper()
	if named == "" {
		t.Skip("FIRESTORE_EMULATOR_HOST names no emulator")
	}
	if err := dialled(); err != nil {
		t.Fatalf("nothing answers at FIRESTORE_EMULATOR_HOST=%s: %v", named, err)
	}
	return named
}

// Main runs the package's tests, isolated, and returns the code with which TestMain exits.
func Main(m *testing.M) int {
	// On Google's emulator cases wait for time to pass, not for a processor. The
	// command line is parsed later and takes precedence.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	Isolate()
	return m.Run()
}

// Project returns a Google Cloud project id that no other test uses.
func Project() string { return "t-" + strings.ToLower(rand.Text()[:20]) }

// The variables that the programs, Google's libraries and OpenTelemetry's read,
// by prefix and by name. The developer who runs the tests may have exported them.
var (
	isolatedPrefixes = []string{
		"CLOUD_RUN_", "CLOUD_TASKS_", "DOCLOCK_", "DOCUMENT_LOCK", "FIRESTORE_", "GCE_METADATA_", "GOOGLE_", "ITERM_", "K_",
		"LOCK_", "LC_", "LOG_", "OTEL_", "PROJECT_LOCK_", "PUSHER_", "SESSION_", "TASK_", "TERM_SESSION_",
	}
	isolatedNames = []string{
		"ALLOWED_ORIGINS", "ANALYSES_COLLECTION", "ANALYSIS_ID", "ANALYZER", "ANALYZER_ENV", "ANALYZER_OUTPUT",
		"ATTEMPT", "AUTHORIZE_URL", "CHECKPOINT_INTERVAL", "CLOUDSDK_CORE_PROJECT", "CLOUDSDK_RUN_REGION",
		"CONCURRENCY_KEY", "CONCURRENCY_LIMIT", "CONCURRENCY_RETRY", "KEEP_FINISHED", "KINDS",
		"LANG", "LOCKS_PER_SESSION", "MAX_ATTEMPTS", "MAX_RUNS", "MAX_RUN_TIME", "NO_COLOR", "OPERATORS_FILE", "PORT",
		"RETRY_MAX", "RETRY_MIN", "RUN_TIMEOUT", "SMOKE_INPUT", "SOCKETS_PER_SESSION", "STALL_TIMEOUT",
		"SWEEP_INTERVAL", "TRACEPARENT", "TRACESTATE",
	}
)

// Isolate removes the variables that the code under test reads from the process's
// environment, so that a test has only the variables that it sets itself. [Google] still finds
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

// Log collects the output of a program under test. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends p.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all that has been written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Await returns once text has been written, and fails t after 30 s.
func (l *Log) Await(t testing.TB, text string) {
	t.Helper()
	end := time.Now().Add(30 * time.Second)
	for ; !strings.Contains(l.String(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%q was not written: %s", text, l.String())
		}
	}
}
