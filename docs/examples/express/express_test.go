package express

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
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
	"taskguard/orchestrator"
)

func TestMain(m *testing.M) { os.Exit(examplestest.Main(m, "NODE")) }

// Both releases enqueue a report, the analyzer computes it beside the worker, and the application shows it.
func TestReleases(t *testing.T) {
	paths := examplestest.Find(t, "NODE", "node", "npm")
	dir := directory(t, paths[1])
	analyzerPort := freePort(t)
	const collection = "ANALYSES_COLLECTION=transcripts"
	env := examplestest.Start(t, "local", "ANALYZER=http://127.0.0.1:"+analyzerPort+"/analyze", collection)
	env = append(env, collection)
	start(t, dir, append(env, "APP_PORT="+analyzerPort), paths[0], "analyzer.js")

	for _, release := range []string{"app", "later"} {
		app := serve(t, dir, env, paths[0], release+".js")
		for id, tc := range map[string]struct {
			input string
			want  report
		}{
			"good": {`{"pages": 3}`, report{Status: "READY", Result: words{750}}},
			"bad":  {`{"pages": 0}`, report{Status: "FAILED", Error: reason{"no_pages"}}},
		} {
			url := app + "/reports/" + release + "-" + id
			if status, answer := post(t, url, tc.input); status != http.StatusAccepted {
				t.Fatalf("POST %s is answered %d %s", url, status, answer)
			}

			if got := await(t, url); got != tc.want {
				t.Errorf("%s is %+v, want %+v", id, got, tc.want)
			}
			if status, answer := post(t, url, `{"pages": 4}`); status != http.StatusConflict {
				t.Errorf("another input for %s is answered %d %s, want 409", id, status, answer)
			}
		}
	}
}

// An analysis that another program has created may have no input. Retries would not help it.
func TestAnalyzer_NoInput(t *testing.T) {
	paths, port := examplestest.Find(t, "NODE", "node", "npm"), freePort(t)
	start(t, directory(t, paths[1]), append(os.Environ(), "APP_PORT="+port), paths[0], "analyzer.js")
	post(t, "http://127.0.0.1:"+port, "{}") // it listens now

	analyzer, err := orchestrator.New("http://127.0.0.1:"+port+"/analyze", orchestrator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = orchestrator.Run(t.Context(), analyzer, orchestrator.Job{Input: json.RawMessage(`null`)})
	var failed *orchestrator.PermanentError
	if !errors.As(err, &failed) || failed.Code != "no_pages" {
		t.Errorf("got %v, want the permanent failure no_pages", err)
	}
}

// The first release runs the tasks of the old version. Both releases show its documents, with the new status words.
func TestReleases_OldReports(t *testing.T) {
	paths := examplestest.Find(t, "NODE", "node", "npm")
	dir, env := directory(t, paths[1]), examplestest.Start(t, "emulator")
	reports := collection(t, env, "reports")
	for _, status := range []string{"queued", "running", "done"} {
		fields := map[string]any{"status": status, "input": map[string]any{"pages": 3}}
		if status == "done" {
			fields["result"] = map[string]any{"words": 7} // a second run would write 750
		}
		if _, err := reports.Doc(status).Set(t.Context(), fields); err != nil {
			t.Fatal(err)
		}
	}
	shows := func(app, id, status string, words int) {
		t.Helper()
		var got report
		err := get(app+"/reports/"+id, &got)
		if right := got.Status == status && got.Result.Words == words; err != nil || !right {
			t.Errorf("%s is %+v, %v, want %s and %d words", id, got, err, status, words)
		}
	}

	app := serve(t, dir, env, paths[0], "app.js")
	post(t, app, "{}") // it listens now
	shows(app, "queued", "QUEUED", 0)
	shows(app, "running", "PROCESSING", 0)
	shows(app, "done", "READY", 7)
	shows(app, "unknown", "", 0)
	for _, id := range []string{"queued", "done"} {
		if status, answer := post(t, app+"/tasks/report", fmt.Sprintf(`{"id": %q}`, id)); status != http.StatusOK {
			t.Errorf("the old task of %s is answered %d %s", id, status, answer)
		}
	}
	shows(app, "queued", "READY", 750)
	shows(app, "done", "READY", 7)

	later := serve(t, dir, env, paths[0], "later.js")
	if status, _ := post(t, later+"/tasks/report", `{"id": "running"}`); status != http.StatusNotFound {
		t.Errorf("the second release answers an old task with %d, want 404", status)
	}
	shows(later, "running", "PROCESSING", 0)
	shows(later, "done", "READY", 7)
}

func TestResume(t *testing.T) {
	paths, port := examplestest.Find(t, "NODE", "node", "npm"), freePort(t)
	start(t, directory(t, paths[1]), append(os.Environ(), "APP_PORT="+port), paths[0], "resume.js")
	post(t, "http://127.0.0.1:"+port, "{}") // it listens now

	resp, err := http.Get("http://127.0.0.1:" + port + "/health") // which the startup probe of Cloud Run gets
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close() // it is empty
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/health is answered %d", resp.StatusCode)
	}

	analyzer, err := orchestrator.New("http://127.0.0.1:"+port+"/analyze", orchestrator.Options{})
	if err != nil {
		t.Fatal(err)
	}

	job := orchestrator.Job{Input: json.RawMessage(`{"pages": 3}`), Resume: json.RawMessage(`{"done": 2, "words": 1}`)}
	result, err := orchestrator.Run(t.Context(), analyzer, job)
	if want := map[string]any{"pages": int64(3), "words": int64(251)}; err != nil || !reflect.DeepEqual(result, want) {
		t.Errorf("got %v, %v, want %v", result, err, want)
	}
}

// directory returns a directory with the scripts, Google's packages, Express and the module of clients/node.
func directory(t *testing.T, npm string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	packages := filepath.Join(dir, "node_modules")
	if err := os.Mkdir(packages, 0o700); err != nil {
		t.Fatal(err)
	}
	ours, err := filepath.Abs("../../../clients/node")
	if err != nil {
		t.Fatal(err)
	}
	installed, err := filepath.Glob(filepath.Join(examplestest.Modules(t, npm, "."), "*"))
	if err != nil || len(installed) == 0 {
		t.Fatalf("%d packages, %v", len(installed), err)
	}
	for _, path := range append(installed, ours) {
		name := filepath.Base(path)
		if path == ours {
			name = "taskguard"
		}
		if err := os.Symlink(path, filepath.Join(packages, name)); err != nil {
			t.Fatal(err)
		}
	}
	examplestest.Copy(t, dir, "analyze.js", "analyzer.js", "resume.js",
		"app.js", "later.js", "tasks.js", "package.json")
	return dir
}

// serve starts an application, and returns its address.
func serve(t *testing.T, dir string, env []string, node, script string) (address string) {
	t.Helper()
	port := freePort(t)
	start(t, dir, append(slices.Clone(env), "PORT="+port), node, script)
	return "http://127.0.0.1:" + port
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
	client, err := firestore.NewClient(t.Context(), project)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() }) // the test has ended
	return client.Collection(name)
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

// start starts a program, which ends with the test.
func start(t *testing.T, dir string, env []string, command ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...) //nolint:gosec // the test's own
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, slices.Clone(env), t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the context has ended it
}

// post sends JSON, again until the program listens.
func post(t *testing.T, url, body string) (status int, answer string) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		resp, err := http.Post(url, "application/json", strings.NewReader(body)) //nolint:gosec // the test's own
		if err != nil && time.Since(began) < time.Minute {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // it is read
		return resp.StatusCode, string(text)
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
func get(url string, r *report) error {
	resp, err := http.Get(url) //nolint:gosec // the test's own
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(r)
}

// await reads a report until it is finished.
func await(t *testing.T, url string) (r report) {
	t.Helper()
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(100 * time.Millisecond) {
		if err := get(url, &r); err != nil {
			t.Fatal(err)
		}
		if r.Status == "READY" || r.Status == "FAILED" {
			return r
		}
	}
	t.Errorf("%s is not finished after a minute: %+v", url, r)
	return r
}
