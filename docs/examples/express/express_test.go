package express

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
	"taskguard/orchestrator"
)

func TestMain(m *testing.M) { os.Exit(examplestest.Main(m, "NODE")) }

// Both releases enqueue a report, the analyzer computes it beside the worker, and the application shows it.
func TestReleases(t *testing.T) {
	dir := directory(t)
	port := examplestest.FreePort(t)
	const collection = "ANALYSES_COLLECTION=transcripts"
	env := examplestest.Start(t, "local", "ANALYZER=http://127.0.0.1:"+port+"/analyze", collection)
	env = append(env, collection)
	serve(t, dir, env, port, "analyzer.js")

	for _, release := range []string{"app", "later"} {
		app := serve(t, dir, env, examplestest.FreePort(t), release+".js")
		for id, tc := range map[string]struct {
			input string
			want  report
		}{
			"good": {`{"pages": 3}`, report{Status: "READY", Result: words{750}}},
			"bad":  {`{"pages": 0}`, report{Status: "FAILED", Error: reason{"no_pages"}}},
		} {
			url := app + "/reports/" + release + "-" + id
			post(t, url, tc.input, http.StatusAccepted)
			if got := await(t, url); got != tc.want {
				t.Errorf("%s is %+v, want %+v", id, got, tc.want)
			}
			post(t, url, `{"pages": 4}`, http.StatusConflict) // another input
		}
	}
}

// An analysis that another program has created may have no input. Retries would not help it.
func TestAnalyzer_NoInput(t *testing.T) {
	analyzer := serve(t, directory(t), os.Environ(), examplestest.FreePort(t), "analyzer.js")
	_, err := examplestest.Ask(t, analyzer+"/analyze", orchestrator.Job{Input: json.RawMessage(`null`)})
	if failed, ok := errors.AsType[*orchestrator.PermanentError](err); !ok || failed.Code != "no_pages" {
		t.Errorf("got %v, want the permanent failure no_pages", err)
	}
}

// The first release runs the tasks of the old version. Both releases show its documents, with the new status words.
func TestReleases_OldReports(t *testing.T) {
	dir, env := directory(t), examplestest.Start(t, "emulator")
	reports := collection(t, env, "reports")
	for _, status := range []string{"queued", "running", "done"} {
		fields := map[string]any{"status": status, "input": map[string]any{"pages": 3}}
		if status == "done" {
			fields["result"] = map[string]any{"words": 7} // a second run would write 750
		}
		must.Get(reports.Doc(status).Set(t.Context(), fields))(t)
	}
	shows := func(app, id, status string, count int) {
		t.Helper()
		want := report{Status: status, Result: words{count}}
		if got := get(t, app+"/reports/"+id); got != want {
			t.Errorf("%s is %+v, want %+v", id, got, want)
		}
	}

	app := serve(t, dir, env, examplestest.FreePort(t), "app.js")
	shows(app, "queued", "QUEUED", 0)
	shows(app, "running", "PROCESSING", 0)
	shows(app, "done", "READY", 7)
	shows(app, "unknown", "", 0)
	for _, id := range []string{"queued", "done"} {
		post(t, app+"/tasks/report", fmt.Sprintf(`{"id": %q}`, id), http.StatusOK)
	}
	shows(app, "queued", "READY", 750)
	shows(app, "done", "READY", 7)

	later := serve(t, dir, env, examplestest.FreePort(t), "later.js")
	post(t, later+"/tasks/report", `{"id": "running"}`, http.StatusNotFound)
	shows(later, "running", "PROCESSING", 0)
	shows(later, "done", "READY", 7)
}

func TestResume(t *testing.T) {
	analyzer := serve(t, directory(t), os.Environ(), examplestest.FreePort(t), "resume.js")
	resp, err := http.Get(analyzer + "/health") // which the startup probe of Cloud Run gets
	must.OK(t, err)
	_ = resp.Body.Close() // it is empty
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/health is answered %d", resp.StatusCode)
	}

	job := orchestrator.Job{Input: json.RawMessage(`{"pages": 3}`), Resume: json.RawMessage(`{"done": 2, "words": 1}`)}
	result, err := examplestest.Ask(t, analyzer+"/analyze", job)
	if want := map[string]any{"pages": int64(3), "words": int64(251)}; err != nil || !reflect.DeepEqual(result, want) {
		t.Errorf("got %v, %v, want %v", result, err, want)
	}
}

// directory returns a directory with the scripts, Google's packages, Express and the module of clients/node.
func directory(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	packages := filepath.Join(dir, "node_modules")
	must.OK(t, os.Mkdir(packages, 0o700))
	must.OK(t, os.Symlink(must.Get(filepath.Abs("../../../clients/node"))(t), filepath.Join(packages, "taskguard")))
	modules := examplestest.Modules(t, examplestest.Find(t, "NODE", "npm")[0], ".")
	for _, path := range must.Get(filepath.Glob(filepath.Join(modules, "*")))(t) {
		must.OK(t, os.Symlink(path, filepath.Join(packages, filepath.Base(path))))
	}
	examplestest.Copy(t, dir, "analyze.js", "analyzer.js", "resume.js",
		"app.js", "later.js", "tasks.js", "package.json")
	return dir
}

// serve starts a script that listens at the port, and returns its address.
func serve(t *testing.T, dir string, env []string, port, script string) (address string) {
	t.Helper()
	node := examplestest.Find(t, "NODE", "node")[0]
	cmd := exec.CommandContext(t.Context(), node, script) //nolint:gosec // the test's own
	cmd.Dir, cmd.Env = dir, append(slices.Clone(env), "PORT="+port, "APP_PORT="+port)
	return examplestest.Serve(t, port, cmd)
}

// collection returns a collection of the emulator that env names.
func collection(t *testing.T, env []string, name string) *firestore.CollectionRef {
	t.Helper()
	var project string
	for _, variable := range env {
		switch key, value, _ := strings.Cut(variable, "="); key {
		case "GOOGLE_CLOUD_PROJECT":
			project = value
		case "FIRESTORE_EMULATOR_HOST":
			t.Setenv(key, value)
		}
	}
	client := must.Get(firestore.NewClient(t.Context(), project))(t)
	t.Cleanup(func() { _ = client.Close() }) // the test has ended
	return client.Collection(name)
}

// post sends JSON, whose answer must have the status.
func post(t *testing.T, url, body string, want int) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body)) //nolint:gosec // the test's own
	must.OK(t, err)
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != want {
		t.Fatalf("POST %s of %s is answered %d %s, want %d", url, body, resp.StatusCode, text, want)
	}
}

type (
	words  struct{ Words int }
	reason struct{ Code string }
	report struct {
		Status string
		Result words
		Error  reason
	}
)

// get reads a report once.
func get(t *testing.T, url string) (r report) {
	t.Helper()
	resp, err := http.Get(url) //nolint:gosec // the test's own
	must.OK(t, err)
	defer resp.Body.Close()
	must.OK(t, json.NewDecoder(resp.Body).Decode(&r))
	return r
}

// await reads a report until it is finished.
func await(t *testing.T, url string) (r report) {
	t.Helper()
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(100 * time.Millisecond) {
		if r = get(t, url); r.Status == "READY" || r.Status == "FAILED" {
			return r
		}
	}
	t.Errorf("%s is not finished after a minute: %+v", url, r)
	return r
}
