package taskqueue_test

import (
	"regexp"
	"strings"
	"testing"

	"taskguard/internal/taskqueue"
)

func TestNamesAreValidAndDifferForDifferentParts(t *testing.T) {
	seen := map[string][]string{}
	for _, parts := range [][]string{{}, {""}, {"a", "b"}, {"ab"}, {"a", "", "b"}, {"ab", ""}, {"", "ab"}, {"b", "a"}, {"ä/…"}} {
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
}

func TestABadConfigNamesItsVariables(t *testing.T) {
	good := taskqueue.Config{Queue: queue, TargetURL: "https://w.example", Caller: "a@b.example", EmulatorHost: "127.0.0.1:8123"}
	for name, tc := range map[string]struct {
		change func(*taskqueue.Config)
		want   string
	}{
		"no queue":       {func(c *taskqueue.Config) { c.Queue = "" }, "TASK_QUEUE: must be set"},
		"a task's name":  {func(c *taskqueue.Config) { c.Queue += "/tasks/t" }, "TASK_QUEUE: "},
		"no target":      {func(c *taskqueue.Config) { c.TargetURL = "" }, "TASK_TARGET_URL: must be set"},
		"a query":        {func(c *taskqueue.Config) { c.TargetURL += "?x=y" }, "TASK_TARGET_URL: "},
		"a password":     {func(c *taskqueue.Config) { c.TargetURL = "https://u:secret@w.example" }, "TASK_TARGET_URL: must not"},
		"an endless URL": {func(c *taskqueue.Config) { c.TargetURL += "/" + strings.Repeat("x", 2083) }, "TASK_TARGET_URL: is longer"},
		"no address":     {func(c *taskqueue.Config) { c.Caller = "someone" }, "TASK_CALLER: "},
		"nothing amiss":  {func(*taskqueue.Config) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			tc.change(&cfg)
			err := cfg.Check()
			if got := err != nil; got != (tc.want != "") || err != nil && !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n")) {
				t.Errorf("%q has a password or more than one line", err)
			}
		})
	}
}
