package node

import (
	"os/exec"
	"testing"

	"taskguard/internal/testing/examplestest"
)

func TestEmulator(t *testing.T) {
	t.Parallel()
	paths := examplestest.Find(t, "NODE", "node", "npm")
	dir := directory(t, paths[1], "emulator.test.js")
	cmd := exec.CommandContext(t.Context(), paths[0], "--test", "emulator.test.js")
	cmd.Dir, cmd.Env = dir, examplestest.Start(t, "emulator")
	examplestest.Output(t, cmd)
}
