package orchestrator_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"taskguard/orchestrator"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == asProgram {
		programs[os.Args[2]](os.Args[3:])
		os.Exit(0)
	}
	// Under the race detector each program would else take a second to exit.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// word returns path for use in exec:. It skips the test if path has a space, because
// exec: is split there.
func word(t *testing.T, path string) string {
	t.Helper()
	if strings.Contains(path, " ") {
		t.Skipf("%q has a space, so exec: cannot name it", path)
	}
	return path
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// newAnalyzer returns the analyzer of a valid spec.
func newAnalyzer(t testing.TB, spec string, o orchestrator.Options) orchestrator.Analyzer {
	t.Helper()
	a, err := orchestrator.New(spec, o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// result returns the result of a job that has to succeed.
func result(t *testing.T, a orchestrator.Analyzer, job orchestrator.Job) any {
	t.Helper()
	got, err := orchestrator.Run(t.Context(), a, job)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// permanent returns err, which has to be a PermanentError, without what it wraps.
func permanent(t *testing.T, err error) orchestrator.PermanentError {
	t.Helper()
	var refused *orchestrator.PermanentError
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want a *PermanentError", err)
	}
	return orchestrator.PermanentError{Code: refused.Code, Message: refused.Message}
}

// wantPermanent wants a PermanentError with the code and these words.
func wantPermanent(t *testing.T, err error, code, words string) {
	t.Helper()
	if got := permanent(t, err); got.Code != code || !strings.Contains(got.Message, words) {
		t.Errorf("got %s: %q, want %s with %q", got.Code, got.Message, code, words)
	}
}
