package emulatortest

import (
	"os"
	"regexp"
	"testing"

	"taskguard/internal/testing/must"
)

// docs/reference.md lists all variables of the programs: docs/ checks it.
func TestIsolate(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference.md")
	must.OK(t, err)
	kept := map[string]bool{"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": false, "GOOGLE_APPLICATION_CREDENTIALS": false}
	rows := regexp.MustCompile("(?m)^\\| `[A-Z]+_.*|^\\| `PORT.*|^`taskguard` reads.*")
	names := regexp.MustCompile("`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|PORT|ANALYZER)`")
	for _, row := range rows.FindAllString(string(page), -1) {
		for _, name := range names.FindAllStringSubmatch(row, -1) {
			kept[name[1]] = false
		}
	}
	if len(kept) < 50 {
		t.Errorf("only %d variables found on the page", len(kept))
	}
	for _, name := range []string{
		"LD_LIBRARY_PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "HTTP_PROXY", "HTTPS_PROXY",
		"NO_PROXY", // only passed on, to analyzers
		"PATH", "HOME", "TMPDIR", "GOCACHE", "GOFLAGS",
		"REQUIRE_CHROMIUM", "REQUIRE_NODE", "TASKGUARD_TEST_AS_PROGRAM",
		"TEST_AS_WORKER", "LEASE_TEST_DIR", "BROWSER_SHOTS", "CHAOS", "CHAOS_SEED",
		"CHAOS_KEYS", "SIMULATE_SEEDS", "EXPLORE_DEPTH", "MUTANTS",
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
