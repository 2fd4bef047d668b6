package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
)

func TestNodeAnalyzers(t *testing.T) {
	nodeTest(t, ".", os.Environ(), "testdata/analyzer.test.mjs")
}

func TestNodeAnalyzers_Killed(t *testing.T) {
	t.Parallel()
	dir := installed(t)
	local := func(t *testing.T, analyzer string, variables ...string) {
		env := examplestest.Start(t, "local", "ANALYZER="+analyzer, "ANALYZER_OUTPUT=json", "LOCK_TTL=3s")
		nodeTest(t, dir, append(env, variables...), "testdata/local.test.mjs")
	}
	t.Run("program", func(t *testing.T) {
		t.Parallel()
		local(t, "exec:"+examplestest.Find(t, "NODE", "node")[0]+" "+filepath.Join(dir, "testdata", "killed.mjs"))
	})
	t.Run("service", func(t *testing.T) {
		t.Parallel()
		port := examplestest.FreePort(t)
		local(t, "http://localhost:"+port, "PORT="+port)
	})
}

func TestNodeSubmit(t *testing.T) {
	env := append(examplestest.Start(t, "emulator"), "TASKGUARD="+examplestest.Build(t, "taskguard/cmd/taskguard"),
		"TASK_TARGET_URL=https://worker.example/base/", "TASK_CALLER=a@b.example")
	nodeTest(t, installed(t), env, "testdata/submit.test.mjs")
}

// installed returns a copy of the package with Google's clients beside it.
func installed(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	modules := examplestest.Modules(t, examplestest.Find(t, "NODE", "npm")[0], "../../docs/examples/node")
	must.OK(t, os.CopyFS(dir, os.DirFS(".")))
	must.OK(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
	return dir
}

func nodeTest(t *testing.T, dir string, env []string, file string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), examplestest.Find(t, "NODE", "node")[0], "--test", file)
	cmd.Dir, cmd.Env = dir, env
	examplestest.Output(t, cmd)
}
