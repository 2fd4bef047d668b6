//go:build linux || darwin

package orchestrator_test

import (
	"testing"

	"taskguard/orchestrator"
)

func TestProgramIsGivenTheTraceThatTheRunIsOf(t *testing.T) {
	t.Setenv("TRACEPARENT", "of this process")
	got, err := orchestrator.Run(inTrace(t), program(t, never, "trace"), orchestrator.Job{})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got, traceparent+" vendor=1")
}

func TestProgramIsGivenNoTraceWhereTheRunIsOfNone(t *testing.T) {
	t.Setenv("TRACEPARENT", traceparent)
	t.Setenv("TRACESTATE", "vendor=1")
	got, err := orchestrator.Run(t.Context(), program(t, never, "trace"), orchestrator.Job{})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got, nil) // as of a program that has printed blanks
}
