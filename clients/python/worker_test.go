package python

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
)

// submit runs taskguard.submit in Python without Google's clients, and returns the last line that it prints.
func submit(t *testing.T, env []string, id, input string) string {
	t.Helper()
	return submitWith(t, "sys.modules['grpc'] = None", env, id, input)
}

func submitWith(t *testing.T, first string, env []string, id, input string) string {
	t.Helper()
	script := "import json, sys; " + first + "\nimport taskguard\n" +
		"print(taskguard.submit(sys.argv[1], json.loads(sys.argv[2])))"
	cmd := python(t, "-c", script, id, input)
	cmd.Env = append(cmd.Env, env...)
	out, _ := cmd.CombinedOutput() // of an error it ends with the exception
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// client returns Google's client for the emulator of env.
func client(t *testing.T, env []string) *firestore.Client {
	t.Helper()
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		if name == "FIRESTORE_EMULATOR_HOST" || name == "GOOGLE_CLOUD_PROJECT" {
			t.Setenv(name, value)
		}
	}
	c := must.Get(firestore.NewClient(t.Context(), os.Getenv("GOOGLE_CLOUD_PROJECT")))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// finished waits until an analysis is READY or FAILED, and returns its fields.
func finished(t *testing.T, c *firestore.Client, id string) map[string]any {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		fields := document(t, c, id)
		if status := fields["status"]; status == "READY" || status == "FAILED" {
			return fields
		}
		if time.Now().After(end) {
			t.Fatalf("%s is not finished: %v", id, fields)
		}
	}
}

// A program whose worker is killed continues after its checkpoint, and charges once, also if the kill comes
// between the charge and its record.
func TestProgram_Killed(t *testing.T) {
	path := examplestest.Find(t, "PYTHON", "python3")[0]
	package_ := must.Get(filepath.Abs("."))(t)
	env := examplestest.Start(t, "local", "ANALYZER=exec:"+path+" tests/kill.py", "ANALYZER_OUTPUT=json",
		"ANALYZER_ENV=PYTHONPATH,PYTHONDONTWRITEBYTECODE", "PYTHONPATH="+package_, "PYTHONDONTWRITEBYTECODE=1",
		"LOCK_TTL=3s", "CHECKPOINT_INTERVAL=1s")
	rest := examplestest.REST(t, env)

	for id, tc := range map[string]struct {
		pages []string
		words int64
	}{
		"at-a-page":        {[]string{"one", "two words", "kill", "and three words"}, 7},
		"after-the-charge": {[]string{"one", "two words"}, 3},
	} {
		ledger := filepath.Join(t.TempDir(), "ledger")
		input, _ := json.Marshal(map[string]any{"pages": tc.pages, "ledger": ledger})
		if got := submit(t, rest, id, string(input)); !strings.Contains(got, "enqueued=True") {
			t.Fatalf("%s: %s", id, got)
		}
		fields := finished(t, client(t, env), id)
		want := map[string]any{"words": tc.words, "bill": map[string]any{"charged": tc.words}}
		if fields["status"] != "READY" || !reflect.DeepEqual(fields["result"], want) {
			t.Errorf("%s: %v, %v, %v; want %v", id, fields["status"], fields["result"], fields["error"], want)
		}
		charges, err := os.ReadFile(ledger)
		if err != nil || strings.Count(string(charges), "\n") != 1 {
			t.Errorf("%s: the ledger has %q, %v; want one charge", id, charges, err)
		}
		if outcomes := outcomes(fields); !slices.Contains(outcomes, "crashed") {
			t.Errorf("%s: no attempt has crashed: %q", id, outcomes)
		}
	}
}

// outcomes returns the outcome of each attempt.
func outcomes(fields map[string]any) (all []string) {
	for _, attempt := range fields["history"].([]any) {
		all = append(all, attempt.(map[string]any)["outcome"].(string))
	}
	return all
}

// An endpoint that asks for a side effect is called again in the same attempt, with its checkpoint.
func TestEndpoint_SideEffect(t *testing.T) {
	service := python(t, "examples/service.py", "0")
	out := must.Get(service.StdoutPipe())(t)
	must.OK(t, service.Start())
	defer func() { _, _ = service.Process.Kill(), service.Wait() }()
	port, _ := bufio.NewReader(out).ReadString('\n')
	address := "http://localhost:" + strings.TrimSpace(port) + "/analyze"
	env := examplestest.Start(t, "local", "ANALYZER="+address, "ANALYZER_OUTPUT=json")
	rest, c := examplestest.REST(t, env), client(t, env)

	outbox := filepath.Join(t.TempDir(), "outbox")
	input, _ := json.Marshal(map[string]any{"text": "good day", "outbox": outbox})
	submit(t, rest, "counted", string(input))
	fields := finished(t, c, "counted")
	if !reflect.DeepEqual(fields["result"], map[string]any{"words": int64(2)}) || fields["attempts"] != int64(1) {
		t.Errorf("%v, %v after %v attempts", fields["result"], fields["error"], fields["attempts"])
	}
	if outcomes := outcomes(fields); !slices.Equal(outcomes, []string{"ready"}) {
		t.Errorf("the attempts were %q", outcomes)
	}
	effects, _ := fields["effects"].(map[string]any)
	if mail, _ := effects["mail"].(map[string]any); mail["state"] != "done" {
		t.Errorf("the side effects are %v", effects)
	}
	if mails, err := os.ReadFile(outbox); err != nil || !regexp.MustCompile(`^[0-9a-f]{32} 2 words\n$`).Match(mails) {
		t.Errorf("the outbox has %q, %v", mails, err)
	}

	submit(t, rest, "refused", `{}`)
	want := map[string]any{"code": "no_text", "message": "the input has no text"}
	if fields := finished(t, c, "refused"); !reflect.DeepEqual(fields["error"], want) {
		t.Errorf("%v, %v; want %v", fields["result"], fields["error"], want)
	}
}
