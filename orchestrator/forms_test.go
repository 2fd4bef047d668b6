package orchestrator_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"taskguard/orchestrator"
)

// answered returns what becomes of an endpoint's answer, and the warnings about it.
func answered(t *testing.T, status int, contentType, body string) (result any, warned []string, err error) {
	t.Helper()
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = []string{contentType}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
	var got recorder
	result, err = post(t.Context(), t, s.URL, orchestrator.Job{Reporter: &got})
	return result, got.warned, err
}

func TestLinesOfJSONHaveManyNames(t *testing.T) {
	for _, name := range []string{
		"application/x-ndjson", "application/ndjson", "application/jsonl", "application/json-lines",
		"application/x-jsonlines", "application/jsonlines", "application/x-ldjson", "text/x-ndjson", "text/jsonl",
		"application/x-json-stream", "application/stream+json", "Application/JSONL; charset=utf-8",
	} {
		for _, begin := range []string{"", "{\"progress\":0.5}\n", "\uFEFF"} {
			_, _, err := answered(t, 200, name, begin+`{"error":{"code":"no_page","permanent":true}}`)
			if permanent := (*orchestrator.PermanentError)(nil); !errors.As(err, &permanent) || permanent.Code != "no_page" {
				t.Errorf("%s, %q: got %v, want no_page", name, begin, err)
			}
			if got, warned, err := answered(t, 200, name, begin+`{"result":7}`); got != int64(7) || err != nil || warned != nil {
				t.Errorf("%s, %q: got %v, %v, %q; want 7", name, begin, got, err, warned)
			}
		}
	}
}

func TestAnAnswerThatIsProbablyNoResultIsOneWarning(t *testing.T) {
	const problem = "application/problem+json"
	for _, c := range []struct {
		status            int
		contentType, body string
		warned            string // empty: not
	}{
		{200, "", "loading\n{\"n\":1}\n", "begins like JSON"},
		{200, "", "loading\n{\n  \"n\": 1\n}\n", "begins like JSON"},
		{200, "", "loading\r\n  [{\"n\":1}]", "begins like JSON"},
		{200, "", "loading\n[1.5, -2]\n", "begins like JSON"},
		{200, "", "{\"n\":1}\ndone\n", "begins like JSON"},
		{200, "", "\uFEFF{\"n\":", "begins like JSON"},
		{200, "", "{\"progress\":1}\n{\"result\":7}\n", "begins like JSON"},
		{200, "text/event-stream", "data: {\"result\":7}\n\n", "begins like JSON"},
		{200, "application/json-seq", "\x1e{\"n\":1}\n", "begins like JSON"},
		{200, "", `{"error":{"code":"no_page","permanent":true}}`, "a report or an error"},
		{200, "application/json", ` { "error" : "no page" }`, "a report or an error"},
		{200, "", `{"progress":0.5,"checkpoint":{"done":1}}`, "a report or an error"},
		{200, problem, `{"title":"no page"}`, "a problem"},
		{202, "application/json", `{"job":7}`, "202"},
		{202, "", "", "202"},
		{200, "", "", "empty"},
		{200, "", " \n", "empty"},

		{204, "", "", ""},
		{200, "", `{"error":null,"n":1}`, ""},
		{200, "", `{"result":7}`, ""},
		{200, "", "done {\"n\":1}\n", ""},
		{200, "", "as in [2]\n\n[1] a footnote\n[2] another\n", ""},
		{200, "", "a\n12:00 [INFO] b\n", ""},
	} {
		_, warned, err := answered(t, c.status, c.contentType, c.body)
		all := strings.Join(warned, ";")
		if err != nil || len(warned) > 1 || (c.warned == "") != (len(warned) == 0) || !strings.Contains(all, c.warned) {
			t.Errorf("%d %s %q: %v, warned %q, want %q", c.status, c.contentType, c.body, err, warned, c.warned)
		}
		if strings.Contains(all, "page") || strings.Contains(all, "loading") {
			t.Errorf("the warning quotes the output: %q", all)
		}
	}
}

func TestAnErrorsBodyNamesItsCode(t *testing.T) {
	const title = `"type":"https://host/no-page","title":"No page"`
	for body, want := range map[string][2]string{ // code and message
		`{"error":{"code":"no_page","message":"page 7 is missing"}}`:       {"no_page", "page 7 is missing"},
		"\uFEFF" + `{"error":{"code":"no_page","message":"m"}}`:            {"no_page", "m"},
		`{"error":{"code":"no_page","message":"m","permanent":true}}`:      {"no_page", "m"},
		`{"error":{"code":"no page!","message":"m"}}`:                      {"", "m"},
		`{"error":{"code":404,"message":"m","status":"NOT_FOUND"}}`:        {"", "m"},
		`{"error":{"code":"no_page"}}`:                                     {"no_page", `{"error":{"code":"no_page"}}`},
		`{` + title + `,"detail":"page 7 is missing","code":"no_page"}`:    {"no_page", "page 7 is missing"},
		`{` + title + `,"code":"no_page"}`:                                 {"no_page", "No page"},
		`{` + title + `,"status":404,"detail":"page 7"}`:                   {"", "page 7"},
		`{"error":null,` + title + `,"code":"no_page"}`:                    {"no_page", "No page"},
		`{"error":"a","code":"no_page"}`:                                   {"no_page", `{"error":"a","code":"no_page"}`},
		`{"detail":"alone"}`:                                               {"", `{"detail":"alone"}`},
		`{"error":{"code":"cut","message":"` + strings.Repeat("é", 20_000): {"", `{"error":{"code":"cut","message":"` + strings.Repeat("é", 1007)},
		"no page": {"", "no page"},
		"null":    {"", "null"},
	} {
		for _, status := range []int{422, 500} {
			_, _, err := answered(t, status, "application/json", body)
			var code, message string
			var permanent *orchestrator.PermanentError
			if errors.As(err, &permanent) {
				code, message = strings.Replace(permanent.Code, orchestrator.CodeAnalyzerRejected, "", 1), permanent.Message
			}
			var failure *orchestrator.FailureError
			if errors.As(err, &failure) {
				code, message = failure.Code, failure.Message
			}
			if (permanent != nil) != (status == 422) || code != want[0] || message != want[1] {
				t.Errorf("%d %.80s: got %q, %.80q (%T); want %.80q", status, body, code, message, err, want)
			}
		}
	}
}
