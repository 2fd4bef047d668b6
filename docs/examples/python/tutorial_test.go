package python

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
	"taskguard/orchestrator"
)

// noting runs pages.py, and notes the process of the worker.
const noting = `#!/bin/sh
echo $PPID > "$0.worker"
exec python3 pages.py
`

// A kill of the worker, as the reader of docs/tutorial.md sends it, costs an attempt and no page.
func TestTutorial_Kill(t *testing.T) {
	t.Parallel()
	examplestest.Find(t, "PYTHON", "python3")
	script := filepath.Join(t.TempDir(), "noting")
	must.OK(t, os.WriteFile(script, []byte(noting), 0o700))
	env := examplestest.Start(t, "local", "LOCK_TTL=3s", "CHECKPOINT_INTERVAL=1s", "ANALYZER=exec:"+script)
	taskguard := func(arguments ...string) []byte {
		c := exec.CommandContext(t.Context(), examplestest.Build(t, "taskguard/cmd/taskguard"), arguments...)
		c.Env, c.Stderr = env, t.Output()
		return must.Get(c.Output())(t)
	}

	taskguard("submit", "--id", "book", "--input", `{"pages": 6}`)
	for !bytes.Contains(taskguard("status", "--json", "book"), []byte(`"checkpoint"`)) {
		time.Sleep(100 * time.Millisecond)
	}
	worker := strings.TrimSpace(string(must.Get(os.ReadFile(script + ".worker"))(t)))
	must.OK(t, syscall.Kill(must.Get(strconv.Atoi(worker))(t), syscall.SIGKILL))
	out := taskguard("submit", "--json", "--wait", "--id", "book", "--input", `{"pages": 6}`)
	var got struct {
		Result struct {
			Done   int
			ReadBy string `json:"read_by"`
		}
	}
	must.OK(t, json.Unmarshal(out, &got))
	byBoth := regexp.MustCompile(`^1+2+$`).MatchString(got.Result.ReadBy) && len(got.Result.ReadBy) == 6
	if got.Result.Done != 6 || !byBoth {
		t.Errorf("%s, want 6 pages, the first of them read by attempt 1 and the rest by attempt 2", out)
	}
}

func TestTutorial_FirstAnalyzer(t *testing.T) {
	count := "exec:" + examplestest.Find(t, "PYTHON", "python3")[0] + " count.py"
	job := orchestrator.Job{Input: json.RawMessage(`{"text": "the lamp and the moon"}`)}
	result, err := examplestest.Ask(t, count, job)
	words, _ := result.(map[string]any)
	if err != nil || words["words"] != int64(5) {
		t.Errorf("got %v, %v, want 5 words", result, err)
	}

	job.Input = json.RawMessage(`{"title": "no text"}`)
	_, err = examplestest.Ask(t, count, job)
	rejected, ok := errors.AsType[*orchestrator.PermanentError](err)
	if !ok || rejected.Message != "the input has no text" {
		t.Errorf("got %v, want it rejected with the message of the program", err)
	}
}
