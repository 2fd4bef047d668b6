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

func TestGooglesClientsForPythonWorkOnTheEmulator(t *testing.T) {
	python := examplestest.Find(t, "PYTHON", "python3")[0]
	if exec.CommandContext(t.Context(), python, "-c", "from google.cloud import firestore, tasks_v2").Run() != nil {
		examplestest.Missing(t, "PYTHON_CLIENTS", "google-cloud-firestore or google-cloud-tasks is not installed")
	}
	cmd := exec.CommandContext(t.Context(), python, "emulator_test.py")
	cmd.Env = append(examplestest.Start(t, nil, "emulator"), "PYTHONPATH="+os.Getenv("PYTHONPATH"), "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
