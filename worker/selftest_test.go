package worker

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
)

func TestASelfTestRunsTheAnalyzerWithoutADocument(t *testing.T) {
	for name, c := range map[string]struct {
		analyze orchestrator.AnalyzerFunc
		code    int
		want    map[string]any
		log     string // words of its line
	}{
		"it succeeds": {func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			job.Report(0.5, "half")
			if string(job.Input) != `{"text":"s3cret"}` || job.AnalysisID != "self-test" || job.Attempt != 1 {
				return nil, errors.New("another job")
			}
			return "done", job.Checkpoint(context.Background(), "c")
		}, 200, map[string]any{"status": "ok", "analysis_id": nil, "acquired": nil}, `"level":"INFO","msg":"self-test","outcome":"ok","status":200`},
		"it fails for good": {failing(&orchestrator.PermanentError{Code: "bad_model", Message: "s3cret"}), 500, map[string]any{"reason": "self_test_failed", "error": "bad_model: s3cret"}, `"code":"bad_model"`},
		"it fails for now":  {failing(&orchestrator.FailureError{Reason: "exit status 1", Message: "s3cret"}), 500, map[string]any{"reason": "self_test_failed", "error": "exit status 1: s3cret"}, `"code":"analyzer_failed","reason":"exit status 1"`},
		"it panics": {func(context.Context, orchestrator.Job) (orchestrator.Result, error) { panic("s3cret") },
			500, map[string]any{"reason": "self_test_failed"}, `"code":"analyzer_failed"`},
		"its result fits no document": {func(context.Context, orchestrator.Job) (orchestrator.Result, error) { return []any{[]any{}}, nil },
			500, map[string]any{"reason": "self_test_failed"}, `"code":"result_invalid"`},
		"it takes too long": {endless, 500, map[string]any{"reason": "self_test_failed", "error": "worker: the run passed its deadline"}, `"level":"WARN"`},
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			w := start(t, b, c.analyze)
			w.testedWith(json.RawMessage(`{"text":"s3cret"}`))
			w.unavailable.Store(true) // Firestore is not needed
			w.call(t, http.MethodPost, "/internal/self-test", "").check(t, c.code, c.want)
			if s := w.log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, c.log) || strings.Contains(s, "s3cret") {
				t.Errorf("log: %s, want one line with %s", s, c.log)
			}
		})
	}
}

func TestASelfTestIsLetInCountedAndStoppedLikeARun(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		w := start(t, b, endless)
		w.restart(callers{})
		w.testedWith(json.RawMessage(`1`))
		w.options.MaxRuns = 1

		running := make(chan reply)
		go func() { running <- w.as(t, "/internal/self-test", "Bearer x") }()
		synctest.Wait()
		w.as(t, "/internal/self-test", "Bearer x").check(t, 409, map[string]any{"reason": "busy"})
		time.Sleep(time.Minute)
		w.stop(delivery.ErrStopping)
		answered := <-running
		answered.check(t, 500, map[string]any{"reason": "shutting_down"})

		w.restart(CheckedByProxy())
		w.testedWith(nil)
		w.call(t, http.MethodPost, "/internal/self-test", "").check(t, 404, map[string]any{"reason": "not_configured"})
	})
}

// testedWith adds the route of self-tests on this input.
func (w *process) testedWith(input json.RawMessage) {
	w.options.SelfTest = input
	w.echo.POST("/internal/self-test", w.selfTest(w.guard, w.analyze))
}
