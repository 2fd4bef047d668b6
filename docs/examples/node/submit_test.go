package node

import (
	"os"
	"path/filepath"
	"testing"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
)

func TestMain(m *testing.M) { os.Exit(examplestest.Main(m, "NODE")) }

func TestSubmit(t *testing.T) {
	t.Parallel()
	paths := examplestest.Find(t, "NODE", "node", "npm")
	dir := directory(t, paths[1], "submit.js", "testdata/lossy.mjs")
	examplestest.Check(t, dir, paths[0], "--import", "./lossy.mjs", "submit.js")
}

// directory returns a directory with scripts of this folder and Google's packages.
func directory(t *testing.T, npm string, scripts ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	must.OK(t, os.Symlink(examplestest.Modules(t, npm, "."), filepath.Join(dir, "node_modules")))
	examplestest.Copy(t, dir, append(scripts, "package.json")...)
	return dir
}

func TestAnalyzer(t *testing.T) {
	t.Parallel()
	examplestest.Continues(t, "exec:"+examplestest.Find(t, "NODE", "node")[0]+" analyzer.js")
}
