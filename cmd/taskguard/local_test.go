package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/cmd/internal/workerservice"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease/analysislock"
)

// One local cloud serves all these, as starting it takes a second.
func TestLocal(t *testing.T) {
	t.Parallel()
	logs := filepath.Join(t.TempDir(), "new", "logs")
	settings := vars{"ANALYSES_COLLECTION": "analyses", "RUN_TIMEOUT": "40s", "LOG_LEVEL": "info"}
	env, progress := localCloud(t, settings, "--documents", "--logs", logs)
	each := max(1, runtime.GOMAXPROCS(0)/2)
	progress.Await(t, fmt.Sprintf("at most %d runs at once, as MAX_RUNS is %d\n", 2*each, each))

	const submitted = "id name created booked status "
	t.Run("submit follows analyses to their end and is idempotent", func(t *testing.T) {
		text, binary := write(t, "some text.md", "one two\ntwo\n"), write(t, "data.bin", "\xff\x00")
		o := taskguard(t, env, "submit --json --wait", text, binary).done(t, `"words":3`, `"bytes":2`)
		for _, object := range o.objects(t) {
			wantKeys(t, object, submitted+"result")
			wantValues(t, object, doc{"created": true, "booked": "now", "status": "READY"})
		}
		object := taskguard(t, env, "submit --json", text).done(t).object(t)
		wantValues(t, wantKeys(t, object, submitted), doc{"created": false, "booked": "not_needed", "status": "READY"})
		id := object["id"].(string)
		if !strings.HasPrefix(id, "some-text-md-") {
			t.Errorf("the id is %s", id)
		}
		taskguard(t, env, "submit", text).done(t, id, "exists already, READY")
		taskguard(t, env, "submit --wait", text).done(t, id, `READY {"bytes":12,`)
	})
	t.Run("its workers also write their log as Cloud Logging gets it", func(t *testing.T) {
		lines := ""
		for _, worker := range []string{"1", "2"} {
			lines += string(must.Get(os.ReadFile(filepath.Join(logs, "worker-"+worker+".jsonl")))(t))
		}
		if n := strings.Count(lines, `"severity":"INFO","message":"serving"`); n != 2 {
			t.Errorf("%d workers serve, want 2: %s", n, lines)
		}
		outcome{out: lines}.done(t, `"outcome":"ready"`, `"analysis_id":"some-text-md-`).
			lacks(t, `"message":"run begins"`) // a line for the parent
	})
	t.Run("doctor submits one and waits for it", func(t *testing.T) {
		const smoke = `doctor --smoke {"text":"x"}`
		taskguard(t, env, smoke).done(t, "READY\n", "not checked")
		taskguard(t, env, "doctor --smoke {}").fails(t, "1 of 1 FAILED")
		taskguard(t, env, "doctor --smoke {").refused(t, "JSON")
		taskguard(t, env, "doctor --smoke {} --json").refused(t, "--json")
		taskguard(t, env, smoke+" --indexes "+indexes).done(t, "no problem", "READY\n")
		taskguard(t, env, smoke+" --indexes "+write(t, "none.json", "{}")).fails(t, "index-missing")
	})
	t.Run("submit of an analysis that fails exits 1", func(t *testing.T) {
		const line = "submit --input {} --id fails --wait"
		object := taskguard(t, env, line+" --json").fails(t).object(t)
		wantValues(t, wantKeys(t, object, submitted+"error"), doc{"status": "FAILED"})
		wantValues(t, object["error"].(doc), doc{"code": "invalid_input"})
		taskguard(t, env, line).fails(t, "FAILED invalid_input: ", "1 of 1 FAILED")
	})
	t.Run("the workers refuse calls without a token", func(t *testing.T) {
		for _, route := range []string{"analysis", "recover"} {
			url := env["TASK_TARGET_URL"] + "/internal/tasks/" + route
			browse(t, http.MethodPost, url, `{"analysis_id":"x"}`).want(t, http.StatusUnauthorized)
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
		if got := received(t, due); got <= fmt.Sprintf("%d.000000", at.Unix()) {
			t.Errorf("the retry is due at %s, want a random time after %d", got, at.Unix())
		}
	})
	t.Run("it serves the document lock's page and the console", func(t *testing.T) {
		for _, page := range []string{env["doclock"], env["console"]} {
			browse(t, http.MethodGet, page, "").want(t, http.StatusOK, "<html")
		}
	})
	t.Run("a worker takes what it exports", func(t *testing.T) {
		o := must.Get(workerservice.ParseConfig(env.with("TASK_AUTH", "none").lookup))(t).Options
		exported := fmt.Sprint(o.Queue.Caller, " ", o.RunTimeout, " ", o.Collection, env["LOG_LEVEL"])
		if want := caller + " 40s analyses"; exported != want {
			t.Errorf("%s, want %s", exported, want)
		}
	})
}

// What becomes of analyses is printed: what their programs write, why they fail, that another run continues one.
// Recovery, which local calls with a token, finds one without a task. A worker that dies is replaced.
func TestLocal_Progress(t *testing.T) {
	t.Parallel()
	env, progress := localCloud(t, vars{
		"ANALYZER": "exec:" + script(t, `case "$(cat)" in
			*'"checkpoint"'*) exec sleep 60;;
			*long*) echo '{"progress":0.23,"checkpoint":1}' >&3; echo 1 >&3; exec sleep 60;;
			*no*) echo first$TASKGUARD_TEST_AS_PROGRAM >&2; printf last >&2; exit 65;;
			*later*) exit 3;;
			esac; sleep 0.3; echo 0`),
		"ANALYZER_ENV": asProgram, "MAX_RUNS": "1", "LOCK_TTL": "3s", "CHECKPOINT_INTERVAL": "1s",
	}, "--workers", "1", "--recover-every", "100ms")
	submit := func(id, input string) { taskguard(t, env, "submit --id "+id+" --input "+input).done(t) }
	for i := range 3 { // more than the worker takes
		submit(fmt.Sprint("y", i), "{}")
	}
	create(t, analyses(t, env), "orphan")
	submit("no", `"no"`)
	submit("later", `"later"`)
	wantParts(t, progress, "y0: worker 1 answered 200 READY", "y1: worker 1 answered 200 READY",
		"y2: worker 1 answered 200 READY", "recovery found 1 orphaned", "orphan: worker 1 answered 200 READY",
		"no stderr: first1\n", "no stderr: last\n", "no: worker 1 answered 200 FAILED: first1",
		" retry: analyzer ended with exit status 3", "; next delivery in ")
	for _, never := range []string{" busy", "enqueued 0"} {
		if strings.Contains(progress.String(), never) {
			t.Errorf("%q in\n%s", never, progress)
		}
	}

	submit("x", `"long"`)
	wantParts(t, progress, "x runs on worker 1, token 1\n", "x: a report is ignored: ")
	eventually(t, "a checkpoint", func() bool { return fieldsOf(t, env, "x")["checkpoint"] != nil })
	_, after, _ := strings.Cut(progress.String(), "worker 1 serves")
	_, after, _ = strings.Cut(after, "process ")
	must.OK(t, syscall.Kill(must.Get(strconv.Atoi(strings.Fields(after)[0]))(t), syscall.SIGKILL))
	wantParts(t, progress, "recovery: ", "worker 1 ended; it serves again", "x continues on worker 1, token ")
	taskguard(t, env, "cancel x").done(t)
	wantParts(t, progress, "x: worker 1 answered 200 lock_lost\n")
}

// An input that kills its worker, among three that do not: these are READY, and it is FAILED and named.
func TestLocal_Killer(t *testing.T) {
	t.Parallel()
	analyzer := script(t, `case "$(cat)" in *kill*) sleep 0.5; kill -9 $PPID; exit 1;; esac; sleep 2; echo '"done"'`)
	settings := vars{"ANALYZER": "exec:" + analyzer, "LOCK_TTL": "3s", "MAX_RUNS": "10"}
	env, progress := localCloud(t, settings, "--workers", "1", "--recover-every", "1s")
	submit := func(id, input string) { taskguard(t, env, "submit --input "+input+" --id "+id).done(t) }
	for i := range 3 {
		if i == 2 {
			submit("killer", `"kill"`)
		}
		submit(fmt.Sprint("innocent", i), `"innocent"`)
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
	for i := range 3 {
		if d := finished(fmt.Sprint("innocent", i)); d.Status != analysislock.Ready {
			t.Errorf("%s is %s, %+v, after %d attempts; want READY", d.ID, d.Status, d.Error, d.Attempts)
		}
	}
	killer := finished("killer")
	if killer.Error == nil || killer.Error.Code != analysislock.Crashed {
		t.Fatalf("the killer is %s, %+v", killer.Status, killer.Error)
	}
	if killer.Attempts > 4 {
		t.Errorf("the killer has had %d attempts", killer.Attempts)
	}
	taskguard(t, env, "status killer").done(t, "alone")
	taskguard(t, env, "status --code crashed").done(t, "killer")
}

func TestLocal_Refused(t *testing.T) {
	t.Run("misspelt variables and the port that is taken are named", func(t *testing.T) {
		misspelt := map[string]string{
			"MAX_RUN": "MAX_RUNS", "LOCK_TLT": "LOCK_TTL", "ANALYSER": "ANALYZER", "lock_ttl": "LOCK_TTL",
			"DOCUMENT_LOCK_TTLS": "DOCUMENT_LOCK_TTL",
		}
		for name := range misspelt {
			t.Setenv(name, "3")
		}
		for _, name := range []string{"MAX_RUNS", "MAX_RUN_TIME", "POST", "LOCALE", "SESSION_MANAGER"} { // others
			t.Setenv(name, "3")
		}
		l := listen(t)
		defer l.Close()
		port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
		o := taskguard(t, vars{}, "local --port "+port).fails(t, port, "--port")
		for name, meant := range misspelt {
			o.fails(t, name+" is not read: its name may be misspelt; did you mean "+meant+"?")
		}
		if n := strings.Count(o.err, "\n"); n != len(misspelt)+1 {
			t.Errorf("%d lines: %s", n, o.err)
		}
		alone := emulated("127.0.0.1:1").with("TASK_AUTH", "none").with("PORT", port)
		taskguard(t, alone, "worker").fails(t, port, "PORT").wantOneErrorLine(t)
	})
	t.Run("the directory of the logs is checked first", func(t *testing.T) {
		file, occupied := write(t, "file", ""), t.TempDir()
		must.OK(t, os.Mkdir(filepath.Join(occupied, "worker-1.jsonl"), 0o700))
		for _, logs := range []string{file, occupied} {
			for _, command := range []string{"local", "demo"} {
				taskguard(t, vars{}, command+" --logs "+logs).fails(t, "--logs", logs).wantOneErrorLine(t)
			}
		}
	})
}

// A terminal sends Ctrl-C to local and its workers. The first lets the workers end their runs, which a program
// notes. A second one does not wait for them.
func TestLocal_Interrupt(t *testing.T) {
	for name, again := range map[string]bool{"Ctrl-C": false, "twice": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			notes := filepath.Join(t.TempDir(), "notes")
			analyzer := script(t, fmt.Sprintf(`trap 'echo TERM >>%s; [ %t = true ] || exit 1' TERM
				echo "$PPID" >%[1]s; while :; do sleep 0.1; done`, notes, again))
			lines, out := make(firstLine, 1), &emulatortest.Log{}
			args := []string{"local", "--port", "0", "--json", "--workers", "1"}
			cmd := exec.CommandContext(t.Context(), must.Get(os.Executable())(t), args...)
			cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = &syscall.SysProcAttr{Setpgid: true}, lines, out
			cmd.Env = append(os.Environ(), "ANALYZER=exec:"+analyzer)
			must.OK(t, cmd.Start())
			taskguard(t, exportsOf(t, received(t, lines)), "submit --input {} --id x").done(t)
			begun(t, notes, 1)
			worker := must.Get(strconv.Atoi(strings.TrimSpace(string(must.Get(os.ReadFile(notes))(t)))))(t)

			must.OK(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGINT))
			begun(t, notes, 2) // the program is told
			want := "exit status 0"
			if again {
				want = "signal: interrupt"
				must.OK(t, cmd.Process.Signal(syscall.SIGINT))
			}
			_ = cmd.Wait() // its state is checked
			if got := cmd.ProcessState.String(); got != want {
				t.Errorf("%s, want %s\n%s", got, want, out)
			}
			eventually(t, "the worker has ended", func() bool { return !alive(worker) })
		})
	}
}
