package examplestest

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/repo"
	"taskguard/worker"
)

// Charges runs an example that charges once, for a document whose act has not begun, is
// done, and is uncertain.
func Charges(t *testing.T, spec string) {
	t.Helper()
	analyzer, err := orchestrator.New(spec, orchestrator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := emulatortest.Embedded(t)
	var log bytes.Buffer
	g, err := worker.Open(t.Context(), worker.Options{
		Project: b.Project, Auth: worker.CheckedByProxy(), FirestoreOptions: b.Client(t),
		Log: slog.New(slog.NewTextHandler(&log, nil)), Lock: lease.Policy{},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Shutdown(t.Context()) })
	docs, err := repo.Open(t.Context(), b.Project, repo.Options{}, b.Client(t)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = docs.Close() })

	handler := g.Handler(worker.Kind{Run: analyzer.Analyze})
	for act, want := range map[string]struct {
		status  string
		charges int
	}{"": {"READY", 1}, "done": {"READY", 0}, "started": {"FAILED", 0}} {
		id, ledger := "act-"+act, filepath.Join(t.TempDir(), "ledger")
		if err := docs.Create(t.Context(), id, map[string]any{"cents": int64(4200), "ledger": ledger}); err != nil {
			t.Fatal(err)
		}
		if act != "" {
			record := map[string]any{"state": act, "token": 1, "result": map[string]any{"charged": 4200}}
			b.Merge(t, id, map[string]any{"effects": map[string]any{"charge": record}, "openEffects": 1})
		}

		body := strings.NewReader(`{"analysis_id":"` + id + `"}`)
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", body))
		d, err := docs.Get(t.Context(), id)
		charged, _ := os.ReadFile(ledger) // missing: no charge
		if n := bytes.Count(charged, []byte("4200\n")); err != nil || d.Status != want.status || n != want.charges {
			t.Errorf("act %q: %s after %d charges, %v, want %+v\n%+v\n%s", act, d.Status, n, err, want, d.LastError, &log)
		}
		if d.Status == "FAILED" && d.Error.Code != "effect_uncertain" {
			t.Errorf("act %q: %+v", act, d.Error)
		}
	}
}
