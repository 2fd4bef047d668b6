package main

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWrongUsageExits2WithOneLineAndAHint(t *testing.T) {
	for args, want := range map[string]string{
		"frobnicate":                       `taskguard: no command "frobnicate" (see: taskguard help)`,
		"sumbit":                           `no command "sumbit"; did you mean submit? (see: taskguard help)`,
		"statsu":                           "did you mean status?",
		"recove":                           "did you mean recover?",
		"requeues":                         "did you mean requeue?",
		"ist":                              `taskguard: no command "ist" (see`,
		"status --frob":                    "taskguard status: flag provided but not defined: -frob (see: taskguard help status)",
		"status a b":                       `taskguard status: unexpected argument "b"`,
		"status --limit 0":                 "--limit must be at least 1",
		"submit":                           "taskguard submit: missing argument: want FILE… | --input JSON",
		"submit main.go --input {}":        "--input and files exclude each other",
		"submit a b --id x":                "--id is for one analysis",
		"submit a --id a/b":                "taskguard submit: --id: the analysis id has a slash",
		"submit --input {":                 "--input is not JSON",
		"submit --input [[1]]":             "--input: input[0]",
		"submit --input 1e400":             "--input: input is a number beyond float64 (see",
		`submit --input {"a":{"b":1e400}}`: "--input: input.a.b is a number",
		"submit --input= x":                "--input and files exclude each other",
		"submit a --id=":                   "--id: the analysis id is empty",
		"status a/b":                       "taskguard status: the analysis id has a slash (see",
		"unlock ..":                        "taskguard unlock: the analysis id is a path (see",
		"requeue __x__":                    "taskguard requeue: the analysis id is reserved",
		"unlock":                           "taskguard unlock: missing argument: want ID",
		"requeue a b":                      `unexpected argument "b"`,
		"local x":                          `unexpected argument "x"`,
		"local --port 65534":               "--port 65534",
		"local --workers 0":                "--workers",
		"local --recover-every 0s":         "--recover-every",
		"recover x":                        `taskguard recover: unexpected argument "x"`,
		"analyze --wait x":                 "invalid value",
		"status -- --json":                 "GOOGLE_CLOUD_PROJECT",
		"status --json=false -- a -b":      `unexpected argument "-b"`,
	} {
		t.Run(args, func(t *testing.T) {
			o := taskguard(t, vars{}, strings.Fields(args)...).want(t, exitUsage, want)
			if o.out != "" || strings.Count(o.err, "\n") != 1 {
				t.Errorf("want one line on standard error alone\nstdout: %s\nstderr: %s", o.out, o.err)
			}
		})
	}
}

func TestHelpListsCommandsAndTheirFlags(t *testing.T) {
	for _, args := range [][]string{nil, {"help"}, {"--help"}, {"help", "help"}, {"help", "-h"}, {"--help", "--help"}} {
		o := taskguard(t, vars{}, args...).want(t, exitDone)
		for _, c := range commands() {
			if !strings.Contains(o.out, "  "+c.name+" ") {
				t.Errorf("%q does not list %s", args, c.name)
			}
		}
	}
	taskguard(t, vars{}, "help", "submit").want(t, exitDone, "-wait", "TASK_QUEUE")
	taskguard(t, vars{}, "status", "-h").want(t, exitDone, "-limit", "FIRESTORE_EMULATOR_HOST")
}

// job runs analyze as a worker would.
func job(ctx context.Context, env vars, input string, args ...string) outcome {
	var out, errs bytes.Buffer
	in := strings.NewReader(`{"analysis_id":"x","lock_token":1,"attempt":1,"input":` + input + `}`)
	code := run(ctx, append([]string{"analyze"}, args...), streams{in, &out, &errs}, env.lookup)
	return outcome{code, out.String(), errs.String()}
}

func TestAnalyzeIsAnExecAnalyzer(t *testing.T) {
	job(t.Context(), vars{}, `{"name":"a.txt","text":"one two"}`).want(t, exitDone, `"words":2`)
	if o := job(t.Context(), vars{}, `{}`).want(t, exitPermanent); o.err != "the input has neither text nor base64\n" || o.out != "" {
		t.Errorf("stdout %q, stderr %q", o.out, o.err)
	}
	job(t.Context(), vars{}, `}`).want(t, exitFailed, "read the job")
}

func TestAnalyzeEndsWithItsWorker(t *testing.T) {
	job(t.Context(), vars{workerPID: "1"}, `{"text":"x"}`, "--wait", "1h").want(t, exitFailed, "the worker is gone")
	calls := 0
	err := outlast(t.Context(), time.Hour, func() bool { calls++; return calls < 3 })
	if !errors.Is(err, errOrphaned) {
		t.Errorf("got %v, want %v", err, errOrphaned)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	job(ctx, vars{}, `{"text":"x"}`, "--wait", "1h").want(t, exitInterrupted)
}

func TestTheDemosFilesAreThisRepositorysOrTheProgramsOwn(t *testing.T) {
	docs, from, err := demoDocuments(nil)
	if err != nil || len(docs) != shownAtMost || !strings.Contains(from, "repository") {
		t.Errorf("%d documents from %q, %v; want %d of this repository", len(docs), from, err, shownAtMost)
	}
	t.Chdir(t.TempDir())
	docs, from, err = demoDocuments(nil)
	if err != nil || len(docs) < 3 || !strings.Contains(from, "program's own") {
		t.Errorf("%d documents from %q, %v; want at least 3 of the program's own", len(docs), from, err)
	}
}

func TestADocumentsIDComesOfNameAndContent(t *testing.T) {
	id := func(name, content string) string {
		t.Helper()
		d, err := newDocument(name, []byte(content))
		if err != nil {
			t.Fatal(err)
		}
		return d.id
	}
	first := id("dir/Some File.txt", "a")
	if !strings.HasPrefix(first, "some-file-txt-") || id("./dir/Some File.txt", "a") != first {
		t.Errorf("id %q", first)
	}
	for _, other := range []string{id("dir/Some File.txt", "b"), id("Some File.txt", "a"), id("ß", "a")} {
		if other == first {
			t.Errorf("two documents have the id %q", first)
		}
	}
}

func TestAFileThatNoDocumentCanHoldIsNamed(t *testing.T) {
	binary := append([]byte{0xff}, make([]byte, maxInput*4/5)...)
	if _, err := newDocument("big.bin", binary); err == nil || !strings.HasPrefix(err.Error(), "big.bin: ") {
		t.Errorf("got %v, want an error naming big.bin", err)
	}
	if _, err := newDocument("fits.txt", bytes.Repeat([]byte("x"), maxInput-len("fits.txt"))); err != nil {
		t.Error(err)
	}
	if _, err := readDocuments([]string{filepath.Join("no", "such")}, readFile); err == nil || !strings.Contains(err.Error(), filepath.Join("no", "such")) {
		t.Errorf("got %v, want an error naming the file", err)
	}
}
