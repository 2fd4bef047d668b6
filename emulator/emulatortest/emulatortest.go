// Package emulatortest lends Google's Firestore emulator to tests.
//
// A test process has one emulator, started when a test first asks for it and
// shared by all of them: tests keep apart by using a [Project] each. Test
// processes that run at the same time have one each, on ports of their own.
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

// process is the test process's emulator: what its tests have in common.
var process shared

// Google returns the host:port of Google's Firestore emulator, for concurrent
// tests of one process the same. The first call starts it and blocks for 1 to
// 4 s. Where FIRESTORE_EMULATOR_HOST is set nothing is started: that one is
// used, and the test fails if nothing listens there.
//
// Where the emulator is not installed the test is skipped, saying so; with
// REQUIRE_GOOGLE_EMULATOR set (to anything but "" or "0") it fails instead. An
// emulator that is installed and does not start always fails the test.
//
// The emulator ends with the process; with [Main], in an orderly way.
func Google(t testing.TB) string {
	t.Helper()
	return process.lend(t, os.Getenv, start)
}

// Required reports whether REQUIRE_GOOGLE_EMULATOR asks that the absence of
// Google's emulator be a failure.
func Required() bool { return required(os.Getenv) }

func required(getenv func(string) string) bool {
	v := getenv(requireVariable)
	return v != "" && v != "0"
}

// Main runs the package's tests, isolated, then stops what Google started, and
// returns the code to exit with. Use it from TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(emulatortest.Main(m)) }
func Main(m *testing.M) int {
	// On Google's emulator cases wait for time to pass, not for a processor.
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", "16"); err != nil {
			panic(err)
		}
	}
	Isolate()
	code := m.Run()
	if err := process.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "emulatortest:", err)
		code = max(code, 1)
	}
	return code
}

// Project returns a Google Cloud project id that no other test uses: 6 to 30
// lower-case letters, digits and hyphens, from the test's name and a random part.
func Project(t testing.TB) string {
	return projectID(t.Name())
}

func projectID(test string) string {
	const longest, randoms = 30, 10 // 10 of 32 letters: 50 bits
	name := []byte("t-")            // an id starts with a letter
	for _, c := range []byte(strings.ToLower(strings.TrimPrefix(test, "Test"))) {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			name = append(name, c)
		case name[len(name)-1] != '-':
			name = append(name, '-')
		}
	}
	name = name[:min(len(name), longest-randoms-1)]
	return strings.TrimRight(string(name), "-") + "-" + strings.ToLower(rand.Text()[:randoms])
}

// An emulator is what shared needs of a [google.Emulator].
type emulator interface {
	Host() string
	Stop() error
}

func start() (emulator, error) {
	e, err := google.Start(context.Background(), google.Options{})
	if err != nil {
		return nil, err // not a nil *google.Emulator in an interface
	}
	return e, nil
}

// shared is an emulator started at most once; the outcome, good or bad, is kept.
type shared struct {
	mu       sync.Mutex
	asked    bool
	host     string
	err      error
	emulator emulator // nil: none that is ours to stop
}

// lend returns the emulator's address, or ends the test.
func (s *shared) lend(t testing.TB, getenv func(string) string, start func() (emulator, error)) string {
	t.Helper()
	host, err := s.get(getenv, start)
	switch missing := errors.Is(err, google.ErrNotFound); {
	case missing && required(getenv):
		t.Fatalf("%s is set, but %v", requireVariable, err)
	case missing:
		t.Skipf("needs Google's emulator: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	return host
}

// get returns the emulator's address. Callers wait for the first to have it.
func (s *shared) get(getenv func(string) string, start func() (emulator, error)) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked {
		return s.host, s.err
	}
	s.asked = true
	if s.host = getenv(hostVariable); s.host != "" {
		s.err = listening(s.host)
		return s.host, s.err
	}
	if s.emulator, s.err = start(); s.err != nil {
		return "", s.err
	}
	s.host = s.emulator.Host()
	return s.host, nil
}

// stop ends the emulator if get started one.
func (s *shared) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.emulator == nil {
		return nil
	}
	return s.emulator.Stop()
}

// listening returns an error unless something accepts connections at host.
func listening(host string) error {
	conn, err := net.DialTimeout("tcp", host, 5*time.Second)
	if err != nil {
		return fmt.Errorf("emulatortest: %s is set to %q but nothing answers there: %w", hostVariable, host, err)
	}
	return conn.Close()
}
