package mutants

import (
	"errors"
	"strings"
	"testing"
)

// verdict is what became of a test.
type verdict string

const (
	passed    verdict = "passed"
	failed    verdict = "failed"
	hung      verdict = "hung"
	notRun    verdict = "did not run"
	notBuilt  verdict = "was not built"
	undecided verdict = "ended without a verdict"
)

// judge reads the verdict on one test from what go test -v said, and from
// whether it failed.
func judge(test, out string, err error) verdict {
	says := func(s string) bool { return strings.Contains(out, s) }
	switch {
	case says("[build failed]"), says("[setup failed]"):
		return notBuilt
	case says("panic: test timed out after "):
		return hung
	case !says("=== RUN   " + test + "\n"):
		return notRun
	case err == nil && says("--- PASS: "+test+" ("):
		return passed
	case err != nil && (says("--- FAIL: "+test+" (") || says("\npanic: ")):
		return failed
	}
	return undecided
}

func TestAVerdictIsTheNamedTestsOwn(t *testing.T) {
	exit := errors.New("exit status 1")
	const run = "=== RUN   TestA\n=== RUN   TestA/b\n"
	for name, c := range map[string]struct {
		out  string
		err  error
		want verdict
	}{
		"it passed":                     {run + "--- PASS: TestA (0.00s)\n    --- PASS: TestA/b (0.00s)\nPASS\n", nil, passed},
		"it failed":                     {run + "--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/b (0.00s)\nFAIL\n", exit, failed},
		"it panicked in a goroutine":    {run + "panic: boom\n\ngoroutine 1\nFAIL\ttaskguard/a\t0.1s\n", exit, failed},
		"it was skipped":                {run + "--- PASS: TestA (0.00s)\n    --- SKIP: TestA/b (0.00s)\nPASS\n", nil, undecided},
		"only another failed":           {run + "--- FAIL: TestA (0.00s)\n    --- PASS: TestA/b (0.00s)\nFAIL\n", exit, undecided},
		"no subtest of the name":        {"=== RUN   TestA\n--- PASS: TestA (0.00s)\nPASS\n", nil, notRun},
		"no subtest of the whole name":  {"=== RUN   TestA\n=== RUN   TestA/bc\n    --- FAIL: TestA/bc (0.00s)\nFAIL\n", exit, notRun},
		"no test of the name":           {"testing: warning: no tests to run\nPASS\n", nil, notRun},
		"the bug does not compile":      {"# taskguard/a\na/a.go:1:1: undefined: x\nFAIL\ttaskguard/a [build failed]\nFAIL\n", exit, notBuilt},
		"the bug imports what is not":   {"FAIL\ttaskguard/a [setup failed]\nFAIL\n", exit, notBuilt},
		"it was still running, and has": {run + "panic: test timed out after 2m0s\n\trunning tests:\n\t\tTestA/b (2m0s)\nFAIL\n", exit, hung},
	} {
		t.Run(name, func(t *testing.T) {
			if got := judge("TestA/b", c.out, c.err); got != c.want {
				t.Errorf("it %s, want that it %s", got, c.want)
			}
		})
	}
}
