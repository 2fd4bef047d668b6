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
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/workerservice"
	"taskguard/internal/telemetry"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease/analysislock"
)

// later is the exit code of a run that another one has to finish.
const later = 75

const builtin = "builtin:document"

func TestRun(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	a := analyses(t, q.env)
	for _, id := range []string{"ready", "retry", "failed", "-x"} {
		create(t, a, id)
	}
	locked(t, a, "locked")
	put(t, q.env, "malformed", doc{"status": "QUEUED", "lockToken": "1"})
	env := q.env.with("ANALYZER", "exec:"+script(t,
		`case $ANALYSIS_ID in retry) exit 1;; failed) echo no >&2; exit 65;; esac; echo '"done"'`))
	for _, tc := range []struct {
		id     string
		code   int
		text   string
		booked bool
	}{
		{id: "ready", code: cli.ExitDone, text: "ready is READY\n"},
		{id: "ready", code: cli.ExitDone, text: "ready was READY before"},
		{id: "failed", code: cli.ExitFailed, text: "failed is FAILED: analyzer_rejected: no\n"},
		{id: "failed", code: cli.ExitDone, text: "failed was FAILED before"},
		{id: "retry", code: later, text: "retry failed, and is tried again at 2", booked: true},
		{id: "retry", code: later, text: "retry is not due before 2", booked: true},
		{id: "locked", code: later, text: "locked is locked by another run until 2", booked: true},
		{id: "missing", code: cli.ExitFailed, text: "missing does not exist\n"},
		{id: "malformed", code: cli.ExitFailed, text: "malformed cannot be read: "},
		{id: "-x", code: cli.ExitDone, text: "-x is READY\n"},
	} {
		o := taskguard(t, env, "run -- "+tc.id).want(t, tc.code, tc.text)
		if booked := strings.Contains(o.err, "the next delivery is enqueued"); booked != tc.booked {
			t.Errorf("%s: booked %t, want %t: %s", tc.id, booked, tc.booked, o.err)
		}
		if text := o.out + strings.TrimPrefix(o.err, "no\n"); strings.Count(text, "\n") != 1 { // no is the program's
			t.Errorf("%s: want one line:\n%s", tc.id, text)
		}
	}
	taskguard(t, env.with("LOG_FORMAT", "json"), "run missing").fails(t, `"outcome":"not_found"`)
	q.wantTasks(t, 2) // of retry, whose name is booked once, and of locked

	without := q.without().with("ANALYZER", env["ANALYZER"])
	taskguard(t, without, "run locked").want(t, later, "nothing is enqueued")
	for _, tc := range []struct {
		env  vars
		id   string
		code int
		keys string
	}{
		{env: without, id: "retry", code: later, keys: "attempt lock_token code message"},
		{env: env, id: "ready", code: cli.ExitDone, keys: "status"},
		{env: env, id: "locked", code: later, keys: "retry_at"},
	} {
		object := taskguard(t, tc.env, "run --json "+tc.id).want(t, tc.code).object(t)
		wantKeys(t, object, "id outcome booked "+tc.keys)
	}
}

func TestRun_Environment(t *testing.T) {
	google := vars{"GOOGLE_CLOUD_PROJECT": "p", "ANALYZER": builtin}
	for name, tc := range map[string]struct {
		env   vars
		named []string // a line each
	}{
		"several": {
			vars{
				"GOOGLE_CLOUD_PROJECT": "p", "LOCK_TTL": "x", "ANALYZER": "what", "RUN_TIMEOUT": "-1s", "KINDS": "[]",
				"TASK_QUEUE": queueName, "TASK_TARGET_URL": "https://w.example",
			},
			[]string{"LOCK_TTL: ", "ANALYZER: ", "RUN_TIMEOUT: ", "TASK_CALLER: ", "KINDS: "},
		},
		"none that it ignores": {
			google.with("ANALYZER", "what").with("MAX_RUNS", "x").with("PORT", "x").with("SMOKE_INPUT", "{"),
			[]string{"ANALYZER: "},
		},
		"a job":          {google.with("ANALYZER", "job:projects/p/locations/l/jobs/j"), []string{"ANALYZER: job:"}},
		"over MAX_RUN":   {google.with("RUN_TIMEOUT", "25h"), []string{"MAX_RUN_TIME"}},
		"no analyzer":    {google.without("ANALYZER"), []string{"ANALYZER: must be set"}},
		"no credentials": {google, []string{"nothing was run: "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "none"))
			o := taskguard(t, tc.env, "run x").refused(t, tc.named...)
			if strings.Count(o.err, "\n") != len(tc.named) || o.out != "" {
				t.Errorf("want %d lines:\n%s", len(tc.named), o.err)
			}
		})
	}
	dead := emulated(closedPort(t)).with("RUN_TIMEOUT", "24h").with("TASK_AUTH", "what").with("ANALYZER", builtin)
	taskguard(t, dead, "run x").want(t, later, "nothing answers at")
}

// running is a process with `taskguard run`.
type running struct {
	*exec.Cmd
	out emulatortest.Log
}

// startRun starts taskguard with args in the environment env.
func startRun(t testing.TB, env vars, args ...string) *running {
	t.Helper()
	r := &running{Cmd: exec.Command(must.Get(os.Executable())(t), args...)}
	r.Env, r.Stdout, r.Stderr = os.Environ(), &r.out, &r.out
	for name, value := range env {
		r.Env = append(r.Env, name+"="+value)
	}
	must.OK(t, r.Start())
	t.Cleanup(func() { _ = r.Process.Kill(); _ = r.Wait() })
	return r
}

// end waits until the process has ended with that code, and has printed text.
func (r *running) end(t testing.TB, code int, text string) {
	t.Helper()
	_ = r.Wait() // the exit code is checked
	outcome{r.ProcessState.ExitCode(), r.out.String(), ""}.want(t, code, text)
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
func TestRun_End(t *testing.T) {
	signal := func(t *testing.T, r *running, s os.Signal) { must.OK(t, r.Process.Signal(s)) }
	for name, tc := range map[string]struct {
		during func(t *testing.T, q *testQueue, r *running)
		ignore string // what the program does to ignore SIGTERM. It is killed 5 s later: time for a second signal
		code   int
		text   string
		status string
		held   bool // the lock is kept
		soon   bool // a delivery is due at once. Nobody listens, so the queue tries again soon
	}{
		"another run of the same id": {
			during: func(t *testing.T, q *testQueue, r *running) {
				taskguard(t, q.env.with("ANALYZER", builtin), "run x").want(t, later, "x is locked by", "is enqueued")
				signal(t, r, syscall.SIGTERM)
			},
			code: later, text: "x was stopped", status: "QUEUED", soon: true,
		},
		"Ctrl-C": {
			during: func(t *testing.T, _ *testQueue, r *running) { signal(t, r, os.Interrupt) },
			code:   later, text: "the next delivery is enqueued", status: "QUEUED", soon: true,
		},
		"a second Ctrl-C": {
			during: func(t *testing.T, _ *testQueue, r *running) {
				signal(t, r, os.Interrupt)
				time.Sleep(200 * time.Millisecond) // two signals at once would be one
				signal(t, r, os.Interrupt)
			},
			ignore: "trap '' TERM; ",
			code:   -1, status: "PROCESSING", held: true,
		},
		"a cancelled analysis": {
			during: func(t *testing.T, q *testQueue, _ *running) { taskguard(t, q.env, "cancel x").done(t) },
			code:   later, text: "x lost its lock: nothing of this run is written; it is FAILED\n", status: "FAILED",
		},
		"another owner": {
			during: func(t *testing.T, q *testQueue, _ *running) {
				taskguard(t, q.without(), "unlock x").done(t)
				a := analyses(t, q.env)
				must.Get(a.AcquireAnalysisLock(t.Context(), "x", "w/2", 0, analysislock.AcquireOptions{}))(t)
			},
			code: later, text: "x lost its lock: nothing of this run is written; the next delivery is enqueued\n",
			status: "PROCESSING", held: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			a := analyses(t, q.env)
			create(t, a, "x")
			file := filepath.Join(t.TempDir(), "begun")
			analyzer := script(t, tc.ignore+"echo >>"+file+"; while :; do sleep 0.1; done")
			r := startRun(t, q.env.with("ANALYZER", "exec:"+analyzer).with("LOCK_HEARTBEAT", "500ms"), "run", "x")
			begun(t, file, 1)
			tc.during(t, q, r)
			r.end(t, tc.code, tc.text)
			d := must.Get(a.Summary(t.Context(), "x"))(t)
			if d.Status != tc.status || (d.Lock.Owner != "") != tc.held {
				t.Errorf("%s, owner %q, want %s, held %t", d.Status, d.Lock.Owner, tc.status, tc.held)
			}
			soon := slices.ContainsFunc(q.tasks(t), func(task *cloudtaskspb.Task) bool {
				return task.GetScheduleTime().AsTime().Before(time.Now().Add(time.Minute))
			})
			if soon != tc.soon {
				t.Errorf("a delivery is booked for now: %t", soon)
			}
		})
	}
}

// jobsAPI is Cloud Run's API for jobs. Each execution is a process in the environment env.
func jobsAPI(t *testing.T, env vars) (server *httptest.Server, executions <-chan *running) {
	started := make(chan *running, 9)
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Overrides struct {
				ContainerOverrides []struct{ Args []string }
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		started <- startRun(t, env, body.Overrides.ContainerOverrides[0].Args...)
		_, _ = fmt.Fprint(w, "{}")
	}))
	t.Cleanup(server.Close)
	return server, started
}

// The worker's runs may take 1 s, and the job's take longer. One execution is killed. Its death is found,
// and the next one finishes the analysis.
func TestRun_Job(t *testing.T) {
	t.Parallel()
	l := listen(t)
	q := newQueue(t)
	q.env["TASK_TARGET_URL"], q.env["LOCK_TTL"] = "http://"+l.Addr().String(), "2s"
	file := filepath.Join(t.TempDir(), "begun")
	api, executions := jobsAPI(t, q.env.with("RUN_TIMEOUT", "1h").with("ANALYZER", "exec:"+script(t,
		`echo >>`+file+`; test $(wc -l <`+file+`) -gt 1 || exec sleep 60; sleep 2; echo '"done"'`)))

	cfg := must.Get(workerservice.ParseConfig(q.env.with("TASK_AUTH", "none").with("RUN_TIMEOUT", "1s").
		with("ANALYZER", "job:projects/p/locations/l/jobs/long").lookup))(t)
	cfg.JobOptions = []option.ClientOption{option.WithEndpoint(api.URL), option.WithHTTPClient(api.Client())}
	ctx, stop := context.WithCancel(t.Context())
	log, served := &emulatortest.Log{}, make(chan error, 1)
	go func() { served <- workerservice.Serve(ctx, cfg, l, telemetry.NewLogger(log, "json", 0)) }()
	t.Cleanup(func() { stop(); must.OK(t, <-served) })

	taskguard(t, q.env, "submit --input 1 --id x").done(t)
	killed := received(t, executions)
	begun(t, file, 1)
	// A second execution, which books no follow-up.
	taskguard(t, q.without().with("ANALYZER", builtin), "run x").want(t, later, "x is locked by")
	must.OK(t, killed.Process.Kill())
	eventually(t, "recovery has started another", func() bool {
		taskguard(t, q.env, "recover").done(t)
		return len(executions) > 0
	})
	received(t, executions).end(t, cli.ExitDone, "x is READY\n")
	d := must.Get(analyses(t, q.env).Get(t.Context(), "x"))(t)
	if d.Result != "done" || len(d.History) != 2 {
		t.Errorf("%s %v, history %+v", d.Status, d.Result, d.History)
	}
	// On a slow machine recovery books again before the second run has the lock. The third is then locked out.
	if n := strings.Count(log.String(), `"outcome":"started"`); n != 2 && n != 3 {
		t.Errorf("%d deliveries have started a run, want 2 or 3:\n%s", n, log)
	}
}
