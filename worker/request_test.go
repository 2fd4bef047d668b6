package worker

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"taskguard/internal/testing/emulatortest"
)

// Its task is not rejected: the body of another try may arrive.
func TestABodyThatBreaksOffIsABadRequest(t *testing.T) {
	w := start(t, emulatortest.Embedded(t), succeed)
	cut := io.MultiReader(strings.NewReader(`{"analysis_id":"x"}`), iotest.ErrReader(errors.New("connection reset")))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/internal/tasks/analysis", cut)
	r.Header.Set("X-CloudTasks-TaskName", "task")
	w.send(t, r).check(t, 400, map[string]any{"reason": "bad_request", "error": "the body did not arrive in full", "rejected": nil})
}

// disconnected is a caller that has disconnected.
type disconnected struct{ http.ResponseWriter }

func (disconnected) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestAnAnswerThatCouldNotBeSentIsLogged(t *testing.T) {
	w := start(t, emulatortest.Embedded(t), succeed)
	w.call(t, http.MethodGet, "/nothing", "")
	if w.log.Len() > 0 {
		t.Errorf("one that was sent is logged: %s", w.log)
	}
	w.ServeHTTP(disconnected{httptest.NewRecorder()}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/nothing", http.NoBody))
	if got := w.log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"level":"WARN","msg":"answer not sent","error":"broken pipe"`) {
		t.Errorf("log: %s", got)
	}
}

// Any client can set the header.
func TestATasksNameIsLoggedWhereItCanBeOne(t *testing.T) {
	w := start(t, emulatortest.Embedded(t), succeed)
	for name, logged := range map[string]bool{
		"azAZ09-_": true, strings.Repeat("a", 500): true, strings.Repeat("a", 501): false,
		"a`": false, "a{": false, "a@": false, "a[": false, "a/": false, "a:": false, "a b": false, "é": false,
	} {
		w.log.Reset()
		w.asTask(t, name)
		if got := strings.Contains(w.log.String(), `"task":"`+name+`"`); got != logged {
			t.Errorf("%.10q is logged: %t, want %t: %s", name, got, logged, w.log)
		}
		if !logged && strings.Contains(w.log.String(), `"task"`) {
			t.Errorf("%.10q: something of it is logged: %s", name, w.log)
		}
	}
}
