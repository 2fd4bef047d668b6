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

// Its task is not rejected: the body of another try may arrive.
func TestABodyThatBreaksOffIsABadRequest(t *testing.T) {
	w := start(t, emulatortest.Embedded(t), succeed)
	cut := io.MultiReader(strings.NewReader(`{"analysis_id":"x"}`), iotest.ErrReader(errors.New("connection reset")))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/internal/tasks/analysis", cut)
	r.Header.Set("X-CloudTasks-TaskName", "task")
	w.send(t, r).check(t, 400, map[string]any{"reason": "bad_request", "error": "the body did not arrive in full", "rejected": nil})
}
