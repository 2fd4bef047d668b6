package main

import (
	"errors"
	"maps"
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
)

func TestWrongUsageExits2WithOneLineAndAHint(t *testing.T) {
	for args, want := range map[string]string{
		"frobnicate":                             `taskguard: no command "frobnicate" (see: taskguard help)`,
		"status --frob":                          "taskguard status: unknown flag --frob (see: taskguard help status)",
		"--frob":                                 "taskguard: unknown flag --frob; flags follow the command (see: taskguard help)",
		"requeu --status FAILED":                 `taskguard: no command "requeu"; did you mean requeue? (see`,
		"requeu --help":                          `taskguard: no command "requeu"; did you mean requeue? (see`,
		"help requeu":                            `taskguard: no command "requeu"; did you mean requeue? (see: taskguard help)`,
		"hel":                                    `taskguard: no command "hel"; did you mean help? (see: taskguard help)`,
		"hlp":                                    `taskguard: no command "hlp"; did you mean help? (see`,
		"evn":                                    `taskguard: no command "evn"; did you mean env? (see`,
		"status --sin 1h":                        "unknown flag --sin; did you mean --since?",
		"requeue --dry-rum":                      "unknown flag --dry-rum; did you mean --dry-run?",
		"requeue -dry-run":                       "unknown flag -dry-run; did you mean --dry-run?",
		"requeue -dry-run=true":                  "unknown flag -dry-run; did you mean --dry-run?",
		"status --limit":                         "flag needs an argument: --limit",
		"status --limit many":                    `--limit "many": want a whole number`,
		"requeue --rate fast":                    `--rate "fast": want a number (`,
		"local --recover-every soon":             `--recover-every "soon": want a duration such as 90s or 5m`,
		"status --json=maybe":                    `--json "maybe": want true or false`,
		"status --since soon":                    `--since "soon": want a duration such as 90m or 2d, or a time`,
		"completion csh":                         `unknown shell "csh": want bash, zsh or fish`,
		"status a b":                             `taskguard status: unexpected argument "b"`,
		"status --limit 0":                       "--limit must be at least 1",
		"status --summary --since 1h":            "exclude each other",
		"status x --unfinished":                  "an ID, --idempotency-key, --unfinished, --uncertain, --abandoned, --summary and a filter exclude each other",
		"status --idempotency-key k":             "--idempotency-key needs --scope",
		"status --scope a":                       "need --idempotency-key",
		"status --operation o":                   "need --idempotency-key",
		"status x --idempotency-key k --scope a": "exclude each other",
		"status --kind do --idempotency-key k --scope a": "--idempotency-key and --kind exclude each other",
		"status --idempotency-key k,k --scope a":         `--idempotency-key: the Idempotency-Key "k,k" is no quoted string`,
		"submit":                                         "taskguard submit: missing argument: want FILE… | --input JSON",
		"submit main.go --input {}":                      "--input and files exclude each other",
		"submit a b --id x":                              "--id is for one analysis",
		"submit a --id a/b":                              "taskguard submit: --id: the analysis id has a slash",
		"submit --input {":                               "--input: it is not JSON",
		"submit --input [[1]]":                           "--input: input[0]",
		"submit --input= x":                              "--input and files exclude each other",
		`submit --input {"a":{"b":1e400}}`:               "--input: input.a.b is a number",
		"status a/b":                                     "taskguard status: the analysis id has a slash (see",
		"requeue __x__":                                  "taskguard requeue: the analysis id is reserved",
		"requeue --fresh a/b":                            "taskguard requeue: the analysis id has a slash",
		"unlock --frob":                                  "unknown flag --frob (",
		"delete --frob x":                                "unknown flag --frob (",
		"restore --frob":                                 "unknown flag --frob (",
		"recover --frob":                                 "unknown flag --frob (",
		"version --frob":                                 "unknown flag --frob (",
		"console --frob":                                 "unknown flag --frob (",
		"doctor --frob":                                  "unknown flag --frob (",
		"requeue --fresh":                                "taskguard requeue: want either IDs or a filter",
		"cancel":                                         "taskguard cancel: want either IDs or a filter",
		"cancel a b/c":                                   "taskguard cancel: the analysis id has a slash",
		"cancel --fresh a":                               "unknown flag --fresh (",
		"unlock":                                         "taskguard unlock: missing argument: want ID",
		"unlock a --room b":                              "an ID and --room exclude each other",
		"unlock --room=":                                 "missing argument: want ID",
		"local --port 65531":                             "--port 65531: want 0 to 65530",
		"emulator --port -1":                             "--port -1: want 0 to 65533",
		"console --port 65536":                           "--port 65536: want 0 to 65535",
		"emulator --port 0 --queue q":                    "--queue or TASK_QUEUE: queue.name: want projects/",
		"emulator --port 0 --target h:1":                 `--target: "h:1" is not an http or https URL`,
		"emulator x":                                     "unexpected argument",
		"local --logs=":                                  "--logs must name a directory",
		"demo --logs=":                                   "--logs must name a directory",
		"local --workers 0":                              "--workers",
		"local --recover-every 0s":                       "--recover-every",
		"status -- --json":                               "GOOGLE_CLOUD_PROJECT",
		"status --json=false -- a -b":                    `unexpected argument "-b"`,
		"console --listen 0.0.0.0":                       "it needs --iap-audience",
		"console --listen 10.0.0.1":                      "it needs --iap-audience",
		"console --listen :: --write":                    "it needs --iap-audience",
		"console --listen example.com":                   "want an IP address",
		"console --limit 201":                            "--limit 201: want 1 to 200",
		"console --iap-audience=":                        "--iap-audience is empty",
		"hold --project p":                               "taskguard hold: missing argument",
		"hold --project p --":                            "missing argument",
		"hold -- true":                                   "--project",
		"hold --project p --frob -- true":                "-frob",
		"hold --project p --ttl 10ms true":               "--ttl",
		"hold --project p --wait -1s true":               "--wait",
		"cancel --status FAILD":                          `unknown status "FAILD": want QUEUED, PROCESSING, READY or FAILED (did you mean FAILED?)`,
		"requeue --status failed":                        "(did you mean FAILED?)",
		"status --status UNKNOWN":                        `unknown status "UNKNOWN": want QUEUED, PROCESSING, READY or FAILED (see`,
		"status --abandoned --summary":                   "exclude each other",
	} {
		t.Run(args, func(t *testing.T) {
			taskguard(t, vars{}, strings.Fields(args)...).want(t, cli.ExitUsage, want).wantOneErrorLine(t)
		})
	}
	// A library for flags might print to the standard error of a process.
	if out, err := exec.Command(must(os.Executable())(t), "status", "--frob").CombinedOutput(); err == nil || strings.Count(string(out), "\n") != 1 {
		t.Errorf("%v: %s", err, out)
	}
}

func TestCompletionDescribesAFlagWithoutBackquotes(t *testing.T) {
	taskguard(t, vars{}, "__complete", "requeue", "--co").want(t, cli.ExitDone, "--code\tfilter: with this CODE of the error")
}

func TestHelpListsCommandsTheirFlagsAndVariables(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"--help"}, {"help", "help"}} {
		o := taskguard(t, vars{}, args...).want(t, cli.ExitDone, "\nExit codes: 0 done, 1 refused or failed")
		for _, c := range commands() {
			if cmd := c(vars{}.lookup); strings.Contains(o.out, "\n  "+cmd.Name()+" ") == cmd.Hidden {
				t.Errorf("%q lists %s: %t, want %t", args, cmd.Name(), cmd.Hidden, !cmd.Hidden)
			}
		}
	}
	if o := taskguard(t, vars{}).want(t, cli.ExitUsage, "\nExit codes: 0 done, 1 refused or failed"); o.out != "" {
		t.Errorf("without a command, standard output has %s", o.out)
	}
	for command, parts := range map[string][]string{
		"submit": {" --wait ", "TASK_QUEUE"}, "requeue": {" --fresh ", "delete the checkpoint", "TASK_QUEUE"}, "cancel": {"FAILED", "ID…"},
		"delete": {" --kind NAME "}, "restore": {" --kind NAME "}, "status": {" --limit ", "FIRESTORE_EMULATOR_HOST"},
	} {
		o := taskguard(t, vars{}, "help", command).want(t, cli.ExitDone, parts...)
		if command == "cancel" && strings.Contains(o.out, "TASK_QUEUE") {
			t.Errorf("cancel books nothing:\n%s", o.out)
		}
	}
	_, release, _ := strings.Cut(string(must(os.ReadFile("../../CHANGELOG.md"))(t)), "\n## ")
	release = strings.Fields(release)[0]
	taskguard(t, vars{}, "-v").want(t, cli.ExitDone, "taskguard "+release+", ", ", go1.")
	wantKeys(t, taskguard(t, vars{}, "version", "--json").want(t, cli.ExitDone, `"version":"`+release+`"`).out, "version", "commit", "go")
}

func TestAWrongEnvironmentNamesTheVariableAndExits2(t *testing.T) {
	env := vars{
		"GOOGLE_CLOUD_PROJECT": "p", "FIRESTORE_EMULATOR_HOST": "127.0.0.1:1", "TASK_QUEUE": queueName,
		"TASK_TARGET_URL": "http://127.0.0.1:1", "CLOUD_TASKS_EMULATOR_HOST": "127.0.0.1:1",
	}
	noQueue := env.without("TASK_QUEUE", "TASK_TARGET_URL", "CLOUD_TASKS_EMULATOR_HOST")
	for name, tc := range map[string]struct {
		env  vars
		args string
		want string
	}{
		"no project":            {env.without("GOOGLE_CLOUD_PROJECT"), "status", "GOOGLE_CLOUD_PROJECT: must be set"},
		"no exports":            {vars{}, "status", "GOOGLE_CLOUD_PROJECT: must be set; to try taskguard here, start `taskguard local`"},
		"no project for rooms":  {vars{}, "unlock --room a", "GOOGLE_CLOUD_PROJECT: must be set; to try taskguard here, start `taskguard local`"},
		"no project for hold":   {vars{"FIRESTORE_EMULATOR_HOST": "127.0.0.1:1"}, "hold --project p -- true", "GOOGLE_CLOUD_PROJECT: must be set"},
		"a document's path":     {env.with("ANALYSES_COLLECTION", "a/b"), "status", "ANALYSES_COLLECTION: "},
		"a rooms' path":         {noQueue.with("DOCUMENT_LOCKS_COLLECTION", "a/b").without("FIRESTORE_EMULATOR_HOST"), "unlock --room a", "DOCUMENT_LOCKS_COLLECTION: "},
		"no queue to submit to": {noQueue, "submit main.go", "TASK_QUEUE: must be set"},
		"nothing to book with":  {noQueue, "recover", "TASK_QUEUE: must be set"},
		"no caller":             {env.without("FIRESTORE_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST"), "unlock x", "TASK_CALLER: must be set"},
		"a bad TTL to recover":  {env.with("LOCK_TTL", "5"), "recover", "LOCK_TTL: \"5\" is not a positive duration"},
		"a bad port":            {env.with("PORT", "http"), "console --listen 127.0.0.1", "PORT: \"http\" is not a number"},
		"an emulator's URL":     {env.with("FIRESTORE_EMULATOR_HOST", "http://127.0.0.1:1"), "status", "FIRESTORE_EMULATOR_HOST: \"http://127.0.0.1:1\" is not host:port; remove the scheme: 127.0.0.1:1"},
		"a path for local":      {vars{"ANALYSES_COLLECTION": "a/b"}, "local --port 0", "ANALYSES_COLLECTION: "},
		"a bad analyzer":        {vars{"ANALYZER": "magic:x"}, "local --port 0", "ANALYZER: "},
		"a bad document TTL":    {vars{"DOCUMENT_LOCK_TTL": "soon"}, "local --documents --port 0", "DOCUMENT_LOCK_TTL: "},
		"its locks":             {vars{"LOCKS_PER_SESSION": "0"}, "local --documents --port 0", "LOCKS_PER_SESSION: "},
		"a short retention":     {vars{"KEEP_FINISHED": "1h"}, "local --port 0", "KEEP_FINISHED: 1h0m0s is under 768h"},
		"a worker without auth": {vars{"GOOGLE_CLOUD_PROJECT": "p"}, "worker", "TASK_AUTH: "},
	} {
		t.Run(name, func(t *testing.T) {
			args := strings.Fields(tc.args)
			taskguard(t, tc.env, args...).want(t, cli.ExitUsage, "taskguard "+args[0]+": "+tc.want).wantOneErrorLine(t)
		})
	}
	for missing, commands := range map[string][]string{
		"FIRESTORE_EMULATOR_HOST": {
			"status", "status x", "submit main.go", "unlock x", "unlock --room a", "cancel x", "requeue x", "resolve x a --not-done", "delete x",
			"recover", "restore --min-token now", "console", "doctor --smoke {}", "hold --project p -- true", "run x",
		},
		"CLOUD_TASKS_EMULATOR_HOST": {
			"submit main.go", "unlock x", "requeue x", "resolve x a --not-done", "recover", "console", "doctor --smoke {}", "run x",
		},
	} {
		for _, command := range commands {
			half := env.with("ANALYZER", "builtin:document").without(missing)
			taskguard(t, half, strings.Fields(command)...).want(t, cli.ExitUsage, missing+": must be set too, because ").wantOneErrorLine(t)
		}
	}
}

func TestADeadEmulatorIsNamedWithItsVariable(t *testing.T) {
	dead := closedPort(t)
	env := vars{"GOOGLE_CLOUD_PROJECT": "p", "TASK_QUEUE": queueName, "TASK_TARGET_URL": "http://127.0.0.1:1", "FIRESTORE_EMULATOR_HOST": dead, "CLOUD_TASKS_EMULATOR_HOST": dead}
	for _, args := range []string{"status", "submit main.go", "unlock x", "unlock --room x", "recover", "console --port 0"} {
		taskguard(t, env, strings.Fields(args)...).want(t, cli.ExitFailed, "nothing answers at "+dead, "FIRESTORE_EMULATOR_HOST names it").wantOneErrorLine(t)
	}
	env = maps.Clone(env)
	env["FIRESTORE_EMULATOR_HOST"] = store(t)["FIRESTORE_EMULATOR_HOST"]
	taskguard(t, env, "requeue", "x").want(t, cli.ExitFailed, "nothing answers at "+dead, "CLOUD_TASKS_EMULATOR_HOST names it")
}

func TestARefusalOfFirestoreIsTheErrorOfACommand(t *testing.T) {
	t.Parallel()
	l := listen(t)
	refusing := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return status.Error(codes.PermissionDenied, "no") }))
	var serving sync.WaitGroup
	serving.Go(func() { _ = refusing.Serve(l) })
	t.Cleanup(func() { refusing.Stop(); serving.Wait() })
	address := l.Addr().String()
	env := vars{"GOOGLE_CLOUD_PROJECT": "p", "TASK_QUEUE": queueName, "TASK_TARGET_URL": "http://127.0.0.1:1", "FIRESTORE_EMULATOR_HOST": address, "CLOUD_TASKS_EMULATOR_HOST": address}
	for _, args := range []string{
		"status", "status x", "status --unfinished", "status --summary", "status --since 1h", "cancel --since 1h",
		"recover", "restore --min-token now", "submit --input {}", "doctor --smoke {}",
	} {
		t.Run(args, func(t *testing.T) {
			taskguard(t, env, strings.Fields(args)...).want(t, cli.ExitFailed, "PermissionDenied")
		})
	}
}

// closedWriter is a Writer that fails.
type closedWriter struct{}

func (closedWriter) Write([]byte) (int, error) { return 0, errors.New("closed") }

func TestLostOutputExits1(t *testing.T) {
	env := store(t)
	for _, args := range [][]string{{"help"}, {"status"}, {"status", "-h"}} {
		var errs emulatortest.Log
		code := cli.Run(t.Context(), commands(), args, cli.Streams{In: strings.NewReader(""), Out: closedWriter{}, Err: &errs}, env.lookup)
		if code != cli.ExitFailed || !strings.Contains(errs.String(), "taskguard") || !strings.Contains(errs.String(), "closed") {
			t.Errorf("%q: exit %d, want %d; %s", args, code, cli.ExitFailed, errs.String())
		}
	}
}

func TestOnlyRegularFilesThatADocumentCanHoldAreRead(t *testing.T) {
	dir := t.TempDir()
	pipe, escaped := filepath.Join(dir, "pipe"), "a\x1b[2J\nb"
	check(t, syscall.Mkfifo(pipe, 0o600))
	big := strings.Repeat("x", 1<<20)
	for file, want := range map[string]string{
		pipe: pipe + ": not a regular file", dir: dir + ": not a regular file", "/dev/zero": "/dev/zero: not a regular file",
		write(t, "large", big):                   "larger than 983040 bytes, which a document cannot hold",
		write(t, "binary", "\xff"+big[:800_000]): "as base64, larger than 983040 bytes, which a document cannot hold",
		filepath.Join("no", "such"):              filepath.Join("no", "such") + ": no such file",
		escaped:                                  `a\x1b[2J\nb: no such file`,
		filepath.Join(string(os.PathSeparator), "proc", "self", ""): "not a regular file",
	} {
		for _, command := range []string{"submit", "demo"} {
			taskguard(t, vars{}, command, file).want(t, cli.ExitFailed, "taskguard "+command+": ", want).wantOneErrorLine(t)
		}
	}
}
