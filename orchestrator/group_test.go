//go:build linux || darwin

package orchestrator_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// urgentError shortens the grace.
type urgentError struct{ after time.Duration }

func (urgentError) Error() string              { return "out of time" }
func (e urgentError) KillAfter() time.Duration { return e.after }

func TestEndOfTheContextSendsSIGTERM(t *testing.T) {
	file := newLifeFile(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		waitForLine(t, file, "polite")
		cancel(errLost)
	}()
	got, err := program(t, never, "polite", file).Analyze(ctx, orchestrator.Job{})
	assertAllEnded(t, file)
	if got != nil || !errors.Is(err, errLost) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v; want the context's cause", got, err)
	}
	waitForLine(t, file, "asked to stop")
}

func TestAGroupThatIgnoresSIGTERMIsKilled(t *testing.T) {
	for name, c := range map[string]struct {
		grace time.Duration
		cause error
	}{
		"after the grace":                 {50 * time.Millisecond, errLost},
		"sooner if the cause wants":       {never, urgentError{50 * time.Millisecond}},
		"at once if the cause wants":      {never, urgentError{0}},
		"not later if the cause allows":   {50 * time.Millisecond, urgentError{never}},
		"also where the cause is wrapped": {never, errors.Join(errLost, urgentError{time.Millisecond})},
	} {
		t.Run(name, func(t *testing.T) {
			file := newLifeFile(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				waitForLine(t, file, "ready")
				cancel(c.cause)
			}()
			_, err := program(t, c.grace, "parent", file).Analyze(ctx, orchestrator.Job{})
			assertAllEnded(t, file)
			if !errors.Is(err, c.cause) {
				t.Errorf("got %v, want the context's cause", err)
			}
		})
	}
}

func TestDeadlineEndsTheProgram(t *testing.T) {
	file := newLifeFile(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := program(t, time.Millisecond, "stubborn", file).Analyze(ctx, orchestrator.Job{})
	assertAllEnded(t, file)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want context.DeadlineExceeded", err)
	}
}

func TestRunReturnsAfterTheProgramExitsThoughAChildHoldsItsOutput(t *testing.T) {
	for name, c := range map[string]struct {
		child string
		grace time.Duration
	}{
		"a child that stops when asked": {"polite", never},
		"a child that has to be killed": {"stubborn", 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			file := newLifeFile(t)
			got, err := orchestrator.Run(t.Context(), program(t, c.grace, "leaver", file, c.child, "0"), orchestrator.Job{})
			assertAllEnded(t, file)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, got, map[string]any{"left": "behind"})
			if text := waitForLine(t, file, c.child); c.child == "polite" && !strings.Contains(text, "asked to stop") {
				t.Error("the child was not asked to stop")
			}
		})
	}
	file := newLifeFile(t)
	_, err := orchestrator.Run(t.Context(), program(t, time.Millisecond, "leaver", file, "stubborn", "4"), orchestrator.Job{})
	assertAllEnded(t, file)
	wantRetry(t, err, "exit status 4: left behind")
}

func TestALossWhileAChildEndsShortensItsGrace(t *testing.T) {
	file := newLifeFile(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		waitForLine(t, file, "stubborn")
		time.Sleep(100 * time.Millisecond) // likely after the leaver's exit; before it, the run ends as well
		cancel(urgentError{time.Millisecond})
	}()
	_, _ = program(t, never, "leaver", file, "stubborn", "0").Analyze(ctx, orchestrator.Job{})
	assertAllEnded(t, file)
}

// The job has closed the program's pipes.
func TestABackgroundJobOfAShellIsEndedToo(t *testing.T) {
	file := newLifeFile(t)
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte(`"$1" as-program stubborn "$2" </dev/null >/dev/null 2>&1 &
while ! [ -s "$2" ]; do sleep 0.01; done
echo '{"ok":true}'`), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := orchestrator.New("exec:sh "+script+" "+testBinary(t)+" "+file, orchestrator.Options{Grace: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	got, err := orchestrator.Run(t.Context(), a, orchestrator.Job{})
	assertAllEnded(t, file)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got, map[string]any{"ok": true})
}

// Its input is too large for the pipe, and its output never ends.
func TestRunDoesNotWaitForAProcessOutsideTheGroup(t *testing.T) {
	file, input := newLifeFile(t), json.RawMessage(`"`+strings.Repeat("x", 1<<20)+`"`)
	got, err := orchestrator.Run(t.Context(), program(t, never, "escaper", file, "stubborn", file+".child"),
		orchestrator.Job{Input: input})
	text, _ := os.ReadFile(file)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if pid < 2 {
		t.Fatalf("no process id: %q", text)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("it was ended by Run: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got, "escaped")
}

func TestRunDoesNotWaitForAnEndlessWriterOutsideTheGroup(t *testing.T) {
	for _, to := range []string{"stdout", "stderr"} {
		// It dies of its broken pipe. How much of its output is in the result is undefined.
		_, _ = orchestrator.Run(t.Context(), program(t, never, "escaper", newLifeFile(t), "flood", to, "1000000000000000", "0"), orchestrator.Job{})
	}
}
