package env

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// environment returns the environment of settings such as PORT=1.
func environment(words ...string) *Environment {
	set := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		set[k] = v
	}
	return NewEnvironment(func(k string) (string, bool) { v, ok := set[k]; return v, ok })
}

// checkProblems compares the variables at which the problems of e begin.
func checkProblems(t *testing.T, e *Environment, want ...string) {
	t.Helper()
	var got []string
	for line := range strings.Lines(e.Err().Error()) {
		name, _, _ := strings.Cut(line, ": ")
		got = append(got, name)
	}
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("problems of %q, want of %q: %v", got, want, e.Err())
	}
}

func TestEnvironment(t *testing.T) {
	t.Run("a wrong value is a problem, and the default is used", func(t *testing.T) {
		e := environment("ONE=c", "INTEGER=9", "DURATION=-1s")
		if got := e.OneOf("ONE", "a", "b"); got != "a" {
			t.Errorf("ONE = %q", got)
		}
		if got := e.Integer("INTEGER", 2, 1, 8); got != 2 {
			t.Errorf("INTEGER = %d", got)
		}
		if got := e.Duration("DURATION", time.Hour); got != time.Hour {
			t.Errorf("DURATION = %v", got)
		}
		checkProblems(t, e, "ONE", "INTEGER", "DURATION")
	})
	t.Run("each problem names its variables", func(t *testing.T) {
		e := environment("ADDRESS=http://h:1", "GOOD=a~b!", "NAME=a b", "LOCK_TTL=3s", "LOCK_HEARTBEAT=3s",
			"KEEP_FINISHED=1h", "TASK_QUEUE=q", "TASK_JWKS_URL=ftp://u:secret@h")
		e.Checked("ADDRESS", "", CheckAddress)
		e.Checked("GOOD", "", CheckName)
		e.Checked("NAME", "", CheckName)
		e.LockPolicy()
		e.KeepFinished()
		e.KeysURL()
		checkProblems(t, e, "ADDRESS", "NAME", "LOCK_TTL, LOCK_HEARTBEAT", "KEEP_FINISHED", "TASK_JWKS_URL")
		if strings.Contains(e.Err().Error(), "secret") {
			t.Errorf("a problem repeats a password: %v", e.Err())
		}
	})
	t.Run("what no resource can be named is a problem", func(t *testing.T) {
		e := environment("GOOGLE_CLOUD_PROJECT=p/q", "FIRESTORE_DATABASE=a b", "FIRESTORE_EMULATOR_HOST=h",
			"CLOUD_TASKS_EMULATOR_HOST=http://h:1", "TASK_QUEUE=projects/p/locations/l/queues/q",
			"TASK_TARGET_URL=https://h")
		e.Firestore()
		e.TaskQueue()
		checkProblems(t, e, "GOOGLE_CLOUD_PROJECT", "FIRESTORE_DATABASE", "FIRESTORE_EMULATOR_HOST",
			"CLOUD_TASKS_EMULATOR_HOST")
	})
	t.Run("an unset variable has no value", func(t *testing.T) {
		e := NewEnvironment(func(string) (string, bool) { return "x", false })
		if got := e.Text("TEXT", "default"); got != "default" {
			t.Errorf("TEXT = %q", got)
		}
	})
}

func TestMisspelt(t *testing.T) {
	known := []string{"MAX_RUNS", "LOCK_TTL", "PORT", "OTEL_TRACES_SAMPLER", "DOCUMENT_LOCK_TTL"}
	for name, want := range map[string]string{
		"MAX_RUN": "MAX_RUNS", "max_runs": "MAX_RUNS", "LOCK_TLT": "LOCK_TTL", "DOCUMENT_LOCK_TT": "DOCUMENT_LOCK_TTL",
		"MAX_RUNS": "", "POST": "", "OTEL_TRACE_SAMPLER": "", "DOCUMENT": "", "MAX_USERS": "",
	} {
		if got := Misspelt(name, known); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// A log may be read by more people than an environment.
func TestEnvironment_WarnOfMisspelt(t *testing.T) {
	var log bytes.Buffer
	e := environment("MAX_RUNS=3")
	e.Text("MAX_RUNS", "")
	e.Lookup("LOCK_TTL")
	e.WarnOfMisspelt(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), []string{
		"MAX_RUNS=3", "LOCK_TLL=s3cret", "RETRY_MIM=1s",
	})
	got := log.String()
	if strings.Count(got, "\n") != 1 || !strings.Contains(got, "variable=LOCK_TLL meant=LOCK_TTL") {
		t.Errorf("%s, want one warning, of LOCK_TLL", got)
	}
	if !strings.Contains(got, "level=WARN") || strings.Contains(got, "s3cret") {
		t.Errorf("%s, want a warning without the value", got)
	}
}

// Outside Cloud Run nobody checks the callers then.
func TestTaskAuth_Warn(t *testing.T) {
	for _, tc := range []struct {
		service, mode string
		warnings      int
	}{{"", "iam", 1}, {"", "none", 0}, {"taskguard-worker", "iam", 0}} {
		t.Setenv("K_SERVICE", tc.service)
		var log bytes.Buffer
		TaskAuth{Mode: tc.mode}.Warn(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
		if got := strings.Count(log.String(), "level=WARN"); got != tc.warnings {
			t.Errorf("%+v: %d warnings: %s", tc, got, &log)
		}
	}
}
