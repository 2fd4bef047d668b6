//go:build linux || darwin

package orchestrator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// program is this test binary as one of its programs.
func program(t *testing.T, grace time.Duration, args ...string) orchestrator.Analyzer {
	t.Helper()
	spec := "exec:" + strings.Join(append([]string{testBinary(t), asProgram}, args...), " ")
	a, err := orchestrator.NewWithGrace(spec, grace)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func testBinary(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return word(t, self)
}

// never is a grace that is longer than any test.
const never = time.Hour

// waitForLine returns the contents of file once it has the line.
func waitForLine(t *testing.T, file, line string) string {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(text), line+"\n") {
			return string(text)
		}
	}
	t.Errorf("no %q in 30 s", line)
	return ""
}

// assertAllEnded fails the test if a process that locked file still runs.
func assertAllEnded(t *testing.T, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Errorf("a process still runs: %v", err)
	}
	if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
		t.Errorf("%d, %v: a child's exit status was not read", pid, err)
	}
}

func newAliveFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(word(t, t.TempDir()), "alive")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

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

func TestProgramGetsTheJobOnStandardInput(t *testing.T) {
	job := orchestrator.Job{AnalysisID: "a1", LockToken: 7, Attempt: 2, Input: json.RawMessage(`{"n": 1}`)}
	equal(t, result(t, program(t, never, "cat"), job), map[string]any{
		"analysis_id": "a1", "lock_token": int64(7), "attempt": int64(2), "input": map[string]any{"n": int64(1)},
	})
	equal(t, result(t, program(t, never, "cat"), orchestrator.Job{Input: json.RawMessage{}}), map[string]any{"analysis_id": "", "lock_token": int64(0), "attempt": int64(0), "input": nil})
}

func TestProgramGetsTheJobInItsEnvironment(t *testing.T) {
	t.Setenv("ANALYSIS_ID", "another's")
	got := result(t, program(t, never, "environment"),
		orchestrator.Job{AnalysisID: "a 1", LockToken: 1 << 40, Attempt: 3})
	equal(t, got, map[string]any{
		"ANALYSIS_ID": "a 1", "LOCK_TOKEN": "1099511627776", "ATTEMPT": "3",
	})
}

// A worker's environment may hold secrets that no analyzer needs.
func TestProgramGetsOnlyTheListedVariables(t *testing.T) {
	worker := map[string]string{"LC_TIME": "C", "OTEL_EXPORTER_OTLP_HEADERS": "authorization=s3cret", "MODEL": "m", "MODEL_KEY": "k", "A_MODEL": "a", "FIRESTORE_EMULATOR_HOST": "f", "https_proxy": "p", "TRACEPARENT": "of this process", "ATTEMPT": "9"}
	for name, value := range worker {
		t.Setenv(name, value)
	}
	for listed, want := range map[string][]string{
		"":             {},
		"MODEL":        {"MODEL"},
		"MODEL*":       {"MODEL", "MODEL_KEY"},
		"MODEL_,ODEL*": {},
		"*":            {"A_MODEL", "MODEL", "MODEL_KEY", "OTEL_EXPORTER_OTLP_HEADERS"},
	} {
		a := newAnalyzer(t, "exec:env", orchestrator.Options{AnyOutput: true, Env: strings.Split(listed, ",")})
		out := result(t, a, orchestrator.Job{Attempt: 2})
		var got []string
		for line := range strings.Lines(out.(string)) {
			if name, value, _ := strings.Cut(strings.TrimSpace(line), "="); worker[name] != "" && worker[name] == value {
				got = append(got, name)
			}
		}
		want = append(want, "FIRESTORE_EMULATOR_HOST", "LC_TIME", "https_proxy") // in any case
		slices.Sort(got)
		slices.Sort(want)
		equal(t, got, want)
		withheld := a.(interface{ Withheld([]string) []string }).Withheld(os.Environ())
		for name := range worker {
			if name != "ATTEMPT" && slices.Contains(withheld, name) == slices.Contains(want, name) {
				t.Errorf("%q: %s: withheld %q", listed, name, withheld)
			}
		}
	}
}

func TestProgramsArgumentsAreSplitAtSpacesWithoutAShell(t *testing.T) {
	equal(t, result(t, program(t, never, "arguments", "$HOME", "  'a", "b'", "*"), orchestrator.Job{}), []any{"$HOME", "'a", "b'", "*"})
}

func TestProgramsOutputIsTheResult(t *testing.T) {
	for stdout, want := range map[string]any{
		`{\"n\":1.5}\n`:     map[string]any{"n": 1.5},
		`12\n`:              int64(12),
		``:                  nil,
		`\ufeff{\"n\":1}\n`: map[string]any{"n": int64(1)},
		`\ufeff`:            nil,
		`\ufeffé\n`:         "\ufeffé",
		`é\r\n`:             "é",
		`a\r`:               "a\r",
	} {
		equal(t, result(t, program(t, never, "end", "0", "out="+stdout, "err=noise"), orchestrator.Job{}), want)
	}
}

// A value computed in float64 is printed with up to 17 digits by some languages.
func TestAPrintedDecimalIsRoundedWithAWarning(t *testing.T) {
	for stdout, want := range map[string]any{
		`[1234567890123456.78,0.10000000000000001]`: []any{1234567890123456.8, 0.1},
		`[1234567890123456.8,0.10]`:                 []any{1234567890123456.8, 0.1},
	} {
		var got recorder
		equal(t, result(t, program(t, never, "end", "0", "out="+stdout, "err="), orchestrator.Job{Reporter: &got}), want)
		if warned := strings.Join(got.warned, ";"); (warned == "a number has more digits than a document can hold: it is rounded") != strings.Contains(stdout, ".78") {
			t.Errorf("%s: warned %q", stdout, warned)
		}
	}
	_, err := orchestrator.Run(t.Context(), program(t, never, "end", "0", "out=12345678901234567891", "err="), orchestrator.Job{})
	wantPermanent(t, err, orchestrator.CodeResultInvalid, "beyond int64")
}

func TestProgramsOutputMustBeJSONIfJSONIsWanted(t *testing.T) {
	for stdout, stopped := range map[string]string{``: "it is empty", `\ufeff`: "it is empty", `\ufeff{}x`: "after 3 of 3 bytes", `{\"a\":\"\xc3`: "after 7 of 7 bytes"} {
		spec := strings.Join([]string{"exec:" + testBinary(t), asProgram, "end", "0", "out=" + stdout, "err="}, " ")
		_, err := orchestrator.Run(t.Context(), newAnalyzer(t, spec, orchestrator.Options{}), orchestrator.Job{})
		wantInvalidOutput(t, err, stopped)
	}
}

// A program that finds its own run's lock, and skips the work, prints nothing.
func TestAProgramThatPrintsNothingIsOneWarning(t *testing.T) {
	for _, stdout := range []string{``, `\n`, `\ufeff`} {
		var got recorder
		equal(t, result(t, program(t, never, "end", "0", "out="+stdout, "err="), orchestrator.Job{Reporter: &got}), nil)
		equal(t, got.warned, []string{"the output is empty, and the result is null"})
	}
}

func TestProgramsBinaryOutputIsRefused(t *testing.T) {
	for _, stdout := range []string{`\xff\xfe\x00`, `{\"n\":\"\xff\"}`} {
		_, err := orchestrator.Run(t.Context(), program(t, never, "end", "0", "out="+stdout, "err="), orchestrator.Job{})
		wantPermanent(t, err, orchestrator.CodeResultInvalid, "result")
	}
}

func TestExit65RejectsTheJobPermanently(t *testing.T) {
	for stderr, want := range map[string]string{
		`\n\x20no\x20such\x20page\n`: "no such page",
		``:                           filepath.Base(testBinary(t)) + " ended with exit status 65",
		strings.Repeat(`\x80`, 3000): filepath.Base(testBinary(t)) + " ended with exit status 65",
		`\xffbad`:                    "\uFFFDbad",
	} {
		_, err := orchestrator.Run(t.Context(), program(t, never, "end", "65", "out=ignored", "err="+stderr), orchestrator.Job{})
		equal(t, permanent(t, err), orchestrator.PermanentError{Code: orchestrator.CodeAnalyzerRejected, Message: want})
	}
}

func TestProgramsMessageIsTheEndOfStandardErrorCutBetweenCharacters(t *testing.T) {
	_, err := orchestrator.Run(t.Context(), program(t, never, "end", "65", "out=",
		"err=begin"+strings.Repeat(`é`, 5000)+"!"), orchestrator.Job{})
	equal(t, permanent(t, err).Message, strings.Repeat("é", 1023)+"!")
}

func TestOtherExitsAreRetried(t *testing.T) {
	_, err := orchestrator.Run(t.Context(), program(t, never, "end", "1", `out={}`, `err=disk\x20full\n`), orchestrator.Job{})
	wantRetry(t, err, "exit status 1: disk full")
	_, err = orchestrator.Run(t.Context(), program(t, never, "end", "66", `out={}`, "err="), orchestrator.Job{})
	wantRetry(t, err, "exit status 66")
	_, err = orchestrator.Run(t.Context(), program(t, never, "die"), orchestrator.Job{})
	wantRetry(t, err, "signal: killed")
}

// deletedProgram returns an analyzer whose program has been deleted.
func deletedProgram(t *testing.T) orchestrator.Analyzer {
	t.Helper()
	file := filepath.Join(word(t, t.TempDir()), "tool")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	a := newAnalyzer(t, "exec:"+file, orchestrator.Options{AnyOutput: true})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestADeletedProgramIsRetried(t *testing.T) {
	_, err := orchestrator.Run(t.Context(), deletedProgram(t), orchestrator.Job{})
	wantRetry(t, err, "tool: ")
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v does not wrap os.ErrNotExist", err)
	}
}

func TestProgramMayReadALargeInputOrNot(t *testing.T) {
	text := strings.Repeat("x", 900<<10)
	input, _ := json.Marshal(text)
	equal(t, result(t, program(t, never, "end", "0", "out=fine", "err="), orchestrator.Job{Input: input}), "fine")
	got := result(t, program(t, never, "cat"), orchestrator.Job{Input: input})
	equal(t, got.(map[string]any)["input"], any(text))
}

func TestProgramThatPrintsTooMuchIsEnded(t *testing.T) {
	for _, args := range [][]string{
		{"flood", "stdout", "10485760", "0"},
		{"flood", "stdout", "10485760", "1"},
		{"flood", "stdout", "1000000000000000", "0"}, // does not end by itself
	} {
		_, err := orchestrator.Run(t.Context(), program(t, never, args...), orchestrator.Job{})
		wantTooLarge(t, err)
	}
	_, err := orchestrator.Run(t.Context(), program(t, never, "flood", "stdout", "2097152", "0"), orchestrator.Job{})
	wantTooLarge(t, err) // fits through the pipe, but not into the document
}

func TestStandardErrorIsCopiedToTheJobsStderr(t *testing.T) {
	for _, status := range []string{"0", "3"} {
		var all bytes.Buffer
		_, err := orchestrator.Run(t.Context(), program(t, never, "flood", "stderr", "65536", status), orchestrator.Job{Stderr: &all})
		if (err == nil) != (status == "0") || all.Len() != 65536 {
			t.Errorf("exit %s: %v, %d bytes, want 65536", status, err, all.Len())
		}
	}
}

// writes counts the calls of Write.
type writes int

func (w *writes) Write(b []byte) (int, error) { *w++; return len(b), nil }

func TestAProgramWithoutStandardErrorWritesNothingToTheJobsStderr(t *testing.T) {
	var n writes
	_, err := orchestrator.Run(t.Context(), program(t, never, "flood", "stdout", "1", "0"), orchestrator.Job{Stderr: &n})
	if err != nil || n != 0 {
		t.Errorf("%d writes, %v; want none", n, err)
	}
}

func TestALongStandardErrorNeitherBlocksNorFillsMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := orchestrator.Run(t.Context(), program(t, never, "flood", "stderr", "67108864", "3"), orchestrator.Job{})
	runtime.ReadMemStats(&after)
	wantRetry(t, err, "exit status 3: "+strings.Repeat("x", 1000))
	if len(err.Error()) > 4<<10 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 32<<20 {
		t.Errorf("64 MiB of standard error took %d bytes of memory", grown)
	}
}

func TestProgramIsNotStartedForAContextThatHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errLost)
	// Starting this program would be another error.
	_, err := deletedProgram(t).Analyze(ctx, orchestrator.Job{})
	if !errors.Is(err, errLost) {
		t.Errorf("got %v, want the context's cause", err)
	}
}

func TestInputThatIsNotJSONIsRefusedPermanently(t *testing.T) {
	for _, a := range []orchestrator.Analyzer{deletedProgram(t), program(t, never, "cat"), newAnalyzer(t, "http://host", orchestrator.Options{})} {
		_, err := orchestrator.Run(t.Context(), a, orchestrator.Job{Input: json.RawMessage(`{`)})
		wantPermanent(t, err, orchestrator.CodeInvalidInput, "not JSON")
	}
}

func TestProgramReceivesTheTraceOfTheRunAndNoOther(t *testing.T) {
	t.Setenv("TRACEPARENT", "of this process")
	t.Setenv("TRACESTATE", "of=this")
	for ctx, want := range map[context.Context]any{withSpan(t): traceparent + " vendor=1", t.Context(): nil} { // nil: only blanks
		got, err := orchestrator.Run(ctx, program(t, never, "trace"), orchestrator.Job{})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, got, want)
	}
}
