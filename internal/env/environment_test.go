package env

import (
	"strings"
	"testing"
	"time"
)

func TestAWrongValueIsAProblemAndTheDefaultIsUsed(t *testing.T) {
	e := environment("ONE=c", "INTEGER=9", "DURATION=-1s", "ADDRESS=http://h:1", "NAME=a~b!")
	if e.OneOf("ONE", "a", "b") != "a" || e.Integer("INTEGER", 2, 1, 8) != 2 || e.Duration("DURATION", time.Hour) != time.Hour || e.Checked("ADDRESS", "", CheckAddress) != "http://h:1" {
		t.Error("another value")
	}
	if lines := strings.Count(e.Err().Error(), "\n") + 1; lines != 4 || e.Checked("NAME", "", CheckName) != "a~b!" || strings.Count(e.Err().Error(), "\n") != 3 {
		t.Errorf("%v", e.Err())
	}
	e = environment("NAME=a b", "LOCK_TTL=3s", "LOCK_HEARTBEAT=3s", "KEEP_FINISHED=1h", "TASK_QUEUE=q", "TASK_JWKS_URL=ftp://h")
	e.Checked("NAME", "", CheckName)
	e.LockPolicy()
	e.KeepFinished()
	e.KeysURL()
	for i, name := range []string{"NAME: ", "LOCK_TTL, LOCK_HEARTBEAT: ", "KEEP_FINISHED: ", "TASK_JWKS_URL: "} {
		if lines := strings.Split(e.Err().Error(), "\n"); len(lines) != 4 || !strings.HasPrefix(lines[i], name) {
			t.Errorf("%q, want problem %d of %s", lines, i, name)
		}
	}
	if unset := NewEnvironment(func(string) (string, bool) { return "x", false }); unset.Text("TEXT", "default") != "default" {
		t.Error("an unset variable has a value")
	}
}

// environment returns the environment of settings such as PORT=1.
func environment(words ...string) *Environment {
	set := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		set[k] = v
	}
	return NewEnvironment(func(k string) (string, bool) { v, ok := set[k]; return v, ok })
}
