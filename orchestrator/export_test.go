//go:build linux || darwin

package orchestrator

import (
	"context"
	"time"
)

// DefaultGrace is the grace period that New sets.
const DefaultGrace = defaultGrace

// NewWithGrace returns the analyzer of a program that gets SIGKILL sooner, and the variable
// of the race detector.
func NewWithGrace(spec string, grace time.Duration) (Analyzer, error) {
	a, err := New(spec, Options{AnyOutput: true, Env: []string{"GORACE"}})
	if err != nil {
		return nil, err
	}
	a.(*program).grace = grace
	return a, nil
}

// SetPatience changes how long an analyzer that has gone away is given to have been stopped.
func SetPatience(a Analyzer, patience time.Duration) {
	switch a := a.(type) {
	case *program:
		a.patience = patience
	case *endpoint:
		a.patience = patience
	}
}

// ResultOf returns the result of an analyzer with this output.
func ResultOf(text string, o Options, job Job) (any, error) {
	out := output{text: []byte(text), wantJSON: !o.AnyOutput}
	return Run(context.Background(), AnalyzerFunc(func(_ context.Context, job Job) (Result, error) {
		return out.result(job)
	}), job)
}
