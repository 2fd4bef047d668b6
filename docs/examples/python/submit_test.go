package python

import (
	"os/exec"
	"testing"

	"taskguard/internal/testing/examplestest"
)

func TestTheExampleInPythonParses(t *testing.T) {
	python := examplestest.Find(t, "PYTHON", "python3")[0]
	const parse = `import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])`
	if out, err := exec.CommandContext(t.Context(), python, "-c", parse, "submit.py").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestTheAnalyzerInPythonContinues(t *testing.T) {
	examplestest.Continues(t, "exec:"+examplestest.Find(t, "PYTHON", "python3")[0]+" analyzer.py")
}

func TestTheAnalyzerInPythonChargesOnce(t *testing.T) {
	examplestest.Charges(t, "exec:"+examplestest.Find(t, "PYTHON", "python3")[0]+" charge.py")
}
