package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/workerservice"
	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
)

var submittedKeys = []string{"id", "name", "created", "booked", "status"}

// One local cloud serves all these, as starting it takes a second.
func TestOnALocalCloud(t *testing.T) {
	t.Parallel()
	logs := filepath.Join(t.TempDir(), "new", "logs")
	env, progress := localCloud(t, vars{"ANALYSES_COLLECTION": "analyses", "RUN_TIMEOUT": "40s", "LOG_LEVEL": "info"}, "--documents", "--logs", logs)
	each := max(1, runtime.GOMAXPROCS(0)/2)
	progress.Await(t, fmt.Sprintf("at most %d runs at once, as MAX_RUNS is %d\n", 2*each, each))

	t.Run("submit follows analyses to their end and is idempotent", func(t *testing.T) {
		text, binary := write(t, "some text.md", "one two\ntwo\n"), write(t, "data.bin", "\xff\x00")
		o := taskguard(t, env, "submit", text, "--json", "--wait", binary).want(t, cli.ExitDone, `"words":3`, `"bytes":2`, "some-text-md-")
		lines := strings.Split(strings.TrimSpace(o.out), "\n")
		if len(lines) != 2 {
			t.Fatalf("%d lines, want 2: %s", len(lines), o.out)
		}
		for _, line := range lines {
			if got := wantKeys(t, line, append(submittedKeys, "result")...); got["created"] != true || got["booked"] != "now" || got["status"] != "READY" {
				t.Errorf("%s, want created, booked now, READY", line)
			}
		}
		again := taskguard(t, env, "submit", text, "--json").want(t, cli.ExitDone)
		got := wantKeys(t, again.out, submittedKeys...)
		if got["created"] != false || got["booked"] != "not_needed" || got["status"] != "READY" {
			t.Errorf("submitted again: %s", again.out)
		}
		id := got["id"].(string)
		taskguard(t, env, "submit", text).want(t, cli.ExitDone, id+"  ", "exists already, READY; finished, no delivery needed")
		taskguard(t, env, "submit", "--wait", text).want(t, cli.ExitDone, id+"  ", `READY {"bytes":12,`)
	})

	t.Run("its workers also write their log as Cloud Logging gets it", func(t *testing.T) {
		lines := ""
		for _, worker := range []string{"1", "2"} {
			text := string(must(os.ReadFile(filepath.Join(logs, "worker-"+worker+".jsonl")))(t))
			if !strings.Contains(text, `"severity":"INFO","message":"serving","address":`) {
				t.Errorf("worker %s: %s", worker, text)
			}
			lines += text
		}
		if !regexp.MustCompile(`"severity":"INFO","message":"delivery","outcome":"ready".*"analysis_id":"some-text-md-`).MatchString(lines) {
			t.Errorf("no delivery in %s", lines)
		}
		if strings.Contains(lines, `"message":"run begins"`) {
			t.Errorf("a line for the parent is in %s", lines)
		}
	})

	t.Run("doctor submits one and waits for it", func(t *testing.T) {
		taskguard(t, env, "doctor", "--smoke", `{"text":"x"}`).want(t, cli.ExitDone, "READY\n", "log lines: not checked, since an emulator has no Cloud Logging")
		taskguard(t, env, "doctor", "--smoke", `{}`).want(t, cli.ExitFailed, "1 of 1 FAILED")
		taskguard(t, env, "doctor", "--smoke", `{`).want(t, cli.ExitUsage, "not JSON")
		taskguard(t, env, "doctor", "--smoke", `{}`, "--json").want(t, cli.ExitUsage, "exclude each other")
		taskguard(t, env, "doctor", "--smoke", `{"text":"x"}`, "--indexes", shippedFiles+"firestore.indexes.json").want(t, cli.ExitDone, "no problem in what was read", "READY\n")
		taskguard(t, env, "doctor", "--smoke", `{"text":"x"}`, "--indexes", write(t, "none.json", "{}")).want(t, cli.ExitFailed, "index-missing")
	})

	t.Run("submit of an analysis that fails exits 1", func(t *testing.T) {
		o := taskguard(t, env, "submit", "--input", `{"neither":1}`, "--id", "fails", "--wait", "--json").want(t, cli.ExitFailed, "1 of 1 FAILED")
		got := wantKeys(t, o.out, append(submittedKeys, "error")...)
		if failure, _ := got["error"].(map[string]any); got["status"] != "FAILED" || failure["code"] != "invalid_input" {
			t.Errorf("%s, want FAILED with invalid_input", o.out)
		}
		taskguard(t, env, "submit", "--input", `{"neither":1}`, "--id", "fails", "--wait").want(t, cli.ExitFailed, "FAILED invalid_input: ", "1 of 1 FAILED")
	})

	t.Run("the workers refuse calls without a token", func(t *testing.T) {
		for _, route := range []string{"analysis", "recover"} {
			response, err := http.Post(env["TASK_TARGET_URL"]+"/internal/tasks/"+route, "application/json", strings.NewReader(`{"analysis_id":"x"}`))
			check(t, err)
			_ = response.Body.Close()
			if response.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s without a token: %d, want 401", route, response.StatusCode)
			}
		}
	})

	t.Run("its queue retries tasks that failed together at different times", func(t *testing.T) {
		at, due := time.Now().Add(3*time.Second).Truncate(time.Second), make(chan string, 1)
		failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-CloudTasks-TaskRetryCount") == "0" {
				w.Header().Set("Retry-After", at.UTC().Format(http.TimeFormat))
				w.WriteHeader(http.StatusConflict)
				return
			}
			due <- r.Header.Get("X-CloudTasks-TaskETA")
		}))
		defer failing.Close()
		createTask(t, env, failing.URL)
		if got := <-due; got <= fmt.Sprintf("%d.000000", at.Unix()) {
			t.Errorf("the retry is due at %s, want a random time after %d", got, at.Unix())
		}
	})

	t.Run("it serves the document lock's page and the console", func(t *testing.T) {
		for _, page := range []string{env["doclock"], env["console"]} {
			if code, text := browse(t, http.MethodGet, page, ""); code != http.StatusOK || !strings.Contains(text, "<html") {
				t.Errorf("%s: %d %s", page, code, text)
			}
		}
	})

	t.Run("a worker takes what it exports", func(t *testing.T) {
		cfg := must(workerservice.ParseConfig(env.with("TASK_AUTH", "none").lookup))(t)
		if cfg.Options.Queue.Caller != caller || cfg.Options.RunTimeout != 40*time.Second || cfg.Options.Collection != "analyses" || env["LOG_LEVEL"] != "" {
			t.Errorf("%+v of %v", cfg, env)
		}
	})
}

// local prints what an analyzer writes to standard error, and why an attempt failed.
func TestLocalShowsWhatAnAnalyzerWritesAndWhyItFails(t *testing.T) {
	t.Parallel()
	script := write(t, "analyzer.sh", `case "$(cat)" in *'"end":0'*) end=0;; *'"end":3'*) end=3;; *) end=65;; esac; echo first$TASKGUARD_TEST_AS_PROGRAM >&2; printf serving >&2; sleep 0.3; echo 0; exit $end`)
	env, progress := localCloud(t, vars{"ANALYZER": "exec:sh " + script, "ANALYZER_ENV": asProgram, "MAX_RUNS": "1"}, "--workers", "1")
	for _, id := range []string{"y1", "y2", "y3"} { // more than the worker takes
		taskguard(t, env, "submit", "--input", `{"end":0}`, "--id", id).want(t, cli.ExitDone)
	}
	for end, answer := range map[int]string{0: "x0: worker 1 answered 200 READY\n", 3: " retry: sh ended with exit status 3: first1", 65: "x65: worker 1 answered 200 FAILED: first1"} {
		id := fmt.Sprint("x", end)
		taskguard(t, env, "submit", "--input", fmt.Sprintf(`{"end":%d}`, end), "--id", id).want(t, cli.ExitDone)
		for _, want := range []string{id + " stderr: first1\n", id + " stderr: serving\n", answer} {
			eventually(t, want, func() bool { return strings.Contains(progress.String(), want) })
		}
	}
	cfg := must(workerservice.ParseConfig(env.with("TASK_AUTH", "none").lookup))(t)
	queue, err := taskqueue.Open(t.Context(), cfg.Options.Queue)
	check(t, err)
	t.Cleanup(func() { _ = queue.Close() })
	must(queue.Book(t.Context(), taskqueue.Task{Name: "invalid", Deadline: time.Minute}))(t)
	for _, want := range []string{"y1: worker 1 answered 200 READY", "y2: worker 1 answered 200 READY", "y3: worker 1 answered 200 READY", "; next delivery in ", "a task without an analysis_id: worker 1 answered 200 bad_request: ", "; the task is deleted\n"} {
		eventually(t, want, func() bool { return strings.Contains(progress.String(), want) })
	}
	if strings.Contains(progress.String(), " busy") {
		t.Errorf("the queue delivers more than the worker takes:\n%s", progress)
	}
}

// local prints why a report is ignored, that a run continues, and that it has lost its lock.
func TestLocalShowsWhatBecomesOfALongAnalysis(t *testing.T) {
	t.Parallel()
	script := write(t, "analyzer.sh", `case "$(cat)" in *'"checkpoint"'*) ;; *) echo '{"progress":0.23,"checkpoint":1}' >&3; echo 1 >&3;; esac; exec sleep 60`)
	env, progress := localCloud(t, vars{"ANALYZER": "exec:sh " + script, "LOCK_TTL": "3s", "CHECKPOINT_INTERVAL": "1s"}, "--workers", "1")
	a := analyses(t, env)
	shows := func(parts ...string) {
		t.Helper()
		for _, want := range parts {
			eventually(t, want, func() bool { return strings.Contains(progress.String(), want) })
		}
	}
	taskguard(t, env, "submit", "--input", "{}", "--id", "x").want(t, cli.ExitDone)
	shows("x runs on worker 1, token 1\n", "x: a report is ignored: ")
	eventually(t, "a checkpoint", func() bool { d, err := a.Summary(t.Context(), "x"); return err == nil && d.Checkpoint != nil })
	killWorker(t, progress)
	shows("x continues on worker 1, token ")
	taskguard(t, env, "cancel", "x").want(t, cli.ExitDone)
	shows("x: worker 1 answered 200 lock_lost\n")
}

// Recovery, which local calls with a token, finds an analysis without a task.
// A worker that dies is replaced, and a recovery that fails meanwhile is reported.
func TestLocalCallsRecoveryAndReplacesAWorkerThatDies(t *testing.T) {
	t.Parallel()
	env, progress := localCloud(t, vars{"LOCK_TTL": "1s", "MAX_ATTEMPTS": "7"}, "--recover-every", "100ms", "--workers", "1")
	a := analyses(t, env)
	create(t, a, "x")
	awaitReady(t, a, "x")
	eventually(t, "it is reported", func() bool { return strings.Contains(progress.String(), "recovery found 1 orphaned, enqueued 1") })
	if strings.Contains(progress.String(), "booked 0") {
		t.Errorf("recovery without a finding is reported:\n%s", progress)
	}
	if env["LOCK_TTL"] != "1s" || env["MAX_ATTEMPTS"] != "7" {
		t.Errorf("%v, want the settings of its workers", env)
	}
	killWorker(t, progress)
	eventually(t, "a failed recovery is reported", func() bool { return strings.Contains(progress.String(), "recovery: ") })
	eventually(t, "it is replaced", func() bool { return strings.Contains(progress.String(), "worker 1 ended; it serves again") })
	create(t, a, "y")
	awaitReady(t, a, "y")
}

// An input that kills its worker, among eight that do not: these are READY, and it is FAILED and named.
func TestLocalFailsAnInputThatKillsItsWorkerAndNoOther(t *testing.T) {
	t.Parallel()
	script := write(t, "analyzer.sh", `case "$(cat)" in *kill*) sleep 0.5; kill -9 $PPID; exit 1;; esac; sleep 2; echo '"done"'`)
	env, progress := localCloud(t, vars{"ANALYZER": "exec:sh " + script, "LOCK_TTL": "3s", "MAX_RUNS": "10"}, "--workers", "1")
	ids := []string{"innocent-1", "innocent-2", "innocent-3", "innocent-4", "killer", "innocent-5", "innocent-6", "innocent-7", "innocent-8"}
	for _, id := range ids {
		input := fmt.Sprintf("%q", strings.TrimRight(id, "er"))
		taskguard(t, env, "submit", "--input", input, "--id", id).want(t, cli.ExitDone)
	}

	a := analyses(t, env)
	finished := func(id string) analysislock.Analysis {
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if d, err := a.Get(t.Context(), id); err == nil && d.Finished() {
				return d
			}
		}
		t.Fatalf("%s is not finished:\n%s", id, progress)
		return analysislock.Analysis{}
	}
	for _, id := range ids {
		if d := finished(id); id != "killer" && d.Status != analysislock.Ready {
			t.Errorf("%s is %s, %+v, after %d attempts; want READY", id, d.Status, d.Error, d.Attempts)
		}
	}
	if d := finished("killer"); d.Status != analysislock.Failed || d.Error.Code != analysislock.Crashed || d.Attempts > 4 {
		t.Errorf("the killer is %s, %+v, after %d attempts", d.Status, d.Error, d.Attempts)
	}
	taskguard(t, env, "status", "killer").want(t, cli.ExitDone, "FAILED", "crashed", "alone")
	taskguard(t, env, "status", "--code", "crashed").want(t, cli.ExitDone, "killer")
}

// killWorker kills the process of worker 1.
func killWorker(t *testing.T, progress *emulatortest.Log) {
	t.Helper()
	progress.Await(t, "at once, as MAX_RUNS is") // after the workers
	_, after, _ := strings.Cut(progress.String(), "worker 1 serves")
	_, after, _ = strings.Cut(after, "process ")
	pid := must(strconv.Atoi(strings.Fields(after)[0]))(t)
	worker := must(os.FindProcess(pid))(t)
	check(t, worker.Kill())
}

func TestLocalNamesMisspeltVariablesAndThePortThatIsTaken(t *testing.T) {
	for _, name := range []string{
		"MAX_RUN", "LOCK_TLT", "ANALYSER", "lock_ttl", "DOCUMENT_LOCK_TTLS",
		"MAX_RUNS", "MAX_RUN_TIME", "POST", "LOCALE", "PUBSUB_EMULATOR_HOST", "SESSION_MANAGER", // these are not misspelt
	} {
		t.Setenv(name, "3")
	}
	l := listen(t)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	check(t, err)
	o := taskguard(t, vars{}, "local", "--port", port).want(t, cli.ExitFailed,
		"the embedded Firestore: listen tcp 127.0.0.1:"+port+": ", "; --port chooses another port",
		"taskguard local: the variable MAX_RUN is not read: did you mean MAX_RUNS?\n", " LOCK_TLT is not read: did you mean LOCK_TTL?\n",
		" ANALYSER is not read: did you mean ANALYZER?\n", " lock_ttl is not read: did you mean LOCK_TTL?\n",
		" DOCUMENT_LOCK_TTLS is not read: did you mean DOCUMENT_LOCK_TTL?\n")
	if lines := strings.Count(o.err, "\n"); lines != 6 {
		t.Errorf("%d lines, want 6: %s", lines, o.err)
	}
	alone := vars{"GOOGLE_CLOUD_PROJECT": "p", "FIRESTORE_EMULATOR_HOST": "127.0.0.1:1", "TASK_AUTH": "none", "PORT": port}
	taskguard(t, alone, "worker").want(t, cli.ExitFailed, "taskguard worker: listen tcp 127.0.0.1:"+port+": ", "; PORT chooses another port").wantOneErrorLine(t)
}

func TestLocalAndDemoCheckTheDirectoryOfTheLogsFirst(t *testing.T) {
	file, occupied := write(t, "file", ""), t.TempDir()
	check(t, os.Mkdir(filepath.Join(occupied, "worker-1.jsonl"), 0o700))
	for _, command := range []string{"local", "demo"} {
		for _, logs := range []string{file, occupied} {
			taskguard(t, vars{}, command, "--logs", logs).want(t, cli.ExitFailed, "--logs: ", logs).wantOneErrorLine(t)
		}
	}
}

// A terminal sends Ctrl-C to local and its workers. The first lets the workers end their runs, which a program
// notes. A second one does not wait for them.
func TestLocalStopsItsWorkersAfterCtrlCAndEndsAtOnceAfterAnother(t *testing.T) {
	for name, again := range map[string]bool{"Ctrl-C": false, "twice": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			notes := filepath.Join(t.TempDir(), "notes")
			analyzer := write(t, "slow.sh", "trap 'echo TERM >>"+notes+"; [ "+strconv.FormatBool(again)+" = true ] || exit 1' TERM\n"+
				`echo "$PPID" >`+notes+`; while :; do sleep 0.1; done`)
			lines, out := make(firstLine, 1), &emulatortest.Log{}
			cmd := exec.CommandContext(t.Context(), must(os.Executable())(t), "local", "--port", "0", "--json", "--workers", "1")
			cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = &syscall.SysProcAttr{Setpgid: true}, lines, out
			cmd.Env = append(os.Environ(), "ANALYZER=exec:/bin/sh "+analyzer)
			check(t, cmd.Start())
			env := vars{}
			for name, value := range wantKeys(t, <-lines, "environment", "console")["environment"].(map[string]any) {
				env[name] = value.(string)
			}
			taskguard(t, env, "submit", "--input", `{}`, "--id", "x").want(t, cli.ExitDone)
			noted := func() string { text, _ := os.ReadFile(notes); return string(text) } // missing: nothing
			eventually(t, "the program runs", func() bool { return strings.Contains(noted(), "\n") })
			worker := must(strconv.Atoi(strings.TrimSpace(noted())))(t)

			check(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGINT))
			eventually(t, "the program is told", func() bool { return strings.Contains(noted(), "TERM\n") })
			if again {
				check(t, cmd.Process.Signal(syscall.SIGINT))
			}
			_ = cmd.Wait() // its state is checked
			state := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if state.Exited() == again || state.ExitStatus() > 0 || again && state.Signal() != syscall.SIGINT {
				t.Errorf("%v\n%s", cmd.ProcessState, out)
			}
			eventually(t, "the worker has ended", func() bool { return !alive(worker) })
		})
	}
}
