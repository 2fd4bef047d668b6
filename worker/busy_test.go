package worker

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
)

// A caller without a valid token is refused as usual. Recovery and health are not limited.
func TestABusyWorkerAnswersBusyBeforeFirestoreIsRead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		finish := make(chan struct{})
		w := startLogged(t, b, nil, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if job.AnalysisID != "x" {
				<-finish
			}
			return "done", nil
		})
		w.restart(callers{})
		w.options.MaxRuns = 2
		var runs sync.WaitGroup
		for _, id := range []string{"a", "b"} {
			b.Put(t, id, map[string]any{"status": "QUEUED"})
			task := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/internal/tasks/analysis", strings.NewReader(`{"analysis_id":"`+id+`"}`))
			task.Header.Set("Authorization", "mine")
			runs.Go(func() { w.send(t, task).check(t, 200, map[string]any{"status": "READY"}) })
		}
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		synctest.Wait()
		w.log.Reset()
		before := b.Calls.Total()
		a := w.as(t, "/internal/tasks/analysis", "mine")
		a.check(t, 409, map[string]any{"analysis_id": "x", "acquired": false, "reason": "busy", "error": nil})
		if a.RetryAfter != "10" {
			t.Errorf("Retry-After = %q, want 10", a.RetryAfter)
		}
		if n := b.Calls.Total() - before; n != 0 {
			t.Errorf("%d calls to Firestore, want none", n)
		}
		if s := w.log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, `"outcome":"busy","status":409`) {
			t.Errorf("log: %s", s)
		}
		w.as(t, "/internal/tasks/analysis", "").check(t, 401, nil)
		w.as(t, "/internal/tasks/recover", "mine").check(t, 501, map[string]any{"reason": "no_queue"})
		w.call(t, http.MethodGet, "/health/live", "").check(t, 200, nil)
		close(finish)
		runs.Wait()
		w.as(t, "/internal/tasks/analysis", "mine").check(t, 200, map[string]any{"status": "READY"})
	})
}

// A recovery does not count as a delivery, nor does a request that has not arrived in full.
func TestNeitherARecoveryNorAnIncompleteRequestIsCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		w := start(t, b, succeed)
		w.options.MaxRuns, w.guard.Queue = 1, StartQueue(t).Queue
		w.unavailable.Store(true) // the call of the recovery waits
		body, client := io.Pipe()
		var others sync.WaitGroup
		others.Go(func() {
			w.call(t, http.MethodPost, "/internal/tasks/recover", "").check(t, 503, map[string]any{"reason": "unavailable"})
		})
		others.Go(func() {
			half := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/internal/tasks/analysis", body)
			w.send(t, half).check(t, 400, map[string]any{"reason": "bad_request"})
		})
		synctest.Wait()
		w.unavailable.Store(false)
		w.deliver(t, "x").check(t, 200, map[string]any{"status": "READY"})
		_ = client.CloseWithError(io.ErrUnexpectedEOF)
		others.Wait()
	})
}
