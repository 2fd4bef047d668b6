package library

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// The service of docs/from-go.md guards the documents that it had before, and those of its own route. The
// tasks that the queue has already are read as before.
func TestTheServiceOfBeforeIsGuarded(t *testing.T) {
	c := newCloud(t)
	port := freePort(t)
	s := start(t, build(t, "after"), port)
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
	s.stop(t)
}
