package main

import (
	"encoding/json"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"taskguard/emulator/emulatortest"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// without is env without some of its variables.
func without(env vars, names ...string) vars {
	env = maps.Clone(env)
	for _, name := range names {
		delete(env, name)
	}
	return env
}

// noQueueNamed is env without the queue.
func noQueueNamed(env vars) vars {
	return without(env, "TASK_QUEUE", "TASK_TARGET_URL", "CLOUD_TASKS_EMULATOR_HOST")
}

var submittedKeys = []string{"id", "name", "created", "booked", "status"}

func TestSubmitFollowsAnalysesToTheirEndAndIsIdempotent(t *testing.T) {
	env := cloud(t, vars{})
	text, binary := write(t, "some text.md", "one two\ntwo\n"), write(t, "data.bin", "\xff\x00")
	o := taskguard(t, env, "submit", text, "--json", "--wait", binary).want(t, exitDone)
	lines := strings.Split(strings.TrimSpace(o.out), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines, want 2: %s", len(lines), o.out)
	}
	for _, line := range lines {
		got := wantKeys(t, line, append(submittedKeys, "result")...)
		if got["created"] != true || got["booked"] != "now" || got["status"] != "READY" {
			t.Errorf("%s, want created, booked now, READY", line)
		}
	}
	if !strings.Contains(o.out, "some-text-md-") || !strings.Contains(o.out, `"words":3`) || !strings.Contains(o.out, `"bytes":2`) {
		t.Errorf("%s lacks an id or a result", o.out)
	}
	again := taskguard(t, env, "submit", text, "--json").want(t, exitDone)
	if got := wantKeys(t, again.out, submittedKeys...); got["created"] != false || got["booked"] != "not_needed" || got["status"] != "READY" {
		t.Errorf("submitted again: %s", again.out)
	}
	taskguard(t, env, "submit", text).want(t, exitDone, "exists already and keeps its input, READY; finished, no delivery needed")
	taskguard(t, env, "submit", "--wait", text).want(t, exitDone, "READY 2 lines")
	if err := os.WriteFile(text, []byte("other content"), 0o600); err != nil {
		t.Fatal(err)
	}
	taskguard(t, env, "submit", text).want(t, exitDone, "created; delivery booked")
}

func TestSubmitOfAnAnalysisThatFailsExits1(t *testing.T) {
	env := cloud(t, vars{})
	o := taskguard(t, env, "submit", "--input", `{"neither":1}`, "--id", "x", "--wait", "--json").want(t, exitFailed, "1 of 1 FAILED")
	got := wantKeys(t, o.out, append(submittedKeys, "error")...)
	if failure, _ := got["error"].(map[string]any); got["status"] != "FAILED" || failure["code"] != "invalid_input" {
		t.Errorf("%s, want FAILED with invalid_input", o.out)
	}
	taskguard(t, env, "submit", "--input", `{"neither":1}`, "--id", "x", "--wait").want(t, exitFailed, "FAILED invalid_input: ", "1 of 1 FAILED")
}

// What was created but never booked, as by a crash in between, is booked by
// submitting it again.
func TestSubmitBooksWhatExistsUnfinished(t *testing.T) {
	env := cloud(t, vars{})
	a := analyses(t, env)
	if err := a.Create(t.Context(), "x", map[string]any{"text": "x"}); err != nil {
		t.Fatal(err)
	}
	taskguard(t, env, "submit", "--input", `{"text":"x"}`, "--id", "x", "--wait", "--json").
		want(t, exitDone, `"created":false,"booked":"now","status":"READY"`)
}

// A submit that died between creation and booking is repaired by the next one,
// and no other submit books; what is created anew is booked anew.
func TestSubmitBooksOneDeliveryForEachCreation(t *testing.T) {
	env, e := shelf(t)
	submit := func(want string) {
		t.Helper()
		taskguard(t, env, "submit", "--input", `{"text":"x"}`, "--id", "x", "--json").want(t, exitDone, want)
	}
	submit(`"created":true,"booked":"now","status":"QUEUED"`)
	submit(`"created":false,"booked":"already","status":"QUEUED"`)
	taskguard(t, env, "submit", "--input", `{"text":"x"}`, "--id", "x").
		want(t, exitDone, "x: exists already and keeps its input, QUEUED; its delivery was booked before")
	if n := len(e.list(t)); n != 1 {
		t.Errorf("%d tasks, want 1", n)
	}
	put(t, env, "x", map[string]any{"status": "QUEUED", "createdAt": "2020-01-01T00:00:00.000Z"}) // another creation, not booked
	submit(`"created":false,"booked":"now","status":"QUEUED"`)
	if n := len(e.list(t)); n != 2 {
		t.Errorf("%d tasks, want 2", n)
	}
}

// The cause of a failure stands at the end of its message.
func TestSubmitShowsTheEndOfALongMessage(t *testing.T) {
	var said string
	s := &submitted{ID: "x"}
	why := &analysislock.Error{Code: "analyzer_failed", Message: "python ended with exit status 1: Traceback" + strings.Repeat(" frame", 100) + "\nKeyError: 'text'"}
	if err := s.see(analysislock.Analysis{Status: analysislock.Queued, Attempts: 1, LastError: why}, func(text string) { said = text }); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said, "analyzer_failed: python ended with exit") || !strings.HasSuffix(said, "KeyError: 'text'") || len(said) > 300 {
		t.Errorf("%q", said)
	}
}

// Each attempt is told, and why the one before it failed.
func TestSubmitTellsWhyAnAttemptFailedForNow(t *testing.T) {
	var said []string
	s := &submitted{ID: "x", said: "QUEUED"}
	why := &analysislock.Error{Code: "analyzer_failed", Message: "exit status 1\nTraceback" + strings.Repeat("x", 100)}
	for _, a := range []analysislock.Analysis{
		{Status: analysislock.Queued}, {Status: analysislock.Processing, Attempts: 1}, {Status: analysislock.Processing, Attempts: 1},
		{Status: analysislock.Queued, Attempts: 1, LastError: why}, {Status: analysislock.Processing, Attempts: 2, LastError: why}, {Status: analysislock.Ready, Result: int64(3)},
	} {
		if err := s.see(a, func(text string) { said = append(said, text) }); err != nil {
			t.Fatal(err)
		}
	}
	failed := "; the last failed for now: analyzer_failed: " + squeeze(why.Message, 100)
	if want := []string{"PROCESSING, attempt 1", "QUEUED, attempt 1" + failed, "PROCESSING, attempt 2" + failed, "READY 3"}; !slices.Equal(said, want) {
		t.Errorf("%q, want %q", said, want)
	}
}

func TestStatusShowsWhoHoldsALockAndNoToken(t *testing.T) {
	env := store(t)
	a := analyses(t, env)
	acq := locked(t, a, "held")
	if err := a.Create(t.Context(), "free", map[string]any{"text": "x"}); err != nil {
		t.Fatal(err)
	}
	o := taskguard(t, env, "status", "held", "--json").want(t, exitDone)
	got := wantKeys(t, o.out, "id", "status", "attempts", "created_at", "updated_at", "lock", "input")
	lock, err := json.Marshal(got["lock"])
	if err != nil {
		t.Fatal(err)
	}
	held := wantKeys(t, string(lock), "held", "owner", "expires_at")
	if held["held"] != true || held["owner"] != acq.Grant.Owner || got["status"] != "PROCESSING" {
		t.Errorf("%s, want PROCESSING, held by %s", o.out, acq.Grant.Owner)
	}
	list := taskguard(t, env, "status", "--json").want(t, exitDone)
	lines := strings.Split(strings.TrimSpace(list.out), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines, want 2: %s", len(lines), list.out)
	}
	wantKeys(t, lines[0], "id", "status", "attempts", "created_at", "updated_at", "lock")
	taskguard(t, env, "status").want(t, exitDone, "held by w/1, ", "free", "QUEUED")
	taskguard(t, env, "status", "--limit", "1").want(t, exitDone, "the first 1; --limit shows more")
	taskguard(t, env, "status", "held").want(t, exitDone, "lock      held by w/1")
	taskguard(t, env, "status", "missing").want(t, exitFailed, `no analysis "missing" in collection analyses of project demo-test`)
}

var changedKeys = []string{"id", "was", "status", "lock_was", "delivery"}

func TestUnlockTakesTheLockAndBooksADelivery(t *testing.T) {
	env := cloud(t, vars{})
	a := analyses(t, env)
	locked(t, a, "x")
	o := taskguard(t, env, "unlock", "x", "--json").want(t, exitDone, "command=unlock", "analysis_id=x", "lock_owner=w/1", "by=")
	got := wantKeys(t, o.out, changedKeys...)
	if got["was"] != "PROCESSING" || got["status"] != "QUEUED" || got["delivery"] != "booked" {
		t.Errorf("%s, want PROCESSING, QUEUED, booked", o.out)
	}
	eventually(t, "READY, by the delivery", func() bool {
		d, err := a.Get(t.Context(), "x")
		return err == nil && d.Status == analysislock.Ready && d.Lock.Token == 2
	})
	taskguard(t, env, "unlock", "x").want(t, exitDone, "x is READY; it is finished and needs no delivery", "status_was=READY", "nobody held it")
	taskguard(t, env, "unlock", "missing").want(t, exitFailed, `no analysis "missing"`)
}

func TestUnlockWithoutAQueueChangesTheDocumentAndSaysThatNothingIsBooked(t *testing.T) {
	env := store(t)
	a := analyses(t, env)
	locked(t, a, "x")
	o := taskguard(t, env, "unlock", "x", "--json").want(t, exitDone, "TASK_QUEUE is not set", "no delivery was booked")
	if got := wantKeys(t, o.out, changedKeys...); got["delivery"] != "none" {
		t.Errorf("%s, want delivery none", o.out)
	}
	if d, err := a.Get(t.Context(), "x"); err != nil || d.Lock.Owner != "" || d.Status != analysislock.Queued {
		t.Errorf("%+v, %v, want it free and QUEUED", d, err)
	}
}

func TestRequeueRunsAFinishedAnalysisAgainAndRefusesALockedOne(t *testing.T) {
	env := cloud(t, vars{})
	a := analyses(t, env)
	taskguard(t, env, "submit", "--input", `{"text":"x"}`, "--id", "done", "--wait").want(t, exitDone)
	o := taskguard(t, env, "requeue", "done", "--json").want(t, exitDone, "command=requeue")
	if got := wantKeys(t, o.out, changedKeys...); got["was"] != "READY" || got["status"] != "QUEUED" || got["delivery"] != "booked" {
		t.Errorf("%s, want READY, QUEUED, booked", o.out)
	}
	eventually(t, "READY again", func() bool {
		d, err := a.Get(t.Context(), "done")
		return err == nil && d.Status == analysislock.Ready && d.Lock.Token == 2
	})
	acq := locked(t, a, "held")
	taskguard(t, env, "requeue", "held").want(t, exitFailed, "is locked by w/1 until "+iso8601.Format(acq.ExpiresAt))
}

func TestAChangeThatCannotBookItsDeliveryExits1(t *testing.T) {
	env := cloud(t, vars{})
	locked(t, analyses(t, env), "x")
	env["TASK_QUEUE"] += "-missing"
	taskguard(t, env, "unlock", "x").want(t, exitFailed, "the document is changed, but", "repeat the command")
	taskguard(t, env, "submit", "--input", "{}", "--id", "new").
		want(t, exitFailed, "new: the document exists, but its delivery is not booked: ", "; repeating the command books it")
}

func TestAWrongEnvironmentNamesTheVariableAndExits2(t *testing.T) {
	env := vars{
		"GOOGLE_CLOUD_PROJECT": "p", "FIRESTORE_EMULATOR_HOST": "127.0.0.1:1", "TASK_QUEUE": demoQueue,
		"TASK_TARGET_URL": "http://127.0.0.1:1", "CLOUD_TASKS_EMULATOR_HOST": "127.0.0.1:1",
	}
	with := func(name, value string) vars {
		env := maps.Clone(env)
		env[name] = value
		return env
	}
	for name, tc := range map[string]struct {
		env  vars
		args string
		want string
	}{
		"no project":            {without(env, "GOOGLE_CLOUD_PROJECT"), "status", "GOOGLE_CLOUD_PROJECT: must be set"},
		"a document's path":     {with("ANALYSES_COLLECTION", "a/b"), "status", "ANALYSES_COLLECTION: "},
		"no queue to submit to": {noQueueNamed(env), "submit go.mod", "TASK_QUEUE: must be set"},
		"a target alone":        {without(env, "TASK_QUEUE"), "unlock x", "TASK_QUEUE: must be set where TASK_TARGET_URL is"},
		"no target":             {without(env, "TASK_TARGET_URL"), "requeue x", "TASK_TARGET_URL: must be set"},
		"no caller":             {without(env, "CLOUD_TASKS_EMULATOR_HOST"), "unlock x", "TASK_CALLER: must be set"},
		"a bad run timeout":     {with("RUN_TIMEOUT", "-1s"), "submit main.go", "RUN_TIMEOUT: \"-1s\" is not a positive duration"},
		"a bad TTL to recover":  {with("LOCK_TTL", "5"), "recover", "LOCK_TTL: \"5\" is not a positive duration"},
		"a TTL too short":       {with("LOCK_TTL", "1ms"), "recover", "LOCK_TTL: lease: "},
		"nothing to book with":  {noQueueNamed(env), "recover", "TASK_QUEUE: must be set"},
		"a path for local":      {vars{"ANALYSES_COLLECTION": "a/b"}, "local --port 0", "ANALYSES_COLLECTION: "},
		"a bad queue":           {with("TASK_QUEUE", "q"), "unlock x", "TASK_QUEUE: "},
		"a bad analyzer":        {vars{"ANALYZER": "magic:x"}, "local --port 0", "ANALYZER: "},
		"a bad TTL":             {vars{"LOCK_TTL": "soon"}, "local --port 0", "LOCK_TTL: "},
		"a bad document TTL":    {vars{"DOCUMENT_LOCK_TTL": "soon"}, "local --port 0", "DOCUMENT_LOCK_TTL: "},
		"a worker without auth": {vars{"GOOGLE_CLOUD_PROJECT": "p"}, "worker", "TASK_AUTH: "},
	} {
		t.Run(name, func(t *testing.T) {
			args := strings.Fields(strings.ReplaceAll(tc.args, "go.mod", "main.go"))
			o := taskguard(t, tc.env, args...).want(t, exitUsage, "taskguard "+args[0]+": "+tc.want)
			if o.out != "" || strings.Count(o.err, "\n") != 1 {
				t.Errorf("want one line on standard error alone\nstdout: %s\nstderr: %s", o.out, o.err)
			}
		})
	}
}

func TestLocalSaysWhichPortIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := strconv.Atoi(port); err != nil || n > lastPort {
		t.Skip("no room above the port")
	}
	taskguard(t, vars{}, "local", "--port", port).want(t, exitFailed, "the embedded Firestore: 127.0.0.1:"+port+" is taken; choose others with --port")
}

// killNamed kills the process of which local has told, once it has.
func killNamed(t *testing.T, out *emulatortest.Log, told string) {
	t.Helper()
	eventually(t, told, func() bool { return strings.Contains(out.String(), told) })
	_, after, _ := strings.Cut(out.String(), told)
	_, after, _ = strings.Cut(after, "process ")
	pid, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	worker, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Kill(); err != nil {
		t.Fatal(err)
	}
}

// A worker of local that dies is replaced, and what it had is taken over.
func TestLocalReplacesAWorkerThatDies(t *testing.T) {
	cmd, out := start(t, t.TempDir(), "local", "--port", "0", "--workers", "1")
	eventually(t, "it serves", func() bool { return strings.Contains(out.String(), "worker 1 serves") })
	killNamed(t, out, "worker 1 serves")
	eventually(t, "it is replaced", func() bool { return strings.Contains(out.String(), "worker 1 ended; worker 2 serves") })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v after Ctrl-C, want exit 0\n%s", err, out)
	}
}
