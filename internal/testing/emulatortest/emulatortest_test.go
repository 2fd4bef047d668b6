package emulatortest

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"sync"
	"testing"

	"taskguard/emulator/google"
)

func TestATestWithoutTheEmulatorIsSkippedOrFails(t *testing.T) {
	missing := fmt.Errorf("%w: no jar", google.ErrNotFound)
	for _, tc := range []struct {
		name     string
		required string
		err      error
		want     string
	}{
		{"not installed: skipped", "", missing, "skip: needs Google's emulator: " + missing.Error()},
		{"not installed, REQUIRE 0: skipped", "0", missing, "skip: needs Google's emulator: " + missing.Error()},
		{"not installed but required: failed", "1", missing, "fail: REQUIRE_GOOGLE_EMULATOR is set, but " + missing.Error()},
		{"installed but broken: failed", "", errors.New("no answer"), "fail: no answer"},
		{"there: runs", "1", nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(requireVariable, tc.required)
			r := &recorder{TB: t}
			var ended sync.WaitGroup
			ended.Go(func() { endWithout(r, tc.err) })
			ended.Wait()
			if r.outcome != tc.want {
				t.Errorf("the test ends with %q, want %q", r.outcome, tc.want)
			}
		})
	}
}

// recorder is a test that records how it is ended.
type recorder struct {
	testing.TB
	outcome string
}

func (r *recorder) Skipf(format string, args ...any) { r.end("skip: " + fmt.Sprintf(format, args...)) }

func (r *recorder) Fatalf(format string, args ...any) { r.end("fail: " + fmt.Sprintf(format, args...)) }

func (r *recorder) Fatal(args ...any) { r.end("fail: " + fmt.Sprint(args...)) }

func (r *recorder) end(outcome string) {
	r.outcome = outcome
	runtime.Goexit()
}

// docs/reference.md lists all variables of the programs: docs/ checks it.
func TestIsolateRemovesTheVariablesOfTheProgramsAndKeepsThoseOfTheTests(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	kept := map[string]bool{"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": false, "GOOGLE_APPLICATION_CREDENTIALS": false}
	for _, row := range regexp.MustCompile("(?m)^\\| `[A-Z]+_.*|^\\| `PORT.*|^`taskguard` reads.*").FindAllString(string(page), -1) {
		for _, name := range regexp.MustCompile("`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|PORT|ANALYZER)`").FindAllStringSubmatch(row, -1) {
			kept[name[1]] = false
		}
	}
	if len(kept) < 50 {
		t.Errorf("only %d variables found on the page", len(kept))
	}
	for _, name := range []string{
		"LD_LIBRARY_PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", // only passed on, to analyzers
		"PATH", "HOME", "TMPDIR", "JAVA_HOME", "GOOGLE_FIRESTORE_EMULATOR_JAR", "GOCACHE", "GOFLAGS", requireVariable,
		"REQUIRE_CHROMIUM", "REQUIRE_NODE", "TASKGUARD_NO_GOOGLE_EMULATOR", "TASKGUARD_NO_CHROMIUM", "TASKGUARD_TEST_AS_PROGRAM",
		"TEST_AS_WORKER", "LEASE_TEST_DIR", "BROWSER_SHOTS", "CHAOS", "CHAOS_SEED", "SIMULATE_SEEDS", "EXPLORE_DEPTH", "MUTANTS",
	} {
		kept[name] = true
	}

	for name := range kept {
		t.Setenv(name, "x")
	}
	Isolate()
	for name, want := range kept {
		if got := os.Getenv(name) == "x"; got != want {
			t.Errorf("%s is kept: %t, want %t", name, got, want)
		}
	}
}
