//go:build linux || darwin

package orchestrator_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
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

func TestGroup_Terminates(t *testing.T) {
	file := newFile(t, "")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		waitForLine(t, file, "obedient")
		cancel(errors.Join(errLost, urgentError{never}))
	}()
	got, err := program(t, never, "obedient", file).Analyze(ctx, orchestrator.Job{})
	assertAllEnded(t, file)
	if !errors.Is(err, errLost) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's cause", err)
	}
	equal(t, got, nil)
	waitForLine(t, file, "got SIGTERM")
}

func TestGroup_Kills(t *testing.T) {
	if orchestrator.DefaultGrace != 5*time.Second { // a stopped worker has 2.5 s more
		t.Errorf("the grace is %v", orchestrator.DefaultGrace)
	}
	for name, c := range map[string]struct {
		grace time.Duration
		cause error
	}{
		"after the grace":                 {50 * time.Millisecond, errLost},
		"at once if the cause wants":      {never, urgentError{0}},
		"not later if the cause allows":   {50 * time.Millisecond, urgentError{never}},
		"also where the cause is wrapped": {never, errors.Join(errLost, urgentError{time.Millisecond})},
	} {
		t.Run(name, func(t *testing.T) {
			file := newFile(t, "")
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

// The children hold its output.
func TestGroup_Children(t *testing.T) {
	for name, c := range map[string]struct {
		child string
		grace time.Duration
	}{
		"a child that stops when asked": {"obedient", never},
		"a child that has to be killed": {"ignorer", 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			file := newFile(t, "")
			got := result(t, program(t, c.grace, "exiter", file, c.child, "0"), orchestrator.Job{})
			assertAllEnded(t, file)
			equal(t, got, map[string]any{"left": "behind"})
			if c.child == "obedient" {
				waitForLine(t, file, "got SIGTERM")
			}
		})
	}
	t.Run("the program fails", func(t *testing.T) {
		file := newFile(t, "")
		a := program(t, time.Millisecond, "exiter", file, "ignorer", "4")
		_, err := orchestrator.Run(t.Context(), a, orchestrator.Job{})
		assertAllEnded(t, file)
		wantRetry(t, err, "exit status 4: left behind")
	})
}

func TestGroup_LossShortensGrace(t *testing.T) {
	file := newFile(t, "")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		waitForLine(t, file, "ignorer")
		time.Sleep(100 * time.Millisecond) // likely after the exiter's exit; before it, the run ends as well
		cancel(urgentError{time.Millisecond})
	}()
	_, _ = program(t, never, "exiter", file, "ignorer", "0").Analyze(ctx, orchestrator.Job{})
	assertAllEnded(t, file)
}

func TestGroup_Escaped(t *testing.T) {
	// Its input is too large for the pipe, and its output never ends.
	t.Run("a sleeper is left alone", func(t *testing.T) {
		file, input := newFile(t, ""), json.RawMessage(`"`+strings.Repeat("x", 1<<20)+`"`)
		a := program(t, never, "escaper", file, "ignorer", file+".child")
		got, err := orchestrator.Run(t.Context(), a, orchestrator.Job{Input: input})
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
	})
	for _, to := range []string{"stdout", "stderr"} {
		t.Run("an endless writer to "+to, func(t *testing.T) {
			// It dies of its broken pipe. How much of its output is in the result is undefined.
			a := program(t, never, "escaper", newFile(t, ""), "flood", to)
			_, _ = orchestrator.Run(t.Context(), a, orchestrator.Job{})
		})
	}
}
