package taskqueue_test

import (
	"regexp"
	"strings"
	"testing"

	"taskguard/internal/taskqueue"
)

func TestNamesAreValidAndDifferForDifferentParts(t *testing.T) {
	seen := map[string][]string{}
	for _, parts := range [][]string{{}, {""}, {"a", "b"}, {"ab"}, {"a", "", "b"}, {"ab", ""}, {"", "ab"}, {"b", "a"}, {"ä/…"}, {"a" + strings.Repeat("\x00", 8) + "b"}} {
		name := taskqueue.Name(parts...)
		if !regexp.MustCompile(`^[A-Za-z0-9_-]{1,500}$`).MatchString(name) {
			t.Errorf("%q: %q is not a task id", parts, name)
		}
		if other, taken := seen[name]; taken {
			t.Errorf("%q and %q have one name", parts, other)
		}
		seen[name] = parts
		if again := taskqueue.Name(parts...); again != name {
			t.Errorf("%q: %q, then %q", parts, name, again)
		}
	}
	for name, valid := range map[string]bool{
		"azAZ09-_": true, strings.Repeat("a", 500): true, strings.Repeat("a", 501): false, "": false,
		"a`": false, "a{": false, "a@": false, "a[": false, "a/": false, "a:": false, "a b": false, "é": false, "a\n": false,
	} {
		if taskqueue.ValidName(name) != valid {
			t.Errorf("%.10q is valid: %t", name, !valid)
		}
	}
	// A worker of another version books the same tasks.
	if got := taskqueue.Name("next", "x"); got != "60c0f33d8bef260fe1927879399b7f480844384718cf89d34798488a84e3081f" {
		t.Errorf("the name is %s", got)
	}
}

func TestABadConfigNamesItsVariables(t *testing.T) {
	longest := "https://w.example/" + strings.Repeat("x", 2083-len("https://w.example//internal/tasks/analysis"))
	for _, tc := range []struct{ queue, target, caller, want string }{
		{queue, "https://w.example", "a@b.example", ""},
		{queue, "http://w.example:8080/base", "", ""},
		{queue, longest, "", ""},
		{"", "https://w.example", "", "TASK_QUEUE: must be set"},
		{queue + "/tasks/t", "https://w.example", "", "TASK_QUEUE: "},
		{queue + "/", "https://w.example", "", "TASK_QUEUE: "},
		{queue, "", "", "TASK_TARGET_URL: must be set"},
		{queue, "https://w.example?x=y", "", "TASK_TARGET_URL: "},
		{queue, "https://w.example#x", "", "TASK_TARGET_URL: "},
		{queue, "https://u:secret@w.example", "", "TASK_TARGET_URL: must not"},
		{queue, longest + "x", "", "TASK_TARGET_URL: is longer"},
		{queue, "ftp://w.example", "", `TASK_TARGET_URL: "ftp://w.example" is not an http`},
		{queue, "https:///x", "", `TASK_TARGET_URL: "https:///x" is not an http`},
		{queue, "https://a b", "", `TASK_TARGET_URL: "https://a b" is not a URL`},
		{queue, "https://u:secret@a b", "", "TASK_TARGET_URL: is not a URL"},
		{queue, "https://w.example", "someone", "TASK_CALLER: "},
	} {
		cfg := taskqueue.Config{Name: tc.queue, TargetURL: tc.target, Caller: tc.caller, EmulatorHost: "127.0.0.1:8123"}
		err := cfg.Check()
		q, opened := taskqueue.Open(t.Context(), cfg)
		if q != nil {
			_ = q.Close()
		}
		if (err == nil) != (opened == nil) || (err == nil) != (tc.want == "") {
			t.Errorf("%+v: %v, Open: %v; want %q", tc, err, opened, tc.want)
		}
		if err != nil && (!strings.HasPrefix(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%+v: %v, want one line with %q and no password", tc, err, tc.want)
		}
	}
}
