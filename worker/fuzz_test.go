package worker

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/lease/analysislock"
)

// Each answer is JSON of the contract, and only an id that Firestore can hold reaches the lock.
func FuzzRequest(f *testing.F) {
	for _, body := range []string{
		`{"analysis_id":"x"}`, `{"analysis_id":"missing","more":[1,{"a":null}]}`, ``, `{"analysis_id":7}`, "\xff",
		`{"analysis_id":"a/b"}`, `{"analysis_id":"\ud800"}`, `{"analysis_id":"\u0000"}`, `{"analysis_id":"x"} {}`,
		`{"analysis_id":"x","analysis_id":"y"}`, `{"analysis_id":"` + strings.Repeat("é", 751) + `"}`,
	} {
		f.Add(body, "task")
	}
	f.Fuzz(func(t *testing.T, body, task string) {
		s := serverOf(t.Context(), &delivery.Runner{
			Locks: (&memory{}).locks(t, nil), Instance: "f", RunTimeout: 1e9, Log: slog.New(slog.DiscardHandler),
		}, CheckedByProxy(), succeed)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, deliveryRoute, strings.NewReader(body))
		r.Header["X-Cloudtasks-Taskname"] = []string{task}
		rec := httptest.NewRecorder()
		s.ServeHTTP(rec, r)
		var a struct {
			AnalysisID string `json:"analysis_id"`
			answer
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &a); err != nil || !utf8.Valid(rec.Body.Bytes()) {
			t.Fatalf("%d %q: %v", rec.Code, rec.Body, err)
		}
		if body == `{"analysis_id":"x"}` && rec.Code != 200 {
			t.Errorf("a good request answered %d %s", rec.Code, rec.Body)
		}
		valid := a.AnalysisID != "" && analysislock.CheckID(a.AnalysisID) == nil
		switch {
		case rec.Code == 200 && a.AnalysisID == "x" && a.Status == "READY":
		case rec.Code == 404 && a.Reason == "not_found" && valid:
		case (rec.Code == 400 || rec.Code == 200 && a.Rejected) && a.Reason == "bad_request" && a.Error != "":
		default:
			t.Errorf("%q answered %d %s", body, rec.Code, rec.Body)
		}
	})
}

// An id is read only from JSON with a message's id.
func FuzzMessage(f *testing.F) {
	for _, body := range []string{
		`{"message":{"attributes":{"analysis_id":"x"},"messageId":"7"}}`, `{"message":null}`, `null`, ``, "\xff",
		`{"message":{"messageId":"7"},"deliveryAttempt":-1e9}`, `{"message":{"data":"-","messageId":7}}`,
		`{"message":{"data":"eyJhbmFseXNpc19pZCI6IngifQ=="},"message":{"messageId":"7"}}`,
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
		d, err := parseMessage(httptest.NewRecorder(), r, taskqueue.DefaultIDField)
		if d.Tries < 0 {
			t.Errorf("%q: %d tries", body, d.Tries)
		}
		if d.AnalysisID == "" {
			return
		}
		if err != nil || d.Task == "" {
			t.Errorf("%q: %+v, %v", body, d, err)
		}
		if !json.Valid([]byte(body)) || !utf8.ValidString(d.AnalysisID) {
			t.Errorf("%q: %+v", body, d)
		}
	})
}
