package main

import (
	"strconv"
	"strings"
	"testing"

	"taskguard/cmd/internal/cli"
)

// orphaned writes analyses that were last updated long ago.
func orphaned(t *testing.T, env vars, ids ...string) {
	t.Helper()
	for _, id := range ids {
		put(t, env, id, map[string]any{"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00.000Z", "input": map[string]any{"text": "x"}})
	}
}

func TestRecoverReportsWhatItDoesNotFind(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	for i, status := range []any{"queued", "PENDING", 7, "archived", "READY", "QUEUED"} {
		put(t, q.env, strconv.Itoa(i), map[string]any{"status": status})
	}
	put(t, q.env, "ours", map[string]any{"status": "ANALYZING", "lockToken": 1})
	o := taskguard(t, q.env, "recover", "--json").want(t, cli.ExitDone)
	const want = `taskguard recover: 4 never run and not found by recovery, as the status is none of QUEUED, PROCESSING, READY, FAILED (of at most 1000 read): "2" ("(the number 7)"), "1" ("PENDING"), "3" ("archived"); to run one: taskguard requeue ID
taskguard recover: 1 not found by recovery, as they have no status, or no updatedAt that can be read (of at most 1000 read): "5" ("QUEUED"); to run one: taskguard requeue ID` + "\n"
	if o.err != want || o.out != `{"found":0,"booked":0,"waiting":0,"more":false}`+"\n" {
		t.Errorf("stdout %q, stderr %q", o.out, o.err)
	}
	put(t, q.env, "without", map[string]any{"input": 1})
	put(t, q.env, "yesterday", map[string]any{"status": "QUEUED", "updatedAt": "yesterday"})
	taskguard(t, q.env, "recover").want(t, cli.ExitDone, `3 not found by recovery, as they have`, `"without" ("")`)
	if o := taskguard(t, q.env, "status", "--unfinished").want(t, cli.ExitDone); strings.Count(o.out, "\n") != 4 || !strings.Contains(o.out, "\nyesterday ") || !strings.Contains(o.out, "\nwithout ") {
		t.Errorf("unfinished:\n%s", o.out)
	}
	taskguard(t, q.env, "requeue", "without").want(t, cli.ExitDone)
	taskguard(t, q.env, "requeue", "0").want(t, cli.ExitDone)
	taskguard(t, q.env, "recover").want(t, cli.ExitDone, "3 never run", "2 not found")
}

func TestARecoveryThatFailsReportsWhatItHasDone(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	orphaned(t, q.env, "a")
	env := q.env.with("TASK_QUEUE", queueName+"-missing")
	put(t, q.env, "malformed", map[string]any{"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00.000Z", "lockToken": "7"})
	taskguard(t, env, "recover").want(t, cli.ExitFailed, "analysis not recovered", "analysis_id=malformed", "found 1, booked 0; then it failed\n", "taskguard recover: the queue does not exist: correct TASK_QUEUE (", "NotFound")
	orphaned(t, q.env, "a") // the first call has marked it
	if o := taskguard(t, env, "recover", "--json").want(t, cli.ExitFailed, "NotFound"); o.out != `{"found":1,"booked":0,"waiting":0,"more":true}`+"\n" {
		t.Errorf("stdout %q", o.out)
	}
}
