package orchestrator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
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

// newFile returns the path of a new file with this text.
func newFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(word(t, t.TempDir()), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
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

// want7 wants a run that succeeds with 7.
func want7(t *testing.T, got any, err error) {
	t.Helper()
	if got != int64(7) || err != nil {
		t.Errorf("got %v, %v; want 7", got, err)
	}
}

func wantTooLarge(t *testing.T, err error) {
	t.Helper()
	wantPermanent(t, err, orchestrator.CodeResultTooLarge, " bytes")
}

// wantRetry wants another error, with these words.
func wantRetry(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil || errors.As(err, new(*orchestrator.PermanentError)) {
		t.Fatalf("got %v, want an error to be retried", err)
	}
	for _, w := range append(want, "orchestrator: ") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got %q, want %q in it", err, w)
		}
	}
}

func TestNew(t *testing.T) {
	plain := newFile(t, "#!/bin/sh\n")
	const other = "is not builtin:document, exec:"
	for spec, want := range map[string]string{
		"": other, "document": other, "builtin:nope": other, "s3cret@host": other, "ftp://u:s3cret@host/": other,
		"exec:   ":                  "no program",
		"exec:no-such-program-here": "no-such-program-here",
		"exec:" + plain:             "permission denied",
		"exec:" + plain + "-absent": "no such file",
		"http://:80/":               "no host",
		"https:///path?s3cret":      "no host",
		"http:opaque":               "no host",
		"http://u:s3cret/x@host/":   "does not parse",
	} {
		_, err := orchestrator.New(spec, orchestrator.Options{})
		if text := fmt.Sprint(err); !strings.Contains(text, want) || strings.Contains(text, "s3cret") {
			t.Errorf("%q: got %q, want %q in it", spec, text, want)
		}
	}
	for _, spec := range []string{"exec: sh", "builtin:document", "https://u:p@host:1/x?y"} {
		newAnalyzer(t, spec, orchestrator.Options{})
	}
}

// panicky panics while it is encoded.
type panicky struct{}

func (panicky) MarshalText() ([]byte, error) { return nil, panickyAnalyzer() }

func panickyAnalyzer() error {
	panic(&orchestrator.PermanentError{Code: "mine", Message: "not returned"})
}

func TestRun_Panic(t *testing.T) {
	for name, analyze := range map[string]func() (orchestrator.Result, error){
		"in the analyzer":             func() (orchestrator.Result, error) { return nil, panickyAnalyzer() },
		"while the result is encoded": func() (orchestrator.Result, error) { return panicky{}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			a := func(context.Context, orchestrator.Job) (orchestrator.Result, error) { return analyze() }
			_, err := orchestrator.Run(t.Context(), orchestrator.AnalyzerFunc(a), orchestrator.Job{})
			var panicked *orchestrator.PanicError
			if !errors.As(err, &panicked) || errors.As(err, new(*orchestrator.PermanentError)) {
				t.Fatalf("got %v, want a *PanicError", err)
			}
			if text := err.Error(); !strings.Contains(text, "not returned") || strings.Contains(text, "goroutine") {
				t.Errorf("%v, want the value of the panic, and not the stack", err)
			}
			if !strings.Contains(string(panicked.Stack), "panickyAnalyzer") {
				t.Errorf("the stack does not show where: %s", panicked.Stack)
			}
		})
	}
}

func TestRun_Error(t *testing.T) {
	want := &orchestrator.PermanentError{Code: "mine", Message: "no", Err: io.EOF}
	a := orchestrator.AnalyzerFunc(func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
		return "ignored", want
	})
	got, err := orchestrator.Run(t.Context(), a, orchestrator.Job{})
	if !errors.Is(err, want) || !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want %v", err, want)
	}
	equal(t, got, nil)
}
