// Package emulatortest gives tests an embedded Firestore or Google's emulator.
//
// Google's emulator is the one that FIRESTORE_EMULATOR_HOST names, which all tests share:
// each uses a [Project] of its own. Without the variable they are skipped.
package emulatortest

import (
	"crypto/rand"
	"flag"
	"os"
	"strings"
	"testing"
)

// named is the host that the environment of the process names. A test may set the variable for the
// code under test.
var named = os.Getenv("FIRESTORE_EMULATOR_HOST")

// Google returns the host:port of Google's Firestore emulator. The test is skipped if
// FIRESTORE_EMULATOR_HOST does not name one.
func Google(t testing.TB) string {
	t.Helper()
	if named == "" {
		t.Skip("FIRESTORE_EMULATOR_HOST names no emulator")
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
