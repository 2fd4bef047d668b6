package python

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
	"taskguard/orchestrator"
)

// submitTwice prints what submit gets when the same PDF is submitted twice, here without a queue.
const submitTwice = `
import json, taskguard
taskguard.submit = lambda id, input: print(json.dumps(input))
import upload
upload.submit_pdf(b"one\fthree"), upload.submit_pdf(b"one\fthree")
`

// A run that is superseded writes its result late, and harms none: docs/large-files.md.
func TestLargeResult(t *testing.T) {
	bucket, python := t.TempDir(), examplestest.Find(t, "PYTHON", "python3")[0]
	t.Setenv("BUCKET", bucket)
	t.Setenv("PYTHONPATH", "testdata/storage:../../../clients/python")
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	inputs := must.Get(exec.CommandContext(t.Context(), python, "-c", submitTwice).Output())(t)
	first, second, _ := strings.Cut(strings.TrimSpace(string(inputs)), "\n")
	if first != second || !strings.Contains(first, `"generation": 1`) {
		t.Errorf("the inputs are %s and %s, want the same object", first, second)
	}

	// Somebody overwrites the input: it is not what was submitted.
	var input struct{ PDF string }
	must.OK(t, json.Unmarshal([]byte(first), &input))
	must.OK(t, os.WriteFile(filepath.Join(bucket, input.PDF, "2"), []byte("another"), 0o600))

	details := map[int64]string{}
	for _, token := range []int64{8, 7} { // the older run ends last
		job := orchestrator.Job{AnalysisID: "a", LockToken: token, Input: json.RawMessage(first)}
		result, err := examplestest.Ask(t, "exec:"+python+" large.py", job,
			"BUCKET", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
		fields, _ := result.(map[string]any)
		if err != nil || fields["pages"] != int64(2) {
			t.Fatalf("got %v, %v, want 2 pages", result, err)
		}
		details[token], _ = fields["details"].(string)
	}
	if details[7] == details[8] || !strings.HasSuffix(details[8], "/results/a/8.json") {
		t.Errorf("the results are %v, want one object for each token", details)
	}
	written, err := os.ReadDir(filepath.Join(bucket, "results", "a", "8.json"))
	if err != nil || len(written) != 1 {
		t.Errorf("the result of token 8 was written %d times, %v, want once", len(written), err)
	}
}
