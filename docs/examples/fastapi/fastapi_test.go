package fastapi

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/examplestest"
	"taskguard/orchestrator"
)

func TestMain(m *testing.M) { os.Exit(examplestest.Main(m, "PYTHON")) }

func TestAnalyzer(t *testing.T) {
	answer := serve(t, "analyzer")
	result, err := answer(`{"pages": 3}`, "")
	if want := map[string]any{"pages": int64(3), "words": int64(750)}; err != nil || !reflect.DeepEqual(result, want) {
		t.Errorf("got %v, %v, want %v", result, err, want)
	}

	for _, input := range []string{`{"pages": 0}`, `{}`, `null`} {
		_, err = answer(input, "")
		var failed *orchestrator.PermanentError
		if !errors.As(err, &failed) || failed.Code != "no_pages" {
			t.Errorf("%s: got %v, want the permanent failure no_pages", input, err)
		}
	}
}

func TestResume(t *testing.T) {
	result, err := serve(t, "resume")(`{"pages": 3}`, `{"done": 2, "words": 1}`)
	if want := map[string]any{"pages": int64(3), "words": int64(251)}; err != nil || !reflect.DeepEqual(result, want) {
		t.Errorf("got %v, %v, want %v", result, err, want)
	}
}

func TestReleases(t *testing.T) {
	if out, err := python(t, "testdata/applications.py").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// What was before needs Google's clients: it is only parsed.
func TestBefore(t *testing.T) {
	parse := "import ast; ast.parse(open('before.py').read())"
	if out, err := python(t, "-c", parse).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
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

// serve serves the app of a module, and returns a function that runs one analysis there.
func serve(t *testing.T, module string) func(input, checkpoint string) (any, error) {
	t.Helper()
	port := freePort(t)
	cmd := python(t, "-m", "uvicorn", module+":app", "--port", port, "--log-level", "warning")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the context has ended it

	url := "http://127.0.0.1:" + port
	await(t, url)
	analyzer, err := orchestrator.New(url+"/analyze", orchestrator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return func(input, checkpoint string) (any, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		job := orchestrator.Job{Input: json.RawMessage(input), Resume: json.RawMessage(checkpoint)}
		return orchestrator.Run(ctx, analyzer, job)
	}
}

func await(t *testing.T, url string) {
	t.Helper()
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
		if resp, err := http.Get(url + "/nothing"); err == nil { //nolint:gosec // the test's own
			_ = resp.Body.Close() // nothing is read
			return
		} else if !strings.Contains(err.Error(), "refused") {
			return // it listens
		}
	}
	t.Fatalf("nothing listens at %s", url)
}

// freePort returns a port that nothing listens at.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}
