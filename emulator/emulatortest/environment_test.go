package emulatortest

import (
	"os"
	"regexp"
	"testing"
)

// The page lists all that the programs read: docs holds it to the code.
func TestWhatTheProgramsReadIsTakenOutOfTheEnvironment(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": true, "GOOGLE_APPLICATION_CREDENTIALS": true}
	for _, row := range regexp.MustCompile("(?m)^\\| `[A-Z]+_.*|^\\| `PORT.*|^`taskguard` reads.*").FindAllString(string(page), -1) {
		for _, name := range regexp.MustCompile("`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|PORT|ANALYZER)`").FindAllStringSubmatch(row, -1) {
			names[name[1]] = true
		}
	}
	if len(names) < 50 {
		t.Errorf("%d variables: does this test still see?", len(names))
	}
	for name := range names {
		t.Setenv(name, "") // Google is not to look for an emulator
	}
	Isolate()
	for name := range names {
		if _, set := os.LookupEnv(name); set {
			t.Errorf("%s is left", name)
		}
	}
}

func TestWhatTestsAreRunByStaysInTheEnvironment(t *testing.T) {
	names := []string{
		"PATH", "HOME", "TMPDIR", "JAVA_HOME", "CLOUDSDK_ROOT_DIR", "GOOGLE_FIRESTORE_EMULATOR_JAR", "GOCACHE", "GOFLAGS",
		requireVariable, "REQUIRE_CHROMIUM", "REQUIRE_PYTHON", "REQUIRE_NODE", "TASKGUARD_NO_GOOGLE_EMULATOR", "TASKGUARD_NO_CHROMIUM", "TASKGUARD_NO_PYTHON", "TASKGUARD_NO_NODE",
		"TASKGUARD_TEST_AS_PROGRAM", "TASKGUARD_TEST_WORKER", "TEST_AS_WORKER", "TEST_CLIENT_OF", "LEASE_TEST_DIR",
		"BROWSER_SHOTS", "CHAOS", "CHAOS_SEED", "SIMULATE_SEEDS", "EXPLORE_REPLAY", "MUTANTS",
	}
	for _, name := range names {
		t.Setenv(name, "as it was")
	}
	Isolate()
	for _, name := range names {
		if got := os.Getenv(name); got != "as it was" {
			t.Errorf("%s is %q, want it as it was", name, got)
		}
	}
}
