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

	"taskguard/internal/delivery"
	"taskguard/internal/taskauth"
	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
)

// callers checks a caller by the Authorization of its request.
type callers struct{}

func (callers) Check(r *http.Request) error {
	switch r.Header.Get("Authorization") {
	case "":
		return taskauth.ErrUnauthenticated
	case "another's":
		return ErrForbidden
	case "unknown":
		return ErrNoKeys
	}
	return nil
}

// as makes a request with that Authorization.
func (w *process) as(t *testing.T, path, authorization string) reply {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(`{"analysis_id":"x"}`))
	r.Header.Set("Authorization", authorization)
	return w.send(t, r)
}

// No route that changes something admits a caller that is not let in, and no such call reaches
// Firestore or decides what is traced. internal/taskauth tests all kinds of invalid tokens. The 503
// makes a queue try again.
func TestACallerIsCheckedBeforeAnythingIsRead(t *testing.T) {
	const id = "0af7651916cd43dd8448eb211c80319c"
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		w := start(t, b, succeed)
		w.restart(callers{})
		w.testedWith(nil)
		before := b.Calls.Total()
		for _, path := range []string{deliveryRoute, "/internal/tasks/recover", "/internal/self-test"} {
			for authorization, want := range map[string]struct {
				code              int
				reason, challenge string
			}{
				"": {401, "unauthenticated", "Bearer"}, "another's": {403, "forbidden", ""}, "unknown": {503, "unavailable", ""},
			} {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, unreadBody{t})
				r.Header.Set("Authorization", authorization)
				r.Header.Set("traceparent", "00-"+id+"-b7ad6b7169203331-01")
				got := w.send(t, r)
				got.check(t, want.code, map[string]any{"reason": want.reason, "analysis_id": nil, "error": nil})
				if got.Challenge != want.challenge {
					t.Errorf("%d with WWW-Authenticate %q, want %q", want.code, got.Challenge, want.challenge)
				}
			}
		}
		if n := b.Calls.Total() - before; n != 0 || strings.Count(w.log.String(), "\n") != 9 {
			t.Errorf("%d calls to Firestore, want none; log, want a line a call: %s", n, w.log)
		}
		if spans := w.trace(); spans != "" {
			t.Errorf("spans %s", spans)
		}
		for sampled, want := range map[string]string{"0": "", "1": "recovery no_queue!"} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/internal/tasks/recover", http.NoBody)
			r.Header.Set("Authorization", "mine")
			r.Header.Set("traceparent", "00-"+id+"-b7ad6b7169203331-0"+sampled)
			w.send(t, r).check(t, 501, nil)
			if spans := w.trace(); spans != want {
				t.Errorf("spans %q of a trace with the flag %s, want %q", spans, sampled, want)
			}
		}
		w.as(t, deliveryRoute, "mine").check(t, 200, map[string]any{"status": "READY"})
		w.call(t, http.MethodGet, "/health/live", "").check(t, 200, nil)
	})
}

// unreadBody is a body that must not be read.
type unreadBody struct{ *testing.T }

func (u unreadBody) Read([]byte) (int, error) {
	u.Error("the body was read")
	return 0, io.EOF
}

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
		w.places = delivery.NewPlaces(2)
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
		w.as(t, deliveryRoute, "mine").check(t, 409, map[string]any{"analysis_id": "x", "acquired": false, "reason": "busy", "error": nil, "Retry-After": "10"})
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
