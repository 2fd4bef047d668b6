package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"taskguard/docs/examples/examplestest"
)

func TestTheExampleInGoRuns(t *testing.T) {
	program := filepath.Join(t.TempDir(), "example")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	examplestest.Check(t, "", program)
}
