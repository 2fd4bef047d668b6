package fastapi

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"taskguard/internal/testing/examplestest"
	"taskguard/orchestrator"
)

func TestMain(m *testing.M) { os.Exit(examplestest.Main(m, "PYTHON")) }

func TestAnalyzer(t *testing.T) {
	analyzer := serve(t, "analyzer")
	wantWords(t, analyzer, orchestrator.Job{Input: json.RawMessage(`{"pages": 3}`)}, 750)
	for _, input := range []string{`{"pages": 0}`, `{}`, `null`} {
		_, err := examplestest.Ask(t, analyzer, orchestrator.Job{Input: json.RawMessage(input)})
		if failed, ok := errors.AsType[*orchestrator.PermanentError](err); !ok || failed.Code != "no_pages" {
			t.Errorf("%s: got %v, want the permanent failure no_pages", input, err)
		}
	}
}

func TestResume(t *testing.T) {
	job := orchestrator.Job{Input: json.RawMessage(`{"pages": 3}`), Resume: json.RawMessage(`{"done": 2, "words": 1}`)}
	wantWords(t, serve(t, "resume"), job, 251)
}

func TestReleases(t *testing.T) { examplestest.Output(t, python(t, "testdata/applications.py")) }

// What was before needs Google's clients: it is only parsed.
func TestBefore(t *testing.T) {
	examplestest.Output(t, python(t, "-c", "import ast; ast.parse(open('before.py').read())"))
}

// python returns a call of the first Python that has FastAPI. Debian's has it, and need not be the first in PATH.
func python(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	for _, path := range []string{examplestest.Find(t, "PYTHON", "python3")[0], "/usr/bin/python3"} {
		const needed = "import fastapi, httpx, uvicorn"
		needs := exec.CommandContext(t.Context(), path, "-c", needed) //nolint:gosec // the test's own
		if needs.Run() != nil {
			continue
		}

		cmd := exec.CommandContext(t.Context(), path, args...) //nolint:gosec // the test's own
		paths := []string{".", "testdata", "../../../clients/python"}
		cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+strings.Join(paths, ":"))
		return cmd
	}
	t.Fatal("no Python has fastapi, httpx and uvicorn")
	return nil
}

// serve serves the app of a module, and returns the address of its analyzer.
func serve(t *testing.T, module string) (analyzer string) {
	t.Helper()
	port := examplestest.FreePort(t)
	cmd := python(t, "-m", "uvicorn", module+":app", "--port", port, "--log-level", "warning")
	return examplestest.Serve(t, port, cmd) + "/analyze"
}

// wantWords runs a job of three pages.
func wantWords(t *testing.T, analyzer string, job orchestrator.Job, words int64) {
	t.Helper()
	result, err := examplestest.Ask(t, analyzer, job)
	if want := map[string]any{"pages": int64(3), "words": words}; err != nil || !reflect.DeepEqual(result, want) {
		t.Errorf("got %v, %v, want %v", result, err, want)
	}
}
