//go:build linux || darwin

package orchestrator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// never is a grace that is longer than any test.
const never = time.Hour

// program is this test binary as one of its programs.
func program(t *testing.T, grace time.Duration, args ...string) orchestrator.Analyzer {
	t.Helper()
	return withGrace(t, strings.Join(append([]string{testBinary(t), asProgram}, args...), " "), grace)
}

// shell is a script of sh.
func shell(t *testing.T, script string) orchestrator.Analyzer {
	t.Helper()
	return withGrace(t, "/bin/sh "+newFile(t, script), never)
}

func withGrace(t *testing.T, line string, grace time.Duration) orchestrator.Analyzer {
	t.Helper()
	a, err := orchestrator.NewWithGrace("exec:"+line, grace)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// script runs a script of sh with this Reporter, until it has ended.
func script(ctx context.Context, t *testing.T, reporter orchestrator.Reporter, text string) (any, error) {
	t.Helper()
	return orchestrator.Run(ctx, shell(t, text), orchestrator.Job{Reporter: reporter})
}

func testBinary(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return word(t, self)
}

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

// deletedProgram returns an analyzer whose program has been deleted.
func deletedProgram(t *testing.T) orchestrator.Analyzer {
	t.Helper()
	file := newFile(t, "#!/bin/sh\n")
	if err := os.Chmod(file, 0o700); err != nil {
		t.Fatal(err)
	}
	a := newAnalyzer(t, "exec:"+file, orchestrator.Options{AnyOutput: true})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestProgram_Input(t *testing.T) {
	cat := newAnalyzer(t, "exec:cat", orchestrator.Options{})
	job := orchestrator.Job{AnalysisID: "a1", LockToken: 7, Attempt: 2, Input: json.RawMessage(`{"n": 1}`)}
	equal(t, result(t, cat, job), map[string]any{
		"analysis_id": "a1", "lock_token": int64(7), "attempt": int64(2), "input": map[string]any{"n": int64(1)},
	})
	t.Run("none is null", func(t *testing.T) {
		equal(t, result(t, cat, orchestrator.Job{Input: json.RawMessage{}}), map[string]any{
			"analysis_id": "", "lock_token": int64(0), "attempt": int64(0), "input": nil,
		})
	})
	t.Run("a large one is read or not", func(t *testing.T) {
		text := strings.Repeat("x", 900<<10)
		job := orchestrator.Job{Input: json.RawMessage(`"` + text + `"`)}
		equal(t, result(t, shell(t, "echo fine"), job), "fine")
		equal(t, result(t, cat, job).(map[string]any)["input"], any(text))
	})
	t.Run("one that is not JSON is refused", func(t *testing.T) {
		endpoint := newAnalyzer(t, "http://host", orchestrator.Options{})
		for _, a := range []orchestrator.Analyzer{deletedProgram(t), endpoint} {
			_, err := orchestrator.Run(t.Context(), a, orchestrator.Job{Input: json.RawMessage(`{`)})
			wantPermanent(t, err, orchestrator.CodeInvalidInput, "not JSON")
		}
	})
}

// environment returns the variables that a program gets.
func environment(ctx context.Context, t *testing.T, a orchestrator.Analyzer, job orchestrator.Job) map[string]string {
	t.Helper()
	text, err := orchestrator.Run(ctx, a, job)
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]string{}
	for line := range strings.Lines(text.(string)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		variables[name] = value
	}
	return variables
}

func TestProgram_Environment(t *testing.T) {
	t.Run("the job", func(t *testing.T) {
		for _, name := range []string{"ANALYSIS_ID", "TRACEPARENT", "TRACESTATE"} {
			t.Setenv(name, "of this process")
		}
		a := newAnalyzer(t, "exec:env", orchestrator.Options{AnyOutput: true, Env: []string{"*"}})
		got := environment(withSpan(t), t, a, orchestrator.Job{AnalysisID: "a 1", LockToken: 1 << 40, Attempt: 3})
		for name, want := range map[string]string{
			"ANALYSIS_ID": "a 1", "LOCK_TOKEN": "1099511627776", "ATTEMPT": "3",
			"TRACEPARENT": traceparent, "TRACESTATE": "vendor=1",
		} {
			if got[name] != want {
				t.Errorf("%s: got %q, want %q", name, got[name], want)
			}
		}
		got = environment(t.Context(), t, a, orchestrator.Job{})
		equal(t, got["TRACEPARENT"]+got["TRACESTATE"], "")
	})

	// A worker's environment may hold secrets that no analyzer needs.
	worker := []string{
		"LC_TIME", "OTEL_EXPORTER_OTLP_HEADERS",
		"MODEL", "MODEL_KEY", "A_MODEL", "FIRESTORE_EMULATOR_HOST", "https_proxy",
	}
	for _, name := range worker {
		t.Setenv(name, "set")
	}
	for listed, want := range map[string][]string{
		"":             {},
		"MODEL":        {"MODEL"},
		"MODEL*":       {"MODEL", "MODEL_KEY"},
		"MODEL_,ODEL*": {},
		"*":            {"A_MODEL", "MODEL", "MODEL_KEY", "OTEL_EXPORTER_OTLP_HEADERS"},
	} {
		t.Run("listed "+listed, func(t *testing.T) {
			a := newAnalyzer(t, "exec:env", orchestrator.Options{AnyOutput: true, Env: strings.Split(listed, ",")})
			got := environment(t.Context(), t, a, orchestrator.Job{})
			withheld := a.(interface{ Withheld([]string) []string }).Withheld(os.Environ())
			want := append(want, "FIRESTORE_EMULATOR_HOST", "LC_TIME", "https_proxy") // in any case
			for _, name := range worker {
				wanted := slices.Contains(want, name)
				if (got[name] == "set") != wanted || slices.Contains(withheld, name) == wanted {
					t.Errorf("%s: got %q, withheld %q", name, got[name], withheld)
				}
			}
		})
	}
}

// There is no shell.
func TestProgram_Arguments(t *testing.T) {
	a := newAnalyzer(t, "exec:printf [%s] $HOME   'a b' *", orchestrator.Options{AnyOutput: true})
	equal(t, result(t, a, orchestrator.Job{}), "[$HOME]['a][b'][*]")
}

func TestProgram_Output(t *testing.T) {
	_, err := orchestrator.Run(t.Context(), newAnalyzer(t, "exec:true", orchestrator.Options{}), orchestrator.Job{})
	wantInvalidOutput(t, err, "it is empty")
	const tooMuch = "head -c 10485760 /dev/zero | tr '\\0' x"
	for _, text := range []string{tooMuch, tooMuch + "; exit 1", "yes"} { // it does not end by itself
		_, err := script(t.Context(), t, nil, text)
		wantTooLarge(t, err)
	}
}

func TestProgram_Rejects(t *testing.T) {
	const without = "sh ended with exit status 65"
	for name, c := range map[string]struct{ script, message string }{
		"a message":    {`printf '\n no such page\n' >&2; echo ignored`, "no such page"},
		"no text":      {`head -c 3000 /dev/zero | tr '\0' '\200' >&2`, without},
		"invalid text": {`printf '\377bad' >&2`, "\uFFFDbad"},
		"a long one": { // its end, cut between characters
			"printf %s 'begin" + strings.Repeat("é", 5000) + "!' >&2", strings.Repeat("é", 1023) + "!",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := script(t.Context(), t, nil, c.script+"\nexit 65")
			want := orchestrator.PermanentError{Code: orchestrator.CodeAnalyzerRejected, Message: c.message}
			equal(t, permanent(t, err), want)
		})
	}
}

func TestProgram_Fails(t *testing.T) {
	for text, want := range map[string]string{
		"echo disk full >&2; echo {}; exit 1": "exit status 1: disk full",
		"exit 66":                             "exit status 66",
		"kill -KILL $$":                       "signal: killed",
	} {
		_, err := script(t.Context(), t, nil, text)
		wantRetry(t, err, want)
	}
	t.Run("a deleted program", func(t *testing.T) {
		_, err := orchestrator.Run(t.Context(), deletedProgram(t), orchestrator.Job{})
		if wantRetry(t, err, "file"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v does not wrap os.ErrNotExist", err)
		}
	})
	t.Run("a context that has ended", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errLost)
		// Starting this program would be another error.
		if _, err := deletedProgram(t).Analyze(ctx, orchestrator.Job{}); !errors.Is(err, errLost) {
			t.Errorf("got %v, want the context's cause", err)
		}
	})
}

// writes counts the calls of Write.
type writes int

func (w *writes) Write(b []byte) (int, error) { *w++; return len(b), nil }

func TestProgram_Stderr(t *testing.T) {
	t.Run("it is copied", func(t *testing.T) {
		var all bytes.Buffer
		a := shell(t, "head -c 65536 /dev/zero >&2; exit 3")
		_, err := orchestrator.Run(t.Context(), a, orchestrator.Job{Stderr: &all})
		wantRetry(t, err)
		equal(t, all.Len(), 65536)
	})
	t.Run("without it nothing is written", func(t *testing.T) {
		var n writes
		_, err := orchestrator.Run(t.Context(), shell(t, "echo 1"), orchestrator.Job{Stderr: &n})
		if err != nil || n != 0 {
			t.Errorf("%d writes, %v; want none", n, err)
		}
	})
	t.Run("a long one is not kept", func(t *testing.T) {
		grown := allocated(func() {
			_, err := script(t.Context(), t, nil, "head -c 67108864 /dev/zero | tr '\\0' x >&2; exit 3")
			if wantRetry(t, err, "exit status 3: "+strings.Repeat("x", 1000)); len(err.Error()) > 4<<10 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
		if grown > 32<<20 {
			t.Errorf("64 MiB of standard error took %d bytes of memory", grown)
		}
	})
}
