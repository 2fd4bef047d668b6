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

// A caller without a valid token is refused as usual. Recovery and health are not limited. A request
// that has not arrived in full does not count.
func TestABusyWorkerAnswersBusyBeforeFirestoreIsRead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		finish := make(chan struct{})
		w := start(t, b, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if job.AnalysisID != "x" {
				<-finish
			}
			return "done", nil
		})
		w.restart(callers{})
		w.options.MaxRuns = 2
		var runs sync.WaitGroup
		body, client := io.Pipe()
		runs.Go(func() {
			half := httptest.NewRequestWithContext(t.Context(), http.MethodPost, deliveryRoute, body)
			half.Header.Set("Authorization", "mine")
			w.send(t, half).check(t, 400, map[string]any{"reason": "bad_request"})
		})
		for _, id := range []string{"a", "b"} {
			b.Put(t, id, map[string]any{"status": "QUEUED"})
			task := httptest.NewRequestWithContext(t.Context(), http.MethodPost, deliveryRoute, strings.NewReader(`{"analysis_id":"`+id+`"}`))
			task.Header.Set("Authorization", "mine")
			runs.Go(func() { w.send(t, task).check(t, 200, map[string]any{"status": "READY"}) })
		}
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		synctest.Wait()
		w.log.Reset()
		before := b.Calls.Total()
		a := w.as(t, deliveryRoute, "mine")
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
		w.as(t, deliveryRoute, "").check(t, 401, nil)
		w.as(t, "/internal/tasks/recover", "mine").check(t, 501, map[string]any{"reason": "no_queue"})
		w.call(t, http.MethodGet, "/health/live", "").check(t, 200, nil)
		close(finish)
		_ = client.CloseWithError(io.ErrUnexpectedEOF)
		runs.Wait()
		w.as(t, deliveryRoute, "mine").check(t, 200, map[string]any{"status": "READY"})
	})
}
