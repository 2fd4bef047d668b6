package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/internal/delivery"
	"taskguard/internal/taskauth"
	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
)

func TestRoutes(t *testing.T) {
	w := start(t, emulatortest.Embedded(t), succeed)
	for _, tc := range []struct {
		route string
		code  int
		want  string
	}{
		{"GET " + deliveryRoute, 405, "reason=method_not_allowed"},
		{"POST /health/live", 405, "reason=method_not_allowed"},
		{"GET /nothing", 404, "reason=no_such_route"},
		{"POST " + deliveryRoute + "/", 404, "reason=no_such_route"},
		{"GET /health/live", 200, "status=live"},
	} {
		method, path, _ := strings.Cut(tc.route, " ")
		w.call(t, method, path, "{}").check(t, tc.code, logged(tc.want))
	}
}

// disconnected is a caller that has disconnected.
type disconnected struct{ http.ResponseWriter }

func (disconnected) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestRoutes_Unsent(t *testing.T) {
	w := start(t, emulatortest.Embedded(t), succeed)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/nothing", http.NoBody)
	w.ServeHTTP(disconnected{httptest.NewRecorder()}, r)
	reply{Body: w.entry(t, "answer not sent")}.check(t, 0, logged("level=WARN, error=broken pipe"))
}

// It is rounded up: otherwise the retry would find the lock held.
func TestRetryAfter(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		0: "1", time.Second: "1", time.Second + 1: "2", 10 * time.Minute: "600", 12 * time.Hour: "600",
	} {
		if got := retryAfter(delivery.Locked, wait); got != want {
			t.Errorf("%v: %s s, want %s", wait, got, want)
		}
	}
}

// testedWith adds the route of self-tests on this input.
func (w *process) testedWith(input json.RawMessage) {
	w.options.SelfTest = input
	w.echo.POST("/internal/self-test", echo.WrapHandler(w.selfTest(w.runner, w.analyze)))
}

// A self-test runs the analyzer without a document, and without Firestore.
func TestSelfTest(t *testing.T) {
	const failed = "reason=self_test_failed, error="
	for _, tc := range []struct {
		name            string
		analyze         orchestrator.AnalyzerFunc
		code            int // zero: 500
		answer, logLine string
	}{
		{name: "it succeeds", code: 200, answer: "status=ok, acquired=", logLine: "level=INFO, outcome=ok",
			analyze: func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				job.Report(0.5, "half")
				if string(job.Input) != `{"text":"s3cret"}` || !job.SelfTest {
					t.Errorf("job = %+v", job)
				}
				if job.AnalysisID != "self-test" || job.Attempt != 1 {
					t.Errorf("job = %+v", job)
				}
				return "done", job.Checkpoint(ctx, "c")
			}},
		{name: "it fails for good", answer: failed + "bad_model: s3cret", logLine: "code=bad_model",
			analyze: failing(&orchestrator.PermanentError{Code: "bad_model", Message: "s3cret"})},
		{name: "it fails for now", answer: failed + "exit status 1: s3cret", logLine: "reason=exit status 1",
			analyze: failing(&orchestrator.FailureError{Reason: "exit status 1", Message: "s3cret"})},
		{name: "it panics", answer: failed + "*", logLine: "code=analyzer_failed",
			analyze: doing(func() { panic("s3cret") })},
		{name: "its result fits no document", answer: failed + "*", logLine: "code=result_invalid",
			analyze: func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
				return []any{[]any{}}, nil
			}},
		{name: "it reaches an act", answer: failed + "*", logLine: "code=act_in_self_test",
			analyze: func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				return Once(ctx, job, "charge", func(context.Context) (int, error) {
					t.Error("the act is done")
					return 0, nil
				})
			}},
		{name: "it ignores that", answer: failed + "*", logLine: "code=act_in_self_test",
			analyze: func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
				if job.End(ctx, "charge", true, 1) == nil || job.Key("charge") == "" {
					t.Error("the end of an act is recorded")
				}
				return "done", nil
			}},
		{name: "it takes too long", answer: failed + "*", logLine: "level=WARN", analyze: endless},
	} {
		Subtest(t, tc.name, func(t *testing.T) {
			w := start(t, emulatortest.Embedded(t), tc.analyze)
			w.testedWith(json.RawMessage(`{"text":"s3cret"}`))
			w.unavailable.Store(true)
			got := w.call(t, http.MethodPost, "/internal/self-test", "")
			got.check(t, cmp.Or(tc.code, http.StatusInternalServerError), logged(tc.answer))
			reply{Body: w.entry(t, "self-test")}.check(t, 0, logged(tc.logLine))
			if log := w.log.String(); strings.Count(log, "\n") != 1 || strings.Contains(log, "s3cret") {
				t.Errorf("log: %s, want one line without the input", log)
			}
		})
	}
}

// A self-test is let in, counted and stopped like a run.
func TestSelfTest_Admission(t *testing.T) {
	Subtest(t, "of a worker with one place", func(t *testing.T) {
		w := start(t, emulatortest.Embedded(t), endless)
		w.restart(callers{})
		w.testedWith(json.RawMessage(`1`))
		w.places = delivery.NewPlaces(1)

		running := make(chan reply)
		go func() { running <- w.as(t, "/internal/self-test", "Bearer x") }()
		synctest.Wait()
		w.as(t, "/internal/self-test", "Bearer x").check(t, 409, logged("reason=busy"))
		time.Sleep(time.Minute)
		w.stop(delivery.ErrStopping)
		answered := <-running
		answered.check(t, 500, logged("reason=shutting_down"))

		w.restart(CheckedByProxy())
		w.testedWith(nil)
		w.call(t, http.MethodPost, "/internal/self-test", "").check(t, 404, logged("reason=not_configured"))
	})
}

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

// No route that changes something admits a caller that is not let in, and no such call reaches Firestore or
// decides what is traced. internal/taskauth tests invalid tokens. The 503 makes a queue try again.
func TestAuth(t *testing.T) {
	const traced = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		w := start(t, b, succeed)
		w.restart(callers{})
		w.testedWith(nil)
		send := func(path, authorization, traceparent string, body io.Reader) reply {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, body)
			r.Header.Set("Authorization", authorization)
			r.Header.Set("traceparent", traceparent)
			return w.send(t, r)
		}
		before := b.Calls.Total()
		for _, path := range []string{deliveryRoute, "/internal/tasks/recover", "/internal/self-test"} {
			for _, tc := range []struct {
				authorization, answer string
				code                  int
			}{
				{"", "reason=unauthenticated, analysis_id=, error=", 401},
				{"another's", "reason=forbidden, analysis_id=, error=", 403},
				{"unknown", "reason=unavailable, analysis_id=, error=", 503},
			} {
				got := send(path, tc.authorization, traced+"1", unreadBody{t})
				got.check(t, tc.code, logged(tc.answer))
				if challenged := got.Challenge == "Bearer"; challenged != (tc.code == 401) {
					t.Errorf("%d with WWW-Authenticate %q", tc.code, got.Challenge)
				}
			}
		}
		if n := b.Calls.Total() - before; n != 0 {
			t.Errorf("%d calls to Firestore, want none", n)
		}
		if lines := strings.Count(w.log.String(), "\n"); lines != 9 {
			t.Errorf("%d lines of 9 calls: %s", lines, w.log)
		}
		if spans := w.trace(); spans != "" {
			t.Errorf("spans %s", spans)
		}
		for sampled, want := range map[string]string{"0": "", "1": "recovery no_queue!"} {
			send("/internal/tasks/recover", "mine", traced+sampled, http.NoBody).check(t, 501, nil)
			if spans := w.trace(); spans != want {
				t.Errorf("spans %q of a trace with the flag %s, want %q", spans, sampled, want)
			}
		}
		w.as(t, deliveryRoute, "mine").check(t, 200, logged("status=READY"))
		w.call(t, http.MethodGet, "/health/live", "").check(t, 200, nil)
	})
}

// unreadBody is a body that must not be read.
type unreadBody struct{ *testing.T }

func (u unreadBody) Read([]byte) (int, error) {
	u.Error("the body was read")
	return 0, io.EOF
}

// A busy worker answers before Firestore is read, but not before the caller is checked. Recovery and health are not
// limited. A request that has not arrived in full does not count.
func TestAuth_Busy(t *testing.T) {
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
		for _, id := range []string{"a", "b", "x"} {
			b.Put(t, id, map[string]any{"status": "QUEUED"})
		}
		body, client := io.Pipe()
		var runs sync.WaitGroup
		send := func(body io.Reader, code int, answer string) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, deliveryRoute, body)
			r.Header.Set("Authorization", "mine")
			runs.Go(func() { w.send(t, r).check(t, code, logged(answer)) })
		}
		send(body, 400, "reason=bad_request")
		send(strings.NewReader(`{"analysis_id":"a"}`), 200, "status=READY")
		send(strings.NewReader(`{"analysis_id":"b"}`), 200, "status=READY")
		synctest.Wait()
		w.log.Reset()
		before := b.Calls.Total()
		busy := w.as(t, deliveryRoute, "mine")
		busy.check(t, 409, logged(`analysis_id=x, acquired=false, reason=busy, error=, Retry-After="10"`))
		if n := b.Calls.Total() - before; n != 0 {
			t.Errorf("%d calls to Firestore, want none", n)
		}
		reply{Body: w.entry(t, "delivery")}.check(t, 0, logged("outcome=busy, status=409"))
		w.as(t, deliveryRoute, "").check(t, 401, nil)
		w.as(t, "/internal/tasks/recover", "mine").check(t, 501, logged("reason=no_queue"))
		w.call(t, http.MethodGet, "/health/live", "").check(t, 200, nil)
		close(finish)
		_ = client.CloseWithError(io.ErrUnexpectedEOF)
		runs.Wait()
		w.as(t, deliveryRoute, "mine").check(t, 200, logged("status=READY"))
		soon, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if n := w.lifecycle.Drain(soon); n != 0 {
			t.Errorf("a stop waits for %d runs, want none", n)
		}
	})
}
