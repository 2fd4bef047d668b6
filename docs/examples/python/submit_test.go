package python

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
	"taskguard/orchestrator"
)

func TestMain(m *testing.M) { os.Exit(examplestest.Main(m, "PYTHON")) }

func TestSubmit(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), examplestest.Find(t, "PYTHON", "python3")[0], "testdata/fakes.py")
	cmd.Env = append(os.Environ(), "GOOGLE_CLOUD_PROJECT=p", "TASK_QUEUE=q", "TASK_CALLER=a@b.c",
		"TASK_TARGET_URL=https://worker.example", "CLOUD_TASKS_EMULATOR_HOST=", "PYTHONDONTWRITEBYTECODE=1")
	examplestest.Output(t, cmd)
}

func TestAnalyzer(t *testing.T) {
	examplestest.Continues(t, "exec:"+examplestest.Find(t, "PYTHON", "python3")[0]+" analyzer.py")
}

// A provider that answers 429 says when to try again.
func TestRateLimit(t *testing.T) {
	t.Setenv("NO_PROXY", "127.0.0.1") // the program gets it
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy" {
			w.Header().Set("Retry-After", "40")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		_, _ = io.WriteString(w, "a report")
	}))
	defer provider.Close()
	python := examplestest.Find(t, "PYTHON", "python3")[0]
	run := func(path string) (any, error) {
		job := orchestrator.Job{Input: fmt.Appendf(nil, `{"url":%q}`, provider.URL+path)}
		return examplestest.Ask(t, "exec:"+python+" ratelimit.py", job)
	}
	_, err := run("/busy")
	if later, ok := errors.AsType[*orchestrator.RetryAfterError](err); !ok || later.After() != 40*time.Second {
		t.Errorf("the program ends with %v, want a wait of 40 s", err)
	}
	result, err := run("/free")
	if want := map[string]any{"bytes": int64(len("a report"))}; err != nil || !reflect.DeepEqual(result, want) {
		t.Errorf("the result is %v, %v, want %v", result, err, want)
	}
}

// Of the calls of a run, only the one that is told go charges. TestOnce_Kill9 shows the rest.
func TestEndpoint(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), examplestest.Find(t, "PYTHON", "python3")[0], "endpoint.py", "0")
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	port, _ := bufio.NewReader(out).ReadString('\n')

	ledger := filepath.Join(t.TempDir(), "ledger")
	for _, call := range []struct{ effects, want string }{
		{`{}`, `{"effect": "charge"}`},
		{
			`{"charge": {"state": "go", "key": "k"}}`,
			`{"effect": "charge", "done": {"charged": 4200}}` + "\n" + `{"result": {"charged": 4200}}`,
		},
		{`{"charge": {"state": "done", "result": {"charged": 4200}}}`, `{"result": {"charged": 4200}}`},
		{
			`{"charge": {"state": "uncertain", "key": "k"}}`,
			`{"error": {"code": "charge_uncertain", "message": "an earlier attempt may have charged"}}`,
		},
	} {
		job := fmt.Sprintf(`{"lock_token": 7, "input": {"cents": 4200, "ledger": %q}, "effects": %s}`,
			ledger, call.effects)
		address := "http://localhost:" + strings.TrimSpace(port)
		answer, err := http.Post(address, "application/json", strings.NewReader(job))
		must.OK(t, err)
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || string(text) != call.want+"\n" {
			t.Errorf("%s: %s, %v, want %s", call.effects, text, err, call.want)
		}
	}
	if text, err := os.ReadFile(ledger); string(text) != "k 4200\n" {
		t.Errorf("the ledger has %q, %v", text, err)
	}
}

func TestEmulator(t *testing.T) {
	python := examplestest.Find(t, "PYTHON_CLIENTS", "python3")[0]
	cmd := exec.CommandContext(t.Context(), python, "emulator_test.py")
	cmd.Env = append(examplestest.Start(t, "emulator"),
		"PYTHONPATH="+os.Getenv("PYTHONPATH"), "PYTHONDONTWRITEBYTECODE=1")
	examplestest.Output(t, cmd)
}
