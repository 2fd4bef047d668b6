package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"taskguard/docs/examples/examplestest"
)

var files = []string{"submit.js", "package.json", "package-lock.json"}

func TestTheExampleInNodeRuns(t *testing.T) {
	paths := examplestest.Find(t, "NODE", "node", "npm")
	dir := t.TempDir()
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	npm := exec.CommandContext(t.Context(), paths[1], "ci", "--ignore-scripts", "--prefer-offline", "--fetch-retries=1", "--fetch-timeout=60000", "--no-audit", "--no-fund")
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		examplestest.Missing(t, "NODE", fmt.Sprintf("npm ci: %v\n%s", err, out))
	}
	examplestest.Check(t, dir, paths[0], "submit.js")
}
