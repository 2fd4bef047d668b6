package app

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/internal/emulatortest"
	"taskguard/internal/examplestest"
	"taskguard/internal/workerservice"
)

// logLine is one line of the application's log.
type logLine struct {
	Message    string
	Port       int
	AnalysisID string `json:"analysis_id"`
	LockToken  int64  `json:"lock_token"`
	Done       int    // words of an earlier attempt
}

// application is a process of app.py.
type application struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
	port  int
}

// start runs app.py on port, or on any free port if it is 0, until the test ends.
func start(t *testing.T, port int, env ...string) *application {
	t.Helper()
	python := examplestest.Find(t, "PYTHON", "python3")[0]
	cmd := exec.Command(python, "app.py")
	cmd.Env = append(append(os.Environ(), "APP_HOST=127.0.0.1", fmt.Sprintf("APP_PORT=%d", port)), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a := &application{t: t, cmd: cmd, lines: bufio.NewScanner(out)}
	t.Cleanup(a.kill)
	a.port = a.next("serving").Port
	return a
}

// next waits for the next log line, which must have this message.
func (a *application) next(message string) (l logLine) {
	a.t.Helper()
	if !a.lines.Scan() {
		a.t.Fatalf("the application ended before %q: %v", message, a.lines.Err())
	}
	if err := json.Unmarshal(a.lines.Bytes(), &l); err != nil || l.Message != message {
		a.t.Fatalf("the application logged %q, want %q", a.lines.Text(), message)
	}
	return l
}

// kill sends SIGKILL and waits for the end of the process.
func (a *application) kill() {
	_ = a.cmd.Process.Kill() // it may have ended
	_ = a.cmd.Wait()         // killed
}

func (a *application) url() string { return fmt.Sprintf("http://localhost:%d/analyze", a.port) }

// post sends a job and returns the status and the body of the answer.
func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(data)
}

// worker is cmd/worker in this process, on the embedded Firestore.
type worker struct {
	*emulatortest.Backend
	t   *testing.T
	url string
}

func newWorker(t *testing.T, analyzer string) *worker {
	t.Helper()
	b := emulatortest.Embedded(t)
	store, front := listen(t), listen(t)
	var serving sync.WaitGroup
	serving.Go(func() { _ = b.Server.Serve(store) }) // until it is closed
	t.Cleanup(func() { b.Server.Close(); serving.Wait() })
	t.Setenv("FIRESTORE_EMULATOR_HOST", store.Addr().String())
	environment := map[string]string{
		"GOOGLE_CLOUD_PROJECT": b.Project, "FIRESTORE_EMULATOR_HOST": store.Addr().String(), "TASK_AUTH": "none", "ANALYZER": analyzer, "CHECKPOINT_INTERVAL": "1s",
	}
	cfg, err := workerservice.ParseConfig(func(name string) (string, bool) { v, ok := environment[name]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var working sync.WaitGroup
	working.Go(func() {
		if err := workerservice.Serve(ctx, cfg, front, slog.New(slog.DiscardHandler)); err != nil {
			t.Errorf("the worker: %v", err)
		}
	})
	t.Cleanup(func() { stop(); working.Wait() })
	return &worker{b, t, "http://" + front.Addr().String()}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// deliver sends a task for the analysis, as Cloud Tasks does, and wants an answer that
// contains want.
func (w *worker) deliver(id string, want string) (token int64) {
	w.t.Helper()
	_, body := post(w.t, w.url+"/internal/tasks/analysis", `{"analysis_id":"`+id+`"}`)
	var answer struct {
		LockToken int64 `json:"lock_token"`
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || !strings.Contains(body, want) {
		w.t.Errorf("%s: %s, %v; want %s", id, body, err, want)
	}
	return answer.LockToken
}

func TestTheApplicationAnalyzesAndRejects(t *testing.T) {
	a := start(t, 0)
	w := newWorker(t, a.url())
	w.Put(t, "good", map[string]any{"status": "QUEUED", "input": map[string]any{"text": "the lamp and the moon"}})
	w.Put(t, "bad", map[string]any{"status": "QUEUED", "input": map[string]any{"image": "x"}})
	token := w.deliver("good", `"READY"`)
	if l := a.next("begins"); l.AnalysisID != "good" || l.LockToken != token {
		t.Errorf("the application got %+v, want the analysis good with token %d", l, token)
	}
	if result, _ := w.Fields(t, "good")["result"].(map[string]any); result["words"] != int64(5) {
		t.Errorf("the document has %v, want 5 words", result)
	}
	w.deliver("bad", "the input has no text")
	if status := w.Fields(t, "bad")["status"]; status != "FAILED" {
		t.Errorf("a rejected analysis is %v, want FAILED", status)
	}
}

func TestAnAnalysisWhoseApplicationIsKilledContinuesFromItsCheckpoint(t *testing.T) {
	a := start(t, 0, "APP_SECONDS=10")
	w := newWorker(t, a.url())
	w.Put(t, "x", map[string]any{"status": "QUEUED", "input": map[string]any{"text": strings.Repeat("__init__ the lamp ", 10)}})
	var run sync.WaitGroup
	run.Go(func() { w.deliver("x", `"retry"`) })
	before := a.next("begins")
	for f := w.Fields(t, "x"); f["checkpoint"] == nil && f["status"] == "PROCESSING"; f = w.Fields(t, "x") {
		time.Sleep(10 * time.Millisecond)
	}
	a.kill()
	if run.Wait(); t.Failed() {
		return
	}
	a = start(t, a.port)
	token := w.deliver("x", `"READY"`)
	after := a.next("begins")
	if token <= before.LockToken || after.LockToken != token || before.Done != 0 || after.Done == 0 {
		t.Errorf("token %d, %+v after %+v; want a larger token and words that were done", token, after, before)
	}
	if result, _ := w.Fields(t, "x")["result"].(map[string]any); result["words"] != int64(30) {
		t.Errorf("the document has %v, want 30 words", result)
	}
	const counted = `{"analysis_id":"y","lock_token":1,"attempt":2,"input":{"text":"a a b"},"checkpoint":{"done":2,"counts":"{\"a\":7}"}}`
	if status, body := post(t, a.url(), counted); status != http.StatusOK || !strings.HasSuffix(body, `{"result": {"words": 8, "top": [{"word": "a", "count": 7}, {"word": "b", "count": 1}]}}`+"\n") {
		t.Errorf("%d %s, want a result that begins with the checkpoint's", status, body)
	}
}

func job(id string, token int) string {
	return fmt.Sprintf(`{"analysis_id":%q,"lock_token":%d,"attempt":1,"input":{"text":"a"}}`, id, token)
}

// begin sends a job that ends with the test, and waits until it has begun.
func (a *application) begin(id string, token int) {
	a.t.Helper()
	ctx, cancel := context.WithCancel(a.t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url(), strings.NewReader(job(id, token)))
	if err != nil {
		a.t.Fatal(err)
	}
	var run sync.WaitGroup
	run.Go(func() {
		if resp, err := http.DefaultClient.Do(r); err == nil {
			_ = resp.Body.Close()
			a.t.Error("a job of an hour has ended")
		}
	})
	a.t.Cleanup(func() { cancel(); run.Wait() })
	a.next("begins")
}

func TestTheApplicationRefusesALowerToken(t *testing.T) {
	a := start(t, 0, "APP_SECONDS=3600", "APP_SLOTS=10")
	a.begin("x", 7)
	if status, body := post(t, a.url(), job("x", 6)); status != http.StatusConflict || body != "superseded" {
		t.Errorf("%d %s, want 409 superseded", status, body)
	}
}

func TestTheApplicationRefusesAJobTooMany(t *testing.T) {
	a := start(t, 0, "APP_SECONDS=3600", "APP_SLOTS=1")
	a.begin("x", 7)
	if status, body := post(t, a.url(), job("y", 1)); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s, want 503", status, body)
	}
}
