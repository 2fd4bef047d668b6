package python

import (
	"os"
	"os/exec"
	"testing"

	"taskguard/internal/testing/examplestest"
)

func TestMain(m *testing.M) { os.Exit(examplestest.Main(m, "PYTHON")) }

// python returns a command of Python that finds the package and leaves no compiled files.
func python(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), examplestest.Find(t, "PYTHON", "python3")[0], args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

func TestPythonPackage(t *testing.T) {
	examplestest.Output(t, python(t, "-m", "unittest", "discover", "-s", "tests"))
}
