package library

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// The service of docs/from-go.md guards the documents that it had before, and those of its own route. The
// tasks that the queue has already are read as before.
func TestAfter(t *testing.T) {
	c := newCloud(t)
	port, program := freePort(t), build(t, "after")
	s := start(t, program, port)
	post := func(path, body string) (status int, answer string) {
		t.Helper()
		resp := must(http.Post("http://127.0.0.1:"+port+path, "application/json", strings.NewReader(body)))(t)
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // it is read
		return resp.StatusCode, string(text)
	}

	if status, answer := post("/reports/new", `{"pages": 4}`); status != http.StatusAccepted {
		t.Errorf("POST /reports/new is answered %d %s", status, answer)
	}
	if doc := c.await(t, "reports/new", "state", "done"); doc["result"] != int64(10) {
		t.Errorf("the document is %v", doc)
	}

	old := map[string]any{"state": "queued", "input": map[string]any{"pages": 3}}
	must(c.documents.Doc("reports/old").Set(t.Context(), old))(t)
	if status, answer := post("/tasks/report", `{"id": "old"}`); status != http.StatusOK {
		t.Errorf("the task is answered %d %s", status, answer)
	}
	if doc := c.document(t, "reports/old"); doc["state"] != "done" || doc["result"] != int64(6) {
		t.Errorf("the document is %v", doc)
	}
	for path, want := range map[string]int{
		"/reports/new":     http.StatusConflict, // it has four pages
		"/reports/__bad__": http.StatusBadRequest,
	} {
		if status, answer := post(path, `{"pages": 5}`); status != want {
			t.Errorf("POST %s is answered %d %s, want %d", path, status, answer, want)
		}
	}
	s.stop(t)
	for line := range strings.Lines(s.log.String()) {
		var entry struct{ Severity, Message string }
		if check(t, json.Unmarshal([]byte(line), &entry)); entry.Severity == "" || entry.Message == "" {
			t.Errorf("the line %q has no severity or no message", line)
		}
	}
	if !strings.Contains(s.log.String(), `"message":"listening","port":"`+port+`"`) {
		t.Errorf("the log does not say that it listens:\n%s", &s.log)
	}

	t.Setenv("TASK_QUEUE", "projects/my-project/locations/here/queues/none")
	s = start(t, program, port)
	if status, answer := post("/reports/later", `{"pages": 1}`); status != http.StatusServiceUnavailable {
		t.Errorf("without its queue, POST /reports/later is answered %d %s", status, answer)
	}
	s.stop(t)
}
