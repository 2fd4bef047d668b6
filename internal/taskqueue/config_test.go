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
	// A worker of another version books the same tasks.
	if got := taskqueue.Name("next", "x"); got != "60c0f33d8bef260fe1927879399b7f480844384718cf89d34798488a84e3081f" {
		t.Errorf("the name is %s", got)
	}
}

func TestABadConfigNamesItsVariables(t *testing.T) {
	good := taskqueue.Config{Queue: queue, TargetURL: "https://w.example", Caller: "a@b.example", EmulatorHost: "127.0.0.1:8123"}
	for name, tc := range map[string]struct {
		change func(*taskqueue.Config)
		want   string
	}{
		"no queue":      {func(c *taskqueue.Config) { c.Queue = "" }, "TASK_QUEUE: must be set"},
		"a task's name": {func(c *taskqueue.Config) { c.Queue += "/tasks/t" }, "TASK_QUEUE: "},
		"no target":     {func(c *taskqueue.Config) { c.TargetURL = "" }, "TASK_TARGET_URL: must be set"},
		"a query":       {func(c *taskqueue.Config) { c.TargetURL += "?x=y" }, "TASK_TARGET_URL: "},
		"a password":    {func(c *taskqueue.Config) { c.TargetURL = "https://u:secret@w.example" }, "TASK_TARGET_URL: must not"},
		"an endless URL": {func(c *taskqueue.Config) {
			c.TargetURL += "/" + strings.Repeat("x", 2083-len("https://w.example//internal/tasks/analysis")+1)
		}, "TASK_TARGET_URL: is longer"},
		"the longest": {func(c *taskqueue.Config) {
			c.TargetURL += "/" + strings.Repeat("x", 2083-len("https://w.example//internal/tasks/analysis"))
		}, ""},
		"plain http":     {func(c *taskqueue.Config) { c.TargetURL = "http://w.example:8080/base" }, ""},
		"another scheme": {func(c *taskqueue.Config) { c.TargetURL = "ftp://w.example" }, `TASK_TARGET_URL: "ftp://w.example" is not an http`},
		"no host":        {func(c *taskqueue.Config) { c.TargetURL = "https:///x" }, `TASK_TARGET_URL: "https:///x" is not an http`},
		"no URL":         {func(c *taskqueue.Config) { c.TargetURL = "https://a b" }, "TASK_TARGET_URL: is not a URL"},
		"a fragment":     {func(c *taskqueue.Config) { c.TargetURL += "#x" }, "TASK_TARGET_URL: "},
		"no caller":      {func(c *taskqueue.Config) { c.Caller = "" }, ""},
		"a queue's end":  {func(c *taskqueue.Config) { c.Queue += "/" }, "TASK_QUEUE: "},
		"no address":     {func(c *taskqueue.Config) { c.Caller = "someone" }, "TASK_CALLER: "},
		"nothing amiss":  {func(*taskqueue.Config) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			tc.change(&cfg)
			err := cfg.Check()
			if q, opened := taskqueue.Open(t.Context(), cfg); err != nil && (opened == nil || opened.Error() != err.Error()) {
				t.Errorf("Open: %v, want %v", opened, err)
			} else if q != nil {
				_ = q.Close()
			}
			if got := err != nil; got != (tc.want != "") || err != nil && !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n")) {
				t.Errorf("%q has a password or more than one line", err)
			}
		})
	}
}
