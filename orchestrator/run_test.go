package orchestrator_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"taskguard/orchestrator"
)

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
