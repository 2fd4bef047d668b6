package app

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"taskguard/cmd/worker/service"
	"taskguard/emulator/emulatortest"
)

// worker is cmd/worker in the test's process, on an embedded Firestore, with an
// application as its analyzer.
type worker struct {
	*emulatortest.Backend
	t   *testing.T
	url string
}

func serve(t *testing.T, analyzer string) *worker {
	t.Helper()
	b := emulatortest.Embedded(t)
	store, front := listen(t), listen(t)
	var serving sync.WaitGroup
	serving.Go(func() { _ = b.Server.Serve(store) }) // until it is closed
	t.Cleanup(func() { b.Server.Close(); serving.Wait() })
	t.Setenv("FIRESTORE_EMULATOR_HOST", store.Addr().String())
	environment := map[string]string{
		"GOOGLE_CLOUD_PROJECT": b.Project, "FIRESTORE_EMULATOR_HOST": store.Addr().String(), "TASK_AUTH": "none", "ANALYZER": analyzer,
	}
	cfg, err := service.ParseConfig(func(name string) (string, bool) { v, ok := environment[name]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var working sync.WaitGroup
	working.Go(func() {
		if err := service.Serve(ctx, cfg, front, slog.New(slog.DiscardHandler)); err != nil {
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

// put makes the analysis id with this text as its input.
func (w *worker) put(id string, input any) {
	w.t.Helper()
	w.Put(w.t, id, map[string]any{"status": "QUEUED", "input": input})
}

// deliver is a delivery by Cloud Tasks, and what came of it.
func (w *worker) deliver(id string) (status int, said outcome) {
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+"/internal/tasks/analysis", strings.NewReader(`{"analysis_id":"`+id+`"}`))
	if err != nil {
		w.t.Error(err)
		return 0, said
	}
	status, body := answer(w.t, r)
	if err := json.Unmarshal([]byte(body), &said); err != nil {
		w.t.Errorf("%q: %v", body, err)
	}
	return status, said
}

type outcome struct {
	Status    string
	Reason    string
	Error     string
	LockToken int64 `json:"lock_token"`
}

func TestAnAnalysisOfTheApplicationIsReady(t *testing.T) {
	a := start(t, 0)
	w := serve(t, a.url("/analyze"))
	w.put("x", map[string]any{"text": "the lamp and the moon"})
	status, said := w.deliver("x")
	if status != http.StatusOK || said.Status != "READY" {
		t.Fatalf("%d %+v, want READY", status, said)
	}
	if l := a.next("begins"); l.AnalysisID != "x" || l.LockToken != said.LockToken {
		t.Errorf("the application was told %+v, want analysis x under the token %d", l, said.LockToken)
	}
	result, _ := w.Fields(t, "x")["result"].(map[string]any)
	if result["words"] != int64(5) {
		t.Errorf("the document holds %v, want 5 words", result)
	}
}

func TestWhatTheApplicationRefusesForGoodIsFailed(t *testing.T) {
	w := serve(t, start(t, 0).url("/analyze"))
	for id, input := range map[string]any{"no-text": map[string]any{"image": "x"}, "null": nil, "list": []any{"text"}} {
		w.put(id, input)
		if status, said := w.deliver(id); status != http.StatusOK || said.Status != "FAILED" || !strings.Contains(said.Error, "the input has no text") {
			t.Errorf("%s: %d %+v, want FAILED with the application's words", id, status, said)
		}
	}
}

// Its one slot is taken by a job that waits for the test to end it.
func TestWhatTheApplicationHasNoPlaceForComesAgain(t *testing.T) {
	full := start(t, 0, "APP_SLOTS=1", "APP_SECONDS=3600")
	w := serve(t, full.url("/analyze"))
	w.put("first", map[string]any{"text": "a"})
	w.put("second", map[string]any{"text": "b"})
	var first sync.WaitGroup
	first.Go(func() { _, _ = w.deliver("first") })
	defer first.Wait()
	full.next("begins")
	status, said := w.deliver("second")
	if status != http.StatusInternalServerError || said.Reason != "retry" || !strings.Contains(said.Error, "503") {
		t.Errorf("%d %+v, want a retry because of 503", status, said)
	}
	full.kill()
	start(t, full.port)
	if status, said := w.deliver("second"); status != http.StatusOK || said.Status != "READY" {
		t.Errorf("then %d %+v, want READY", status, said)
	}
}

func TestAnApplicationThatIsKilledInARunLosesNothing(t *testing.T) {
	for name, end := range map[string]syscall.Signal{"SIGKILL": syscall.SIGKILL, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			a := start(t, 0, "APP_SECONDS=3600")
			w := serve(t, a.url("/analyze"))
			w.put("x", map[string]any{"text": "the lamp"})
			var status int
			var said outcome
			var run sync.WaitGroup
			run.Go(func() { status, said = w.deliver("x") })
			before := a.next("begins").LockToken
			if err := a.process.Signal(end); err != nil {
				t.Fatal(err)
			}
			run.Wait()
			if status != http.StatusInternalServerError || said.Reason != "retry" {
				t.Errorf("%d %+v, want a retry", status, said)
			}
			if err := a.wait(); (end == syscall.SIGTERM) != (err == nil) {
				t.Errorf("the application ended with %v", err)
			}
			if status, said := w.deliver("x"); status != http.StatusInternalServerError || said.Reason != "retry" {
				t.Errorf("while it is gone: %d %+v, want a retry", status, said)
			}
			start(t, a.port)
			if status, said := w.deliver("x"); status != http.StatusOK || said.Status != "READY" || said.LockToken <= before {
				t.Errorf("then %d %+v, want READY under a token after %d", status, said, before)
			}
		})
	}
}

// A worker that was paused for longer than its lock lives may call after the one
// that took over.
func TestTheApplicationRefusesTheLowerTokenOfTwo(t *testing.T) {
	a := start(t, 0, "APP_SECONDS=3600")
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url("/analyze"), strings.NewReader(job("x", 7, `{"text":"a"}`)))
	if err != nil {
		t.Fatal(err)
	}
	var run sync.WaitGroup
	run.Go(func() {
		if resp, err := http.DefaultClient.Do(r); err == nil {
			_ = resp.Body.Close()
			t.Error("a job of an hour has ended")
		}
	})
	defer run.Wait()
	defer cancel()
	a.next("begins")
	if status, said := a.post("x", 6, `{"text":"a"}`); status != http.StatusConflict || said != "superseded" {
		t.Errorf("%d %s, want 409 superseded", status, said)
	}
	if status, said := a.post("x ", 6, "{}"); status != http.StatusUnprocessableEntity {
		t.Errorf("another analysis, whose id ends with a space: %d %s, want 422", status, said)
	}
	if status, said := a.post("x", 8, "{}"); status != http.StatusUnprocessableEntity {
		t.Errorf("a higher token: %d %s, want 422", status, said)
	}
}

func TestTheApplicationIsHealthy(t *testing.T) {
	a := start(t, 0)
	for path, want := range map[string]int{"/health": http.StatusOK, "/": http.StatusNotFound} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.url(path), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if status, _ := answer(t, r); status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
	resp, err := http.Post(a.url("/other"), "", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusNotFound {
		t.Errorf("POST /other: %d, %v, want 404", resp.StatusCode, err)
	}
}
