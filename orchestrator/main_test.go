package orchestrator_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
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

func TestNewRefusesOtherSpecsAndShowsNoSecret(t *testing.T) {
	dir := word(t, t.TempDir())
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const other = "is not builtin:document, exec:"
	for spec, want := range map[string]string{
		"": other, "document": other, "s3cret@host": other, "ftp://u:s3cret@host/": other, "builtin:": other, "builtin:nope": other,
		"exec:":                     "names no program",
		"exec:   ":                  "names no program",
		"exec:no-such-program-here": `"no-such-program-here": executable file not found`,
		"exec:" + dir:               dir,
		"exec:" + plain:             "permission denied",
		"exec:" + plain + "-absent": "no such file",
		"http://":                   "no host",
		"http://:80/":               "no host",
		"https:///path?s3cret":      "no host",
		"http:opaque":               "no host",
		"http://u:s3cret/x@host/":   "does not parse",
	} {
		_, err := orchestrator.New(spec, orchestrator.Options{})
		if err == nil || !strings.HasPrefix(err.Error(), "orchestrator: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: got %v, want %q in it", spec, err, want)
		}
	}
	for _, spec := range []string{"exec:sh -c true", "exec: sh", "builtin:document", "http://host", "https://u:p@host:1/x?y"} {
		newAnalyzer(t, spec, orchestrator.Options{})
	}
}

// panicky panics while it is encoded.
type panicky struct{}

func (panicky) MarshalText() ([]byte, error) { return nil, panickyAnalyzer() }

func panickyAnalyzer() error {
	panic(&orchestrator.PermanentError{Code: "mine", Message: "not returned"})
}

func TestAPanicIsRetried(t *testing.T) {
	for name, analyze := range map[string]func() (orchestrator.Result, error){
		"in the analyzer":             func() (orchestrator.Result, error) { return nil, panickyAnalyzer() },
		"while the result is encoded": func() (orchestrator.Result, error) { return panicky{}, nil },
	} {
		a := orchestrator.AnalyzerFunc(func(context.Context, orchestrator.Job) (orchestrator.Result, error) { return analyze() })
		got, err := orchestrator.Run(t.Context(), a, orchestrator.Job{})
		var panicked *orchestrator.PanicError
		if !errors.As(err, &panicked) || errors.As(err, new(*orchestrator.PermanentError)) || got != nil {
			t.Fatalf("%s: got %v, %v; want a *PanicError", name, got, err)
		}
		if text := err.Error(); !strings.Contains(text, "not returned") || strings.Contains(text, "goroutine") {
			t.Errorf("%s: %v, want the value of the panic, and not the stack", name, err)
		}
		if !strings.Contains(string(panicked.Stack), "panickyAnalyzer") {
			t.Errorf("%s: the stack does not show where: %s", name, panicked.Stack)
		}
	}
}

func TestRunKeepsTheAnalyzersError(t *testing.T) {
	want := &orchestrator.PermanentError{Code: "mine", Message: "no", Err: io.EOF}
	a := orchestrator.AnalyzerFunc(func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
		return "ignored", want
	})
	got, err := orchestrator.Run(t.Context(), a, orchestrator.Job{})
	if got != nil || !errors.Is(err, want) || !errors.Is(err, io.EOF) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}
