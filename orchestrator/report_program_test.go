//go:build linux || darwin

package orchestrator_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// script runs a script of sh with this Reporter, until it has ended.
func script(ctx context.Context, t *testing.T, reporter orchestrator.Reporter, text string) (any, error) {
	t.Helper()
	return scriptWithGrace(ctx, t, orchestrator.DefaultGrace, reporter, text)
}

// scriptWithGrace is script with another grace.
func scriptWithGrace(ctx context.Context, t *testing.T, grace time.Duration, reporter orchestrator.Reporter, text string) (any, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "analyzer.sh")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := orchestrator.NewWithGrace("exec:/bin/sh "+word(t, file), grace)
	if err != nil {
		t.Fatal(err)
	}
	return orchestrator.Run(ctx, a, orchestrator.Job{Reporter: reporter, Resume: json.RawMessage(`{"page":4}`)})
}

func TestAProgramReportsOnREPORT_FD(t *testing.T) {
	file := filepath.Join(t.TempDir(), "reports")
	longest := `{"progress":0.7}` + strings.Repeat(" ", 1<<20-16)
	if err := os.WriteFile(file, []byte(reportLines()+longest+" \n"+longest), 0o600); err != nil {
		t.Fatal(err)
	}
	var got recorder
	result, err := script(t.Context(), t, &got, "sh -c 'cat "+file+` >&"$REPORT_FD"'; cat`) // a child reports
	job, _ := result.(map[string]any)
	if err != nil || fmt.Sprint(job["checkpoint"]) != "map[page:4]" {
		t.Errorf("%v, %v", result, err)
	}
	if n := len(got.reports) - 1; n < 0 || got.reports[n] != "0.7" { // a line without an end
		t.Fatalf("reports: %q", got.reports)
	}
	got.reports = got.reports[:len(got.reports)-1]
	checkReports(t, &got, "a report is too long")
}

func TestAProgramNamesItsError(t *testing.T) {
	const rejected = orchestrator.CodeAnalyzerRejected
	long := strings.Repeat("c", 64)
	permanent := func(code, message string) error { return &orchestrator.PermanentError{Code: code, Message: message} }
	temporary := func(code, exit, message string) error {
		return &orchestrator.FailureError{Code: code, Reason: "sh ended with " + exit, Message: message}
	}
	after := func(wait time.Duration, err error) error { return &orchestrator.RetryAfterError{Wait: wait, Err: err} }
	failed, unreadable := temporary("", "exit status 1", "stderr"), []string{"the retry_after of a report has a wrong type"}
	const warning = "the program reported an error and ended with exit status 0: its output is the result"
	for name, tc := range map[string]struct {
		reports, end    string
		want            error
		invalid, warned []string
	}{
		"for now":                     {`{"error":{"code":"Quota_1-a","message":" m\n"}}`, "exit 1", temporary("Quota_1-a", "exit status 1", "m"), nil, nil},
		"permanent":                   {`{"error":{"code":"no_page","message":"m","permanent":true}}`, "exit 1", permanent("no_page", "m"), nil, nil},
		"with exit 65":                {`{"error":{"code":"no_page","message":"m"}}`, "exit 65", permanent("no_page", "m"), nil, nil},
		"with a signal":               {`{"error":{"code":"no_page"}}`, "kill -9 $$", temporary("no_page", "signal: killed", "stderr"), nil, nil},
		"permanent, with a signal":    {`{"error":{"permanent":true}}`, "kill -9 $$", permanent(rejected, "stderr"), nil, nil},
		"the newest, beside a report": {`{"error":{"code":"old"}}` + "\n" + `{"progress":1,"error":{"code":"new","message":null}}` + "\n" + `{"progress":1,"error":null}`, "exit 2", temporary("new", "exit status 2", "stderr"), nil, nil},
		"of 64 characters":            {`{"error":{"code":"` + long + `"}}`, "exit 1", temporary(long, "exit status 1", "stderr"), nil, nil},
		"of 65":                       {`{"error":{"code":"c` + long + `"}}`, "exit 1", temporary("", "exit status 1", "stderr"), nil, nil},
		"a code with a newline":       {`{"error":{"code":"a\n","message":"m","permanent":true}}`, "exit 1", permanent(rejected, "m"), nil, nil},
		"a code that is a number":     {`{"error":{"code":7,"message":"m"}}`, "exit 1", temporary("", "exit status 1", "m"), nil, nil},
		"a long message":              {`{"error":{"message":"` + strings.Repeat("é", 2000) + `"}}`, "exit 1", temporary("", "exit status 1", strings.Repeat("é", 1024)), nil, nil},
		"a wait, the newest":          {`{"retry_after":90}` + "\n" + `{"progress":1,"retry_after":0.25}`, "exit 1", after(time.Second, failed), nil, nil},
		"beside an error":             {`{"retry_after":90,"error":{"code":"quota"}}`, "exit 1", after(90*time.Second, temporary("quota", "exit status 1", "stderr")), nil, nil},
		"with a permanent error":      {`{"retry_after":90,"error":{"permanent":true}}`, "exit 1", permanent(rejected, "stderr"), nil, nil},
		"almost none":                 {`{"retry_after":1e-300}`, "exit 1", after(time.Second, failed), nil, nil},
		"fractions":                   {`{"retry_after":1.001}`, "exit 1", after(1001*time.Millisecond, failed), nil, nil},
		"more than 12 h":              {`{"retry_after":1e300}`, "exit 1", after(12*time.Hour, failed), nil, nil},
		"a wait, taken back":          {`{"retry_after":90}` + "\n" + `{"retry_after":0}`, "exit 1", failed, nil, nil},
		"a negative wait":             {`{"retry_after":-1e300}`, "exit 1", failed, nil, nil},
		"no number":                   {`{"retry_after":"s3cret"}`, "exit 1", failed, unreadable, nil},
		"null":                        {`{"progress":1,"retry_after":null}`, "exit 1", failed, nil, nil},
		"a wait, and succeeds":        {`{"retry_after":90}`, "exit 0", nil, nil, nil},
		"no object":                   {`{"error":"s3cret"}`, "exit 1", temporary("", "exit status 1", "stderr"), []string{"an error is not an object with code, message and permanent"}, nil},
		"no boolean":                  {`{"error":{"permanent":"yes"}}`, "exit 1", temporary("", "exit status 1", "stderr"), []string{"an error is not an object with code, message and permanent"}, nil},
		"an error, and succeeds":      {`{"error":{"code":"c"}}` + "\n" + `{"error":{"code":"c"}}`, "exit 0", nil, nil, []string{warning}},
	} {
		var got recorder
		file := filepath.Join(t.TempDir(), "reports")
		if err := os.WriteFile(file, []byte(tc.reports), 0o600); err != nil {
			t.Fatal(err)
		}
		result, err := script(t.Context(), t, &got, "cat "+file+` >&"$REPORT_FD"; echo stderr >&2; echo 7; `+tc.end)
		if tc.want == nil && result != int64(7) || !reflect.DeepEqual(err, tc.want) { //nolint:govet // no error wraps another
			t.Errorf("%s: %v, %#v; want %#v", name, result, err, tc.want)
		}
		if !slices.Equal(got.invalid, tc.invalid) || !slices.Equal(got.warned, tc.warned) {
			t.Errorf("%s: invalid %q, warned %q", name, got.invalid, got.warned)
		}
	}
	if text := after(time.Minute, nil).Error() + after(1, errors.New(", busy")).Error(); text != "orchestrator: to be called again after 1m0s, busy" {
		t.Error(text)
	}
}

func TestAProgramMayIgnoreCloseOrInheritREPORT_FD(t *testing.T) {
	for name, text := range map[string]string{
		"ignored":              `echo 7`,
		"closed":               `exec 3>&-; echo 7`,
		"held by a child":      `sleep 3600 & echo 7`,
		"a program without it": `eval "exec 3</dev/null"; echo 7`,
	} {
		var got recorder
		result, err := script(t.Context(), t, &got, text)
		if err != nil || result != int64(7) || len(got.reports)+len(got.invalid) > 0 {
			t.Errorf("%s: %v, %v; reports %q %q", name, result, err, got.reports, got.invalid)
		}
	}
}

func TestALongLineOfReportsIsNotKept(t *testing.T) {
	var got recorder
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	result, err := script(t.Context(), t, &got, `yes | tr -d '\n' | head -c 64000000 >&3; echo >&3; echo 7`)
	runtime.ReadMemStats(&after)
	if err != nil || result != int64(7) || !slices.Equal(got.invalid, []string{"a report is too long"}) {
		t.Errorf("%v, %v; invalid %q", result, err, got.invalid)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 32<<20 {
		t.Errorf("a line of 64 MB took %d bytes of memory", grown)
	}
}

func TestTheLastCheckpointOfAStoppedProgramIsRead(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var got recorder
	ready := filepath.Join(t.TempDir(), "ready")
	go func() {
		defer stop()
		waitForLine(t, ready, "ready")
	}()
	_, err := script(ctx, t, &got, `trap 'printf "{\"checkpoint\":9}" >&3; exit 1' TERM; echo ready >`+ready+`; while :; do sleep 0.01; done`)
	if err == nil || len(got.reports) != 1 || got.reports[0] != "9" {
		t.Errorf("%v; reports %q", err, got.reports)
	}
}
