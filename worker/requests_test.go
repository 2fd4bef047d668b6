package worker

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"taskguard/internal/testing/emulatortest"
)

// parsed returns what parse reads from a request, "task, tries, id", and "refused" for an error.
func parsed(parse parser, r *http.Request) string {
	d, err := parse(httptest.NewRecorder(), r, "job_id")
	text := fmt.Sprintf("%s, %d, %s", d.Task, d.Tries, d.AnalysisID)
	if err != nil {
		text += "refused"
	}
	return text
}

func TestParseTask(t *testing.T) {
	for body, want := range map[string]string{
		`{"more":[1],"job_id":"x"}`:  "t, 3, x",
		``:                           "t, 3, refused",
		`null`:                       "t, 3, refused",
		`job_id=x`:                   "t, 3, refused",
		`[1]`:                        "t, 3, refused",
		`{"job_id":"x"}{}`:           "t, 3, refused",
		`{"id":"x"}`:                 "t, 3, refused",
		`{"JOB_ID":"x"}`:             "t, 3, refused",
		`{"job_id":null}`:            "t, 3, refused",
		`{"job_id":5}`:               "t, 3, refused",
		"{\"job_id\":\"\xff\"}":      "t, 3, refused", // no UTF-8
		strings.Repeat(" ", 1<<20+1): "t, 3, refused",
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("X-CloudTasks-TaskName", "t")
		r.Header.Set("X-CloudTasks-TaskRetryCount", "2")
		if got := parsed(parseTask, r); got != want {
			t.Errorf("%.50s: %s, want %s", body, got, want)
		}
	}
}

func TestParseMessage(t *testing.T) {
	const base64 = `"data":"eyJqb2JfaWQiOiJ4In0="` // {"job_id":"x"}
	for body, want := range map[string]string{
		`{"message":{"attributes":{"job_id":"x","o":null},"messageId":"7"}}`:       "7, 0, x",
		`{"message":{"attributes":{"job_id":"x"},"data":"eA==","messageId":"7"}}`:  "7, 0, x", // the data is no JSON
		`{"message":{` + base64 + `,"messageId":"7"},"deliveryAttempt":9}`:         "7, 9, x",
		`{"message":{` + base64 + `,"messageId":"7"},"deliveryAttempt":-9}`:        "7, 0, x",
		`{"message":{"data":"e30=","messageId":"7"}}`:                              "7, 0, refused", // {}
		`{"message":{"data":"eA==","messageId":"7"}}`:                              "7, 0, refused", // no JSON
		`{"message":{"data":"-","messageId":"7"}}`:                                 "7, 0, refused", // no base64
		"{\"message\":{\"attributes\":{\"job_id\":\"\xff\"},\"messageId\":\"7\"}}": "7, 0, refused", // no UTF-8
		`{"message":{"attributes":{"job_id":"x"}}}`:                                ", 0, refused",
		`{"job_id":"x"}`:             ", 0, refused",
		strings.Repeat(" ", 1<<20+1): "unknown, 0, refused",
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
		if got := parsed(parseMessage, r); got != want {
			t.Errorf("%.80s: %s, want %s", body, got, want)
		}
	}
}

// Event returns a request of Eventarc, for the creation of a document. Its body is protobuf. headers replace others.
func Event(t *testing.T, document string, headers ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/events", strings.NewReader("\n\xc3\x03\n\x54"))
	for _, header := range append([]string{
		"ce-id: 3f0c-1", "ce-type: " + created, "ce-database: (default)", "ce-document: " + document,
	}, headers...) {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	return r
}

func TestParseEvent(t *testing.T) {
	for _, tc := range []struct{ document, header, want string }{
		{"jobs/x", "ce-time: 2026-01-01T00:00:00Z", "3f0c-1, 0, x"},
		{"jobs/a%2Fb", "ce-project: p", "3f0c-1, 0, a%2Fb"},
		{"jobs/a b", "ce-type: " + created + ".withAuthContext", "3f0c-1, 0, a b"},
		{"jobs/x", "ce-type: google.cloud.firestore.document.v1.written", "3f0c-1, 0, refused"},
		{"jobs/x", "ce-type: " + created + ".other", "3f0c-1, 0, refused"},
		{"jobs/x", "ce-database: other", "3f0c-1, 0, refused"},
		{"jobs/x", "ce-project: other", "3f0c-1, 0, refused"},
		{"jobs/x", "ce-id: ", ", 0, refused"},
		{"works/x", "ce-project: p", "3f0c-1, 0, refused"},
		{"jobsx/x", "ce-project: p", "3f0c-1, 0, refused"},
		{"tenants/a/jobs/x", "ce-project: p", "3f0c-1, 0, refused"},
		{"", "ce-project: p", "3f0c-1, 0, refused"},
	} {
		if got := parsed(parseEvent("p", "(default)", "jobs"), Event(t, tc.document, tc.header)); got != tc.want {
			t.Errorf("%s, %s: %s, want %s", tc.document, tc.header, got, tc.want)
		}
	}
}

// A request that has no delivery costs no call to Firestore. Its task is rejected, unless another try may arrive whole.
func TestDelivery_Unread(t *testing.T) {
	b := emulatortest.Embedded(t)
	w := start(t, b, succeed)
	cut := io.MultiReader(strings.NewReader(`{"analysis_id":"x"}`), iotest.ErrReader(errors.New("connection reset")))
	for _, tc := range []struct {
		body       io.Reader
		task, want string
		code       int
	}{
		{body: strings.NewReader("{}"), code: 400, want: "reason=bad_request, rejected=, error=*"},
		{body: strings.NewReader("{}"), code: 200, want: "reason=bad_request, rejected=true", task: "t"},
		{body: strings.NewReader(`{"analysis_id":"a/b"}`), code: 400, want: "reason=bad_request, rejected=, error=*"},
		{body: strings.NewReader(strings.Repeat(" ", 2<<20)), code: 413, want: "reason=too_large, rejected="},
		{body: cut, code: 400, want: "reason=bad_request, rejected=, error=the body did not arrive in full", task: "t"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, deliveryRoute, tc.body)
		r.Header.Set("X-CloudTasks-TaskName", tc.task)
		w.send(t, r).check(t, tc.code, logged(tc.want))
	}
	if n := b.Calls.Total(); n > 0 {
		t.Errorf("%d calls to Firestore", n)
	}
}
