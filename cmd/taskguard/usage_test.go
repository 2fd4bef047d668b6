package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
)

// What is named stands in the one line that is printed.
func TestWrongUsage(t *testing.T) {
	for named, lines := range map[string][]string{
		"requeue?":                 {"requeu --help", "requeu --status FAILED", "help requeu"},
		"help?":                    {"hlp"}, // no suggestion of cobra's
		"flags follow the command": {"--frob"},
		"--since?":                 {"status --sin 1h"},
		"--dry-run?":               {"requeue -dry-run=true"}, // as taskguard once wrote its flags
		"argument: --limit":        {"status --limit"},
		"a whole number":           {"status --limit many"},
		"a number":                 {"requeue --rate fast"},
		"a duration":               {"local --recover-every soon", "status --since soon"},
		"true or false":            {"status --json=maybe"},
		`"csh"`:                    {"completion csh"},
		`"b"`:                      {"status a b", "status --json=false -- a b"},
		"GOOGLE_CLOUD_PROJECT":     {"status -- --json"}, // --json is an id
		"slash":                    {"status a/b", "cancel a b/c"},
		"--id":                     {"submit a --id a/b", "submit a b --id x"},
		"FILE":                     {"submit"},
		"--input":                  {"submit --input= x", "submit --input {"},
		"input[0]":                 {"submit --input [[1]]"},
		"--limit":                  {"status --limit 0", "console --limit 201"},
		"exclude":                  {"status --abandoned --summary", "status x --code c"},
		"QUEUED":                   {"status --status UNKNOWN"},
		"FAILED?":                  {"requeue --status failed"},
		"--scope":                  {"status --idempotency-key k"},
		"--idempotency-key": {
			"status --scope a", "status --operation o", "status --idempotency-key k,k --scope a",
		},
		"--kind":                          {"status --kind do --idempotency-key k --scope a"},
		"--room":                          {"unlock a --room b"},
		"ID":                              {"unlock --room=", "delete"},
		"IDs or a filter":                 {"cancel", "requeue x --status FAILED"},
		"--dry-run, --rate and --running": {"requeue x --dry-run", "cancel x --rate 1", "cancel x --running"},
		"--status":                        {"requeue --status="},
		"--code":                          {"status --code \xff"},
		"--message":                       {"cancel --message="},
		"--since":                         {"cancel --since="},
		"--rate": {
			"requeue --since 1h --rate 0", "requeue --since 1h --rate 1001", "cancel --since 1h --rate NaN",
		},
		"65530":           {"local --port 65531"},
		"65533":           {"emulator --port -1"},
		"65535":           {"console --port 65536"},
		"--queue":         {"emulator --port 0 --queue q"},
		"--target":        {"emulator --port 0 --target h:1"},
		"--logs":          {"local --logs=", "demo --logs="},
		"--workers":       {"local --workers 0"},
		"--recover-every": {"local --recover-every 0s"},
		"--iap-audience":  {"console --listen ::", "console --iap-audience="},
		"--listen":        {"console --listen example.com"},
		"argument":        {"hold --project p --"},
		"--project":       {"hold -- true"},
		"--frob":          {"hold --project p --frob -- true"},
		"--ttl":           {"hold --project p --ttl 1ms true"},
		"--wait":          {"hold --project p --wait -1s x"},
	} {
		for _, line := range lines {
			t.Run(line, func(t *testing.T) {
				taskguard(t, vars{}, line).refused(t, named).wantOneErrorLine(t)
			})
		}
	}
	t.Run("a library for flags prints nothing of its own to the process's standard error", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), must.Get(os.Executable())(t), "status", "--frob")
		cmd.Args[0] = "bin/taskguard"  // as one types it, and can paste it
		out, _ := cmd.CombinedOutput() // its error is the exit code
		got := outcome{cmd.ProcessState.ExitCode(), "", string(out)}
		got.refused(t, "(see: bin/taskguard help status)").wantOneErrorLine(t)
	})
}

// emulated is an environment on emulators at address, with all that a command needs.
func emulated(address string) vars {
	return vars{
		"GOOGLE_CLOUD_PROJECT": "p", "TASK_QUEUE": queueName, "TASK_TARGET_URL": "http://127.0.0.1:1",
		"FIRESTORE_EMULATOR_HOST": address, "CLOUD_TASKS_EMULATOR_HOST": address,
	}
}

func TestWrongEnvironment(t *testing.T) {
	env := emulated("127.0.0.1:1")
	noQueue := env.without("TASK_QUEUE", "TASK_TARGET_URL", "CLOUD_TASKS_EMULATOR_HOST")
	google := env.without("FIRESTORE_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST")
	for name, tc := range map[string]struct {
		env         vars
		line, named string
	}{
		"no project":            {env.without("GOOGLE_CLOUD_PROJECT"), "status", "GOOGLE_CLOUD_PROJECT"},
		"no exports":            {vars{}, "unlock --room a", "GOOGLE_CLOUD_PROJECT: must be set; to try"},
		"a document's path":     {env.with("ANALYSES_COLLECTION", "a/b"), "status", "ANALYSES_COLLECTION"},
		"a rooms' path":         {env.with("DOCUMENT_LOCKS_COLLECTION", "a/b"), "unlock --room a", "DOCUMENT_LOCKS_"},
		"no queue to submit to": {noQueue, "submit main.go", "TASK_QUEUE"},
		"nothing to book with":  {noQueue, "recover", "TASK_QUEUE"},
		"no caller":             {google, "unlock x", "TASK_CALLER"},
		"a run over 30 min":     {env.with("RUN_TIMEOUT", "31m"), "submit main.go", "RUN_TIMEOUT"},
		"a bad TTL":             {env.with("LOCK_TTL", "5"), "recover", "LOCK_TTL"},
		"a bad port":            {env.with("PORT", "http"), "console --listen 127.0.0.1", "PORT"},
		"a short retention":     {env.with("KEEP_FINISHED", "767h"), "cancel x", "KEEP_FINISHED"},
		"local: an analyzer":    {vars{"ANALYZER": "magic:x"}, "local --port 0", "ANALYZER"},
		"local: its locks":      {vars{"LOCKS_PER_SESSION": "0"}, "local --documents --port 0", "LOCKS_PER_SESSION"},
		"a worker without auth": {vars{"GOOGLE_CLOUD_PROJECT": "p"}, "worker", "TASK_AUTH"},
	} {
		t.Run(name, func(t *testing.T) {
			taskguard(t, tc.env, tc.line).refused(t, tc.named).wantOneErrorLine(t)
		})
	}
	for missing, lines := range map[string][]string{
		"FIRESTORE_EMULATOR_HOST": {
			"status", "unlock --room a", "console", "doctor --smoke {}", "hold --project p -- true", "run x",
			"resolve x a --not-done", "restore --min-token now",
		},
		"CLOUD_TASKS_EMULATOR_HOST": {"submit main.go", "unlock x", "console", "doctor --smoke {}", "run x"},
	} {
		for _, line := range lines {
			t.Run("one emulator alone: "+line, func(t *testing.T) {
				half := env.with("ANALYZER", "builtin:document").without(missing)
				taskguard(t, half, line).refused(t, missing+": must be set too").wantOneErrorLine(t)
			})
		}
	}
}

func TestServerRefusals(t *testing.T) {
	t.Parallel()
	t.Run("a dead emulator is named with its variable", func(t *testing.T) {
		dead := closedPort(t)
		env := emulated(dead)
		for _, line := range []string{"status", "submit main.go", "unlock --room x", "console --port 0"} {
			o := taskguard(t, env, line).fails(t, dead, "FIRESTORE_EMULATOR_HOST")
			o.wantOneErrorLine(t)
		}
		env["FIRESTORE_EMULATOR_HOST"] = store(t)["FIRESTORE_EMULATOR_HOST"]
		taskguard(t, env, "requeue x").fails(t, dead, "CLOUD_TASKS_EMULATOR_HOST")
	})

	t.Run("what Firestore refuses fails", func(t *testing.T) {
		l := listen(t)
		refuse := func(any, grpc.ServerStream) error { return status.Error(codes.PermissionDenied, "no") }
		refusing := grpc.NewServer(grpc.UnknownServiceHandler(refuse))
		var serving sync.WaitGroup
		serving.Go(func() { _ = refusing.Serve(l) })
		t.Cleanup(func() { refusing.Stop(); serving.Wait() })
		for _, line := range []string{
			"status", "status x", "status --unfinished", "status --summary", "status --since 1h", "cancel --since 1h",
			"recover", "restore --min-token now", "submit --input {}", "doctor --smoke {}",
		} {
			taskguard(t, emulated(l.Addr().String()), line).fails(t, "PermissionDenied")
		}
	})
}

// closedWriter is a Writer that fails.
type closedWriter struct{}

func (closedWriter) Write([]byte) (int, error) { return 0, errors.New("closed") }

func TestLostOutput(t *testing.T) {
	q := newQueue(t)
	create(t, analyses(t, q.env), "x")
	env := q.env.with("ANALYZER", "exec:"+script(t, "echo 1"))
	for line, named := range map[string]string{
		"help": "", "status": "", "status -h": "",
		"run x": "x is READY", // whoever sees exit 1 must not think that the run failed
	} {
		var errs emulatortest.Log
		streams := cli.Streams{In: strings.NewReader(""), Out: closedWriter{}, Err: &errs}
		outcome{cli.Run(t.Context(), commands(), strings.Fields(line), streams, env.lookup), "", errs.String()}.
			fails(t, "closed", named)
	}
}

func TestFiles(t *testing.T) {
	dir, big := t.TempDir(), strings.Repeat("x", 1<<20)
	pipe := filepath.Join(dir, "pipe")
	must.OK(t, syscall.Mkfifo(pipe, 0o600))
	for file, named := range map[string]string{
		pipe:                                     "not a regular file",
		dir:                                      "not a regular file",
		"/dev/zero":                              "not a regular file",
		write(t, "large", big):                   "983040", // which a document cannot hold
		write(t, "binary", "\xff"+big[:800_000]): "base64",
		filepath.Join("no", "such"):              filepath.Join("no", "such"),
		"a\x1b[2Jb":                              `a\x1b[2Jb`,
	} {
		for _, command := range []string{"submit", "demo"} {
			taskguard(t, vars{}, command, file).fails(t, named).wantOneErrorLine(t)
		}
	}
}
