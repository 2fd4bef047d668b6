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
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Each answer is JSON of the contract, and only an id that Firestore can hold reaches the lock.
func FuzzRequest(f *testing.F) {
	for _, body := range []string{
		`{"analysis_id":"x"}`, `{"analysis_id":"missing","more":[1,{"a":null}]}`, ``, `null`, `[]`, `{"analysis_id":null}`, `{"analysis_id":7}`,
		`{"analysis_id":"a/b"}`, `{"analysis_id":".."}`, `{"analysis_id":"__x__"}`, `{"analysis_id":"\ud800"}`, `{"analysis_id":"\u0000"}`,
		`{"ANALYSIS_ID":"x"}`, `{"analysis_id":"x","analysis_id":"y"}`, "\xff", `{"analysis_id":"` + strings.Repeat("é", 751) + `"}`, `{"analysis_id":"x"} {}`,
	} {
		f.Add(body, "task")
	}
	f.Fuzz(func(t *testing.T, body, task string) {
		store := &lease.Memory[analysislock.Analysis]{}
		store.Put("x", analysislock.Analysis{ID: "x", Status: analysislock.Queued})
		locks, err := analysislock.New(store, lease.Policy{}, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := serverOf(t.Context(), &delivery.Runner{
			Locks: locks, Instance: "f", RunTimeout: 1e9, Log: slog.New(slog.DiscardHandler),
		}, CheckedByProxy(), succeed)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/internal/tasks/analysis", strings.NewReader(body))
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
		valid := a.AnalysisID != "" && analysislock.CheckID(a.AnalysisID) == nil
		if body == `{"analysis_id":"x"}` && rec.Code != 200 {
			t.Errorf("a good request answered %d %s", rec.Code, rec.Body)
		}
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
		`{"message":{"attributes":{"analysis_id":"x"},"messageId":"7"}}`, `{"message":{"data":"eyJhbmFseXNpc19pZCI6IngifQ==","messageId":"7"},"deliveryAttempt":6}`,
		`{"message":{"attributes":{"analysis_id":7},"data":"-","messageId":"7"}}`, `{"message":{"data":"fQ=="},"message":{"messageId":"7"}}`, `{"message":{"messageId":"a b"}}`,
		`{"message":null}`, `{"message":[]}`, `{}`, `null`, ``, "\xff", `{"message":{"data":null,"messageId":7}}`, `{"message":{"messageId":"7"},"deliveryAttempt":-1e9}`,
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
		d, err := parseMessage(httptest.NewRecorder(), r, taskqueue.DefaultIDField)
		if taken := d.AnalysisID != ""; d.Tries < 0 || taken && (err != nil || d.Task == "" || !json.Valid([]byte(body)) || !utf8.ValidString(d.AnalysisID)) {
			t.Errorf("%q: %+v, %v", body, d, err)
		}
	})
}
