// Package emulatortest gives tests an embedded Firestore or Google's emulator.
//
// A test process has one emulator of Google's, started when a test first asks
// for it and shared by all of them: each test uses a [Project] of its own.
package emulatortest

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/emulator/google"
)

const (
	hostVariable    = "FIRESTORE_EMULATOR_HOST"
	requireVariable = "REQUIRE_GOOGLE_EMULATOR"
)

// named is the host that the environment of the process names. A test may set the variable for the
// code under test while another goroutine starts the emulator.
var named = os.Getenv(hostVariable)

// shared is the emulator of the test process, or the error of its start.
var shared struct {
	once     sync.Once
	host     string
	err      error
	emulator *google.Emulator // nil: none was started
}

// Google returns the host:port of Google's Firestore emulator, the same for all
// tests of one process. The first call starts it and blocks for 1 to 4 s. If
// FIRESTORE_EMULATOR_HOST names an emulator, that one is used, and the test fails if
// nothing listens there.
//
// If the emulator is not installed, the test is skipped with a message; with
// REQUIRE_GOOGLE_EMULATOR set (to anything but "" or "0") it fails instead. An
// emulator that is installed and does not start always fails the test.
//
// The emulator ends with the process; [Main] stops it first.
func Google(t testing.TB) string {
	t.Helper()
	shared.once.Do(findOrStart)
	endWithout(t, shared.err)
	return shared.host
}

func findOrStart() {
	if shared.host = named; shared.host != "" {
		conn, err := net.DialTimeout("tcp", shared.host, 5*time.Second)
		if err != nil {
			shared.err = fmt.Errorf("emulatortest: nothing answers at %s=%s: %w", hostVariable, shared.host, err)
			return
		}
		_ = conn.Close()
		return
	}

	if shared.emulator, shared.err = google.Start(context.Background(), "256m"); shared.err == nil {
		shared.host = shared.emulator.Host()
	}
}

// endWithout skips or fails the test if there is no emulator.
func endWithout(t testing.TB, err error) {
	t.Helper()
	switch missing := errors.Is(err, google.ErrNotFound); {
	case missing && Required():
		t.Fatalf("%s is set, but %v", requireVariable, err)
	case missing:
		t.Skipf("needs Google's emulator: %v", err)
	case err != nil:
		t.Fatal(err)
	}
}

// Required reports whether REQUIRE_GOOGLE_EMULATOR makes the absence of Google's
// emulator a failure.
func Required() bool {
	v := os.Getenv(requireVariable)
	return v != "" && v != "0"
}

// Main runs the package's tests, isolated, then stops the emulator that Google
// started, and returns the code with which TestMain exits.
func Main(m *testing.M) int {
	// On Google's emulator cases wait for time to pass, not for a processor. The
	// command line is parsed later and takes precedence.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	Isolate()
	code := m.Run()

	shared.once.Do(func() {}) // waits for a start
	if shared.emulator != nil {
		if err := shared.emulator.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "emulatortest:", err)
			code = max(code, 1)
		}
	}
	return code
}

// Project returns a Google Cloud project id that no other test uses.
func Project() string { return "t-" + strings.ToLower(rand.Text()[:20]) }
