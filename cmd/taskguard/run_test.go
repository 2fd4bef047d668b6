package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/workerservice"
	"taskguard/internal/telemetry"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
)

// later is the exit code of a run that another one has to finish.
const later = 75

const builtin = "builtin:document"

func TestRunSaysWhatHappened(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	a := analyses(t, q.env)
	for _, id := range []string{"ready", "retry", "failed", "-x"} {
		create(t, a, id)
	}
	locked(t, a, "locked")
	put(t, q.env, "waiting", map[string]any{"status": "QUEUED", "attempts": 1, "lockToken": 1, "nextAttemptAt": "2126-01-02T03:04:05.678Z"})
	put(t, q.env, "malformed", map[string]any{"status": "QUEUED", "lockToken": "1"})
	analyzer := q.env.with("ANALYZER", "exec:"+script(t, `case $ANALYSIS_ID in retry) exit 1;; failed) echo no >&2; exit 65;; esac; echo '"done"'`))
	for _, tc := range []struct {
		id     string
		code   int
		text   string // the line, without "taskguard run: "
		booked bool
	}{
		{"ready", cli.ExitDone, "ready is READY\n", false},
		{"ready", cli.ExitDone, "ready was READY before: nothing was run\n", false},
		{"failed", cli.ExitFailed, "no\ntaskguard run: failed is FAILED: analyzer_rejected: no\n", false},
		{"failed", cli.ExitDone, "failed was FAILED before: nothing was run\n", false},
		{"retry", later, "retry failed, and is tried again at 2", true},
		{"retry", later, "retry is not due before 2", true},
		{"locked", later, "locked is locked by another run until 2", true},
		{"missing", cli.ExitFailed, "missing does not exist\n", false},
		{"malformed", cli.ExitFailed, "malformed cannot be read: ", false},
		{"-x", cli.ExitDone, "-x is READY\n", false},
	} {
		o := taskguard(t, analyzer, "run", "--", tc.id).want(t, tc.code, tc.text)
		if booked := strings.Contains(o.err, "the next delivery is enqueued"); booked != tc.booked {
			t.Errorf("%s: booked %t, want %t: %s", tc.id, booked, tc.booked, o.err)
		}
		errs := strings.TrimPrefix(o.err, "no\n") // of the program
		if strings.Count(o.out+errs, "\n") != 1 {
			t.Errorf("%s: want one line:\n%s%s", tc.id, o.out, o.err)
		}
	}
	taskguard(t, analyzer.with("LOG_FORMAT", "json"), "run", "missing").want(t, cli.ExitFailed, `"outcome":"not_found"`)
	q.wantTasks(t, 2) // of retry, whose name is booked once, and of locked

	without := analyzer.without("TASK_QUEUE", "TASK_TARGET_URL", "CLOUD_TASKS_EMULATOR_HOST")
	taskguard(t, without, "run", "locked").want(t, later, "; nothing is enqueued\n")
	o := taskguard(t, without, "run", "retry", "--json").want(t, later, `"outcome":"retry"`)
	wantKeys(t, o.out, "id", "outcome", "attempt", "lock_token", "code", "message", "booked")
	wantKeys(t, taskguard(t, analyzer, "run", "ready", "--json").want(t, cli.ExitDone).out, "id", "outcome", "status", "booked")
	wantKeys(t, taskguard(t, analyzer, "run", "locked", "--json").want(t, later).out, "id", "outcome", "retry_at", "booked")
}

// script writes a program for ANALYZER=exec:.
func script(t testing.TB, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "analyzer")
	check(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o700))
	return path
}

func TestRunRefusesAWrongEnvironmentWithALineForEachProblem(t *testing.T) {
	const queue = "projects/p/locations/l/queues/q"
	for name, tc := range map[string]struct {
		env  vars
		want []string
	}{
		"no project": {vars{"FIRESTORE_EMULATOR_HOST": "127.0.0.1:1", "ANALYZER": builtin}, []string{"GOOGLE_CLOUD_PROJECT: must be set"}},
		"several": {
			vars{"GOOGLE_CLOUD_PROJECT": "p", "LOCK_TTL": "x", "ANALYZER": "what", "RUN_TIMEOUT": "-1s", "TASK_QUEUE": queue, "TASK_TARGET_URL": "https://w.example"},
			[]string{"LOCK_TTL: ", "ANALYZER: ", "RUN_TIMEOUT: ", "TASK_CALLER: must be set with TASK_QUEUE"},
		},
		"what it ignores": {vars{"GOOGLE_CLOUD_PROJECT": "p", "ANALYZER": "what", "MAX_RUNS": "x", "PORT": "x", "SMOKE_INPUT": "{"}, []string{"ANALYZER: "}},
		"a job":           {vars{"GOOGLE_CLOUD_PROJECT": "p", "ANALYZER": "job:projects/p/locations/l/jobs/j"}, []string{"ANALYZER: job:"}},
		"over MAX_RUN":    {vars{"GOOGLE_CLOUD_PROJECT": "p", "RUN_TIMEOUT": "25h", "ANALYZER": builtin}, []string{"MAX_RUN_TIME: 24h0m0s is under RUN_TIMEOUT, 25h0m0s"}},
		"wrong kinds":     {vars{"GOOGLE_CLOUD_PROJECT": "p", "KINDS": "[]", "ANALYZER": builtin}, []string{"KINDS: want a JSON array"}},
		"no analyzer":     {vars{"GOOGLE_CLOUD_PROJECT": "p"}, []string{"ANALYZER: must be set: exec:"}},
		"nothing answers": {vars{"GOOGLE_CLOUD_PROJECT": "p", "FIRESTORE_EMULATOR_HOST": closedPort(t), "RUN_TIMEOUT": "24h", "TASK_AUTH": "what", "ANALYZER": builtin}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := taskguard(t, tc.env, "run", "x")
			if tc.want == nil { // the environment is right
				o.want(t, later, "nothing answers at")
				return
			}
			o.want(t, cli.ExitUsage, tc.want...)
			if strings.Count(o.err, "\n") != len(tc.want) || o.out != "" {
				t.Errorf("want %d lines:\n%s", len(tc.want), o.err)
			}
		})
	}
}

func TestRunSaysThatTheAnalysisIsReadyIfItsLineCannotBeWritten(t *testing.T) {
	q := newQueue(t)
	create(t, analyses(t, q.env), "x")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	check(t, err)
	defer func() { _ = full.Close() }()
	var errs emulatortest.Log
	env := q.env.with("ANALYZER", "exec:"+script(t, "echo 1"))
	code := cli.Run(t.Context(), commands(), []string{"run", "x"}, cli.Streams{Out: full, Err: &errs}, env.lookup)
	const want = "x is READY, and standard output cannot be written: "
	if code != cli.ExitFailed || !strings.Contains(errs.String(), want) {
		t.Errorf("exit %d: %s", code, errs.String())
	}
}

func TestRunWithoutCredentialsIsAWrongEnvironment(t *testing.T) {
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "none"))
	o := taskguard(t, vars{"GOOGLE_CLOUD_PROJECT": "p", "ANALYZER": builtin}, "run", "x")
	o.want(t, cli.ExitUsage, "nothing was run: ")
}

// running is a process with `taskguard run`.
type running struct {
	*exec.Cmd
	out emulatortest.Log
}

// startRun starts taskguard with args in the environment env.
func startRun(t testing.TB, env vars, args ...string) *running {
	t.Helper()
	r := &running{Cmd: exec.Command(must(os.Executable())(t), args...)}
	r.Env, r.Stdout, r.Stderr = os.Environ(), &r.out, &r.out
	for name, value := range env {
		r.Env = append(r.Env, name+"="+value)
	}
	check(t, r.Start())
	t.Cleanup(func() { _ = r.Process.Kill(); _ = r.Wait() })
	return r
}

// end waits until the process has ended with that code, and has printed text.
func (r *running) end(t testing.TB, code int, text string) {
	t.Helper()
	_ = r.Wait() // the exit code is checked
	if got := r.ProcessState.ExitCode(); got != code || !strings.Contains(r.out.String(), text) {
		t.Errorf("exit %d, want %d and %q:\n%s", got, code, text, &r.out)
	}
}

// begun waits until the analyzer has written n lines into the file.
func begun(t testing.TB, file string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d runs have begun", n), func() bool {
		content, _ := os.ReadFile(file)
		return strings.Count(string(content), "\n") >= n
	})
}

// The first run of an analysis holds its lock, until each row ends it.
func TestARunEndsAsItShould(t *testing.T) {
	for name, tc := range map[string]struct {
		during func(t *testing.T, q *testQueue, r *running)
		code   int
		text   string
		status string
		held   bool // the lock is kept, and nothing is booked
	}{
		"another run of the same id": {func(t *testing.T, q *testQueue, r *running) {
			taskguard(t, q.env.with("ANALYZER", builtin), "run", "x").want(t, later, "x is locked by", "the next delivery is enqueued")
			check(t, r.Process.Signal(syscall.SIGTERM))
		}, later, "x was stopped, and can run again; the next delivery is enqueued\n", "QUEUED", false},
		"Ctrl-C": {func(t *testing.T, _ *testQueue, r *running) {
			check(t, r.Process.Signal(os.Interrupt))
		}, later, "x was stopped, and can run again; the next delivery is enqueued\n", "QUEUED", false},
		"a second Ctrl-C": {func(t *testing.T, _ *testQueue, r *running) {
			check(t, r.Process.Signal(os.Interrupt))
			time.Sleep(200 * time.Millisecond) // two signals at once would be one
			check(t, r.Process.Signal(os.Interrupt))
		}, -1, "", "PROCESSING", true},
		"a cancelled analysis": {func(t *testing.T, q *testQueue, _ *running) {
			taskguard(t, q.env, "cancel", "x").want(t, cli.ExitDone)
		}, later, "x lost its lock: nothing of this run is written; it is FAILED\n", "FAILED", false},
		"another owner": {func(t *testing.T, q *testQueue, _ *running) {
			taskguard(t, q.env, "unlock", "x").want(t, cli.ExitDone)
			a := analyses(t, q.env)
			_, err := a.AcquireAnalysisLock(t.Context(), "x", "w/2", 0, analysislock.AcquireOptions{})
			check(t, err)
		}, later, "x lost its lock: nothing of this run is written; the next delivery is enqueued\n", "PROCESSING", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			a := analyses(t, q.env)
			create(t, a, "x")
			file := filepath.Join(t.TempDir(), "begun")
			// A program that ignores SIGTERM is killed 5 s later: time enough for a second signal.
			ignore := map[bool]string{true: "trap '' TERM; "}[name == "a second Ctrl-C"]
			env := q.env.with("ANALYZER", "exec:"+script(t, ignore+"echo >>"+file+"; while :; do sleep 0.1; done")).with("LOCK_HEARTBEAT", "500ms")
			r := startRun(t, env, "run", "x")
			begun(t, file, 1)
			tc.during(t, q, r)
			r.end(t, tc.code, tc.text)
			d := must(a.Summary(t.Context(), "x"))(t)
			if d.Status != tc.status || (d.Lock.Owner != "") != tc.held {
				t.Errorf("%s, owner %q, want %s, held %t", d.Status, d.Lock.Owner, tc.status, tc.held)
			}
			// It was due at once. Nobody listens, so the queue tries again soon.
			soon := slices.ContainsFunc(q.tasks(t), func(task *cloudtaskspb.Task) bool {
				return task.GetScheduleTime().AsTime().Before(time.Now().Add(time.Minute))
			})
			if soon != (tc.status == "QUEUED") && name != "another owner" {
				t.Errorf("a delivery is booked for now: %t", soon)
			}
		})
	}
}

// jobAPI is the Cloud Run Admin API. Each execution is a process.
type jobAPI struct {
	t   testing.TB
	env vars // of the job's container

	mu         sync.Mutex
	executions []*running
}

func (j *jobAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Overrides struct {
			ContainerOverrides []struct{ Args []string }
		}
	}
	err := json.NewDecoder(r.Body).Decode(&body)
	if err != nil || r.URL.Path != "/v2/projects/p/locations/l/jobs/long:run" || len(body.Overrides.ContainerOverrides) != 1 {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.executions = append(j.executions, startRun(j.t, j.env, body.Overrides.ContainerOverrides[0].Args...))
	_, _ = fmt.Fprint(w, `{"name": "projects/p/locations/l/operations/o"}`)
}

// execution waits for the nth, from 0.
func (j *jobAPI) execution(n int) (r *running) {
	j.t.Helper()
	eventually(j.t, fmt.Sprintf("%d executions", n+1), func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		if len(j.executions) > n {
			r = j.executions[n]
		}
		return r != nil
	})
	return r
}

// The worker's runs may take 1 s, and the job's take longer. Two executions are killed. Recovery finds
// their analysis, and the third finishes it.
func TestAJobRunsWhatNoDeliveryCouldAndItsDeathIsFound(t *testing.T) {
	t.Parallel()
	l := listen(t)
	q := newQueue(t)
	q.env["TASK_TARGET_URL"], q.env["LOCK_TTL"] = "http://"+l.Addr().String(), "2s"
	file := filepath.Join(t.TempDir(), "begun")
	api := &jobAPI{t: t, env: q.env.with("ANALYZER", "exec:"+script(t,
		`echo >>`+file+`; test $(wc -l <`+file+`) -gt 1 || exec sleep 60; sleep 2; echo '"done"'`)).with("RUN_TIMEOUT", "1h")}
	server := httptest.NewServer(api)
	defer server.Close()

	cfg := must(workerservice.ParseConfig(q.env.with("TASK_AUTH", "none").with("RUN_TIMEOUT", "1s").
		with("ANALYZER", "job:projects/p/locations/l/jobs/long").lookup))(t)
	cfg.JobOptions = []option.ClientOption{option.WithEndpoint(server.URL), option.WithHTTPClient(server.Client())}
	ctx, stop := context.WithCancel(t.Context())
	log, served := &emulatortest.Log{}, make(chan error, 1)
	go func() { served <- workerservice.Serve(ctx, cfg, l, telemetry.NewLogger(log, "json", 0)) }()
	t.Cleanup(func() { stop(); check(t, <-served) })

	taskguard(t, q.env, "submit", "--input", "1", "--id", "x").want(t, cli.ExitDone)
	killed := api.execution(0)
	begun(t, file, 1)
	taskguard(t, q.env.with("ANALYZER", builtin), "run", "x").want(t, later, "x is locked by") // a second execution
	check(t, killed.Process.Kill())
	eventually(t, "recovery has booked", func() bool {
		return strings.HasPrefix(taskguard(t, q.env, "recover").want(t, cli.ExitDone).out, "found 1, enqueued 1")
	})
	api.execution(1).end(t, cli.ExitDone, "x is READY\n")
	if d := must(analyses(t, q.env).Get(t.Context(), "x"))(t); d.Status != analysislock.Ready || d.Result != "done" || len(d.History) != 2 || d.History[1].Outcome != analysislock.OutcomeReady {
		t.Errorf("%s %v, history %+v", d.Status, d.Result, d.History)
	}
	// The follow-up of the dead run and recovery's delivery may come together. Then both start a run, and one is locked out.
	if n := strings.Count(log.String(), `"outcome":"started"`); n != 2 && n != 3 {
		t.Errorf("%d deliveries have started a run, want 2 or 3:\n%s", n, log)
	}
}
