package worker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
)

func TestBadRequests(t *testing.T) {
	b := emulatortest.Embedded(t)
	w := start(t, b, succeed)
	long := strings.Repeat("x", 1501)
	cases := map[string]struct {
		body   string
		code   int
		reason string
		error  string // part of it
	}{
		"no body":               {"", 400, "bad_request", "the body is empty"},
		"null":                  {"null", 400, "bad_request", "not the JSON object"},
		"not JSON":              {"analysis_id=x", 400, "bad_request", "not the JSON object"},
		"another JSON":          {"[1]", 400, "bad_request", "not the JSON object"},
		"two values":            {`{"analysis_id":"x"}{}`, 400, "bad_request", "not the JSON object"},
		"no id":                 {`{"id":"x"}`, 400, "bad_request", "analysis_id is missing"},
		"null id":               {`{"analysis_id":null}`, 400, "bad_request", "not a string"},
		"a number":              {`{"analysis_id":5}`, 400, "bad_request", "not a string"},
		"a field in capitals":   {`{"ANALYSIS_ID":"x"}`, 400, "bad_request", "analysis_id is missing"},
		"an empty id":           {`{"analysis_id":""}`, 400, "bad_request", "is empty"},
		"a parent":              {`{"analysis_id":"../x"}`, 400, "bad_request", "slash"},
		"reserved":              {`{"analysis_id":"__x__"}`, 400, "bad_request", "reserved"},
		"1,501 bytes":           {`{"analysis_id":"` + long + `"}`, 400, "bad_request", "1501 bytes"},
		"not UTF-8":             {"{\"analysis_id\":\"\xff\"}", 400, "bad_request", "UTF-8"},
		"a lone surrogate":      {`{"analysis_id":"\ud800"}`, 400, "bad_request", "U+FFFD"},
		"a control character":   {`{"analysis_id":"a\u0000b"}`, 400, "bad_request", "control"},
		"2 MiB":                 {`{"analysis_id":"x","pad":"` + strings.Repeat("x", 2<<20) + `"}`, 413, "too_large", ""},
		"unknown fields are ok": {`{"more":[1],"analysis_id":"missing"}`, 404, "not_found", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before := b.Calls.Total()
			a := w.post(t, tc.body)
			a.check(t, tc.code, map[string]any{"reason": tc.reason})
			if msg, _ := a.Body["error"].(string); !strings.Contains(msg, tc.error) {
				t.Errorf("error = %q, want something with %q", msg, tc.error)
			}
			if calls := b.Calls.Total() - before; calls != 0 && tc.code != 404 {
				t.Errorf("Firestore was asked %d times", calls)
			}
		})
	}
}

func TestOtherRoutesAndMethods(t *testing.T) {
	w := start(t, emulatortest.Embedded(t), succeed)
	w.call(t, http.MethodGet, "/internal/tasks/analysis", "").check(t, 405, map[string]any{"reason": "method_not_allowed"})
	w.call(t, http.MethodPost, "/health/live", "").check(t, 405, map[string]any{"reason": "method_not_allowed"})
	w.call(t, http.MethodGet, "/nothing", "").check(t, 404, map[string]any{"reason": "no_such_route"})
	w.call(t, http.MethodPost, "/internal/tasks/analysis/", "{}").check(t, 404, map[string]any{"reason": "no_such_route"})
	w.call(t, http.MethodGet, "/health/live", "").check(t, 200, map[string]any{"status": "live"})
}

// disconnected is a caller that has disconnected.
type disconnected struct{ http.ResponseWriter }

func (disconnected) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestAnErrorThatCouldNotBeSentIsLogged(t *testing.T) {
	w := start(t, emulatortest.Embedded(t), succeed)
	w.ServeHTTP(disconnected{httptest.NewRecorder()}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/nothing", http.NoBody))
	if got := w.log.String(); !strings.Contains(got, `"level":"WARN","msg":"answer not sent","error":"broken pipe"`) {
		t.Errorf("log: %s", got)
	}
}

// Its task is not rejected: the body of another try may arrive.
func TestABodyThatBreaksOffIsABadRequest(t *testing.T) {
	w := start(t, emulatortest.Embedded(t), succeed)
	cut := io.MultiReader(strings.NewReader(`{"analysis_id":"x"}`), iotest.ErrReader(errors.New("connection reset")))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/internal/tasks/analysis", cut)
	r.Header.Set("X-CloudTasks-TaskName", "task")
	w.send(t, r).check(t, 400, map[string]any{"reason": "bad_request", "error": "the body did not arrive in full", "rejected": nil})
}

// If it were rounded down, the retry would find the lock held.
func TestRetryAfterIsRoundedUpWithinBounds(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		0: "1", time.Second: "1", time.Second + 1: "2", 10 * time.Minute: "600", 12 * time.Hour: "600",
	} {
		if got := retryAfter(delivery.Locked, wait); got != want {
			t.Errorf("%v: %s s, want %s", wait, got, want)
		}
	}
}

const actInSelfTest = `act_in_self_test: the input of a self-test must not lead to an act, here "charge": each self-test would do it again`

func TestASelfTestRunsTheAnalyzerWithoutADocument(t *testing.T) {
	for name, c := range map[string]struct {
		analyze orchestrator.AnalyzerFunc
		code    int
		want    map[string]any
		log     string // words of its line
	}{
		"it succeeds": {func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			job.Report(0.5, "half")
			if string(job.Input) != `{"text":"s3cret"}` || !job.SelfTest || job.AnalysisID != "self-test" || job.Attempt != 1 {
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
		"it reaches an act": {func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			return Once(ctx, job, "charge", func(context.Context) (int, error) { t.Error("the act is done"); return 0, nil })
		}, 500, map[string]any{"reason": "self_test_failed", "error": actInSelfTest}, `"code":"act_in_self_test"`},
		"it ignores that": {func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if job.End(ctx, "charge", true, 1) == nil || job.Key("charge") == "" {
				t.Error("the end of an act is recorded")
			}
			return "done", nil
		}, 500, map[string]any{"reason": "self_test_failed", "error": actInSelfTest}, `"code":"act_in_self_test"`},
		"it takes too long": {endless, 500, map[string]any{"reason": "self_test_failed", "error": "the run passed its deadline"}, `"level":"WARN"`},
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
		w.places = delivery.NewPlaces(1)

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
	w.echo.POST("/internal/self-test", echo.WrapHandler(w.selfTest(w.runner, w.analyze)))
}
