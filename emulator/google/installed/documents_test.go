package installed

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

func document(host, project string) string {
	return "http://" + host + "/v1/projects/" + project + "/databases/(default)/documents/notes/one"
}

func write(t *testing.T, doc, text string) (status int) {
	t.Helper()
	body := fmt.Sprintf(`{"fields":{"text":{"stringValue":%q}}}`, text)
	status, _ = do(t, http.MethodPatch, doc, body)
	return status
}

// read returns the document's text, "" if there is no such document.
func read(t *testing.T, doc string) string {
	t.Helper()
	status, body := do(t, http.MethodGet, doc, "")
	if status == http.StatusNotFound {
		return ""
	}
	var d struct {
		Fields map[string]struct{ StringValue string }
	}
	if err := json.Unmarshal(body, &d); err != nil || status != http.StatusOK {
		t.Fatalf("reading a document: status %d, %v", status, err)
	}
	return d.Fields["text"].StringValue
}

func do(t *testing.T, method, url, body string) (status int, answer []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer
}
