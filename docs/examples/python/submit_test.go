package python

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"taskguard/internal/testing/examplestest"
)

func TestMain(m *testing.M) { os.Exit(examplestest.Main(m, "PYTHON")) }

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

// An attempt whose answer was lost may have charged.
func TestTheEndpointInPythonChargesOnce(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), examplestest.Find(t, "PYTHON", "python3")[0], "endpoint.py", "0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	port, _ := bufio.NewReader(out).ReadString('\n')

	ledger := filepath.Join(t.TempDir(), "ledger")
	for i, want := range []string{`"before_charge"`, `{"result": {"charged": 4200}}`, `"charge_uncertain"`} {
		job := fmt.Sprintf(`{"lock_token": %d, "input": {"cents": 4200, "ledger": %q}`, 7+i, ledger)
		if i > 0 {
			job += `, "checkpoint": {"charging": 7}`
		}
		answer, err := http.Post("http://localhost:"+strings.TrimSpace(port), "application/json", strings.NewReader(job+"}"))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || !strings.Contains(string(text), want) || (i == 0) != strings.Contains(string(text), `{"checkpoint": {"charging": 7}}`) {
			t.Errorf("answer %d: %s, %v, want %s", i+1, text, err, want)
		}
	}
	if text, err := os.ReadFile(ledger); string(text) != "4200\n" {
		t.Errorf("the ledger has %q, %v", text, err)
	}
}

func TestGooglesClientsForPythonWorkOnTheEmulator(t *testing.T) {
	python := examplestest.Find(t, "PYTHON_CLIENTS", "python3")[0]
	cmd := exec.CommandContext(t.Context(), python, "emulator_test.py")
	cmd.Env = append(examplestest.Start(t, "emulator"), "PYTHONPATH="+os.Getenv("PYTHONPATH"), "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
