package node

import (
	"os"
	"path/filepath"
	"testing"

	"taskguard/internal/testing/examplestest"
)

func TestTheExampleInNodeRuns(t *testing.T) {
	paths := examplestest.Find(t, "NODE", "node", "npm")
	dir := t.TempDir()
	if err := os.Symlink(examplestest.Modules(t, paths[1], "."), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	examplestest.Copy(t, dir, "submit.js", "package.json")
	examplestest.Check(t, dir, paths[0], "submit.js")
}

func TestTheAnalyzerInNodeContinues(t *testing.T) {
	examplestest.Continues(t, "exec:"+examplestest.Find(t, "NODE", "node")[0]+" analyzer.js")
}
