package orchestrator_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"taskguard/orchestrator"
)

func TestAPanicIsRetried(t *testing.T) {
	a := orchestrator.AnalyzerFunc(func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
		panic(&orchestrator.PermanentError{Code: "mine", Message: "not returned"})
	})
	got, err := orchestrator.Run(t.Context(), a, orchestrator.Job{})
	var panicked *orchestrator.PanicError
	if !errors.As(err, &panicked) || got != nil {
		t.Fatalf("got %v, %v; want a *PanicError", got, err)
	}
	if errors.As(err, new(*orchestrator.PermanentError)) {
		t.Error("a panic is permanent")
	}
	if !strings.Contains(err.Error(), "not returned") {
		t.Errorf("%v does not contain the value of the panic", err)
	}
	if !strings.Contains(string(panicked.Stack), "TestAPanicIsRetried") {
		t.Errorf("the stack does not show where: %s", panicked.Stack)
	}
	if strings.Contains(err.Error(), "goroutine") {
		t.Errorf("the message shows the stack: %v", err)
	}
}

type panickyResult struct{}

func (panickyResult) MarshalText() ([]byte, error) { panic("no text") }

func TestAPanicWhileTheResultIsEncodedIsRetried(t *testing.T) {
	a := orchestrator.AnalyzerFunc(func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
		return panickyResult{}, nil
	})
	_, err := orchestrator.Run(t.Context(), a, orchestrator.Job{})
	if !errors.As(err, new(*orchestrator.PanicError)) {
		t.Fatalf("got %v, want a *PanicError", err)
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
