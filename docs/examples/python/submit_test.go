package python

import (
	"os"
	"os/exec"
	"testing"

	"taskguard/internal/testing/examplestest"
)

func TestTheExampleInPythonRetriesTheBooking(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), examplestest.Find(t, "PYTHON", "python3")[0], "testdata/fakes.py")
	cmd.Env = append(os.Environ(), "GOOGLE_CLOUD_PROJECT=p", "TASK_QUEUE=q", "TASK_CALLER=a@b.c",
		"TASK_TARGET_URL=https://worker.example", "CLOUD_TASKS_EMULATOR_HOST=", "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestTheAnalyzerInPythonContinues(t *testing.T) {
	examplestest.Continues(t, "exec:"+examplestest.Find(t, "PYTHON", "python3")[0]+" analyzer.py")
}

func TestTheAnalyzerInPythonChargesOnce(t *testing.T) {
	examplestest.Charges(t, "exec:"+examplestest.Find(t, "PYTHON", "python3")[0]+" charge.py")
}
