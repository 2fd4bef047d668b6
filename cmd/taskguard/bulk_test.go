package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/lease/iso8601"
)

// bulkOutput returns the outcomes by id, each with the reason of a skip, and the numbers of the
// summary that a bulk command prints.
func bulkOutput(t *testing.T, o outcome) (outcomes map[string]string, matched, changed, skipped, failed float64) {
	t.Helper()
	outcomes = map[string]string{}
	lines := strings.Split(strings.TrimSpace(o.out), "\n")
	for _, line := range lines[:len(lines)-1] {
		var one struct{ ID, Outcome, Reason string }
		check(t, json.Unmarshal([]byte(line), &one))
		outcomes[one.ID] = strings.TrimSpace(one.Outcome + " " + one.Reason)
	}
	text := must(json.Marshal(wantKeys(t, lines[len(lines)-1], "summary")["summary"]))(t)
	n := wantKeys(t, string(text), "matched", "changed", "skipped", "failed", "dry_run")
	return outcomes, n["matched"].(float64), n["changed"].(float64), n["skipped"].(float64), n["failed"].(float64)
}

// failedAnHourAgo returns an analysis that FAILED with the code c.
func failedAnHourAgo() map[string]any {
	return map[string]any{
		"status": "FAILED", "attempts": 3, "lockToken": 3, "finishedBy": "w/1", "updatedAt": iso8601.Format(time.Now().Add(-time.Hour)),
		"error": map[string]any{"code": "c", "message": "m"},
	}
}

// putFailed writes n analyses as failedAnHourAgo returns them.
func putFailed(t *testing.T, env vars, n int) {
	t.Helper()
	all := fieldsOf(t, env, "x").Parent
	for i := range n {
		must(all.Doc(fmt.Sprint("x", i)).Set(t.Context(), failedAnHourAgo()))(t)
	}
}

func TestABulkRequeueChangesWhatMatchesOnceAfterADryRun(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	a := analyses(t, q.env)
	for _, id := range []string{"a", "b", "c"} {
		put(t, q.env, id, failedAnHourAgo())
	}
	put(t, q.env, "ready", map[string]any{"status": "READY", "updatedAt": time.Now()})
	put(t, q.env, "bad", map[string]any{"status": "QUEUED", "lockToken": "7", "updatedAt": time.Now().Add(-time.Hour)})
	locked(t, a, "held")
	create(t, a, "waiting")
	const place = "taskguard requeue: project demo-test, database (default), collection analyses\n"
	taskguard(t, q.env, "requeue", "--since", "2h", "--dry-run").want(t, cli.ExitFailed, place, "7 matched, 3 would be changed, 3 skipped, 1 failed\n")
	for _, tc := range []struct {
		flags, outcome   string
		changed, skipped float64
	}{{"--dry-run", "would_change", 0, 3}, {"", "changed", 3, 3}, {"", "skipped already_queued", 0, 6}} {
		before, tasks := objects(t, q.env), len(q.tasks(t))
		o := taskguard(t, q.env, append([]string{"requeue", "--since", "2h", "--json"}, strings.Fields(tc.flags)...)...).
			want(t, cli.ExitFailed, `"bad"`, "taskguard unlock gives it a usable one", fmt.Sprintf(`"dry_run":%t`, tc.flags != ""))
		outcomes, matched, changed, skipped, failed := bulkOutput(t, o)
		want := map[string]string{"a": tc.outcome, "b": tc.outcome, "c": tc.outcome, "bad": "failed", "held": "skipped held", "waiting": "skipped already_queued", "ready": "skipped ready"}
		if !maps.Equal(outcomes, want) || matched != 7 || changed != tc.changed || skipped != tc.skipped || failed != 1 {
			t.Errorf("%s: %v, want %v: %s", tc.flags, outcomes, want, o.out)
		}
		if after := objects(t, q.env); slices.Equal(before, after) != (tc.changed == 0) {
			t.Errorf("%s changed\n%s\nto\n%s", tc.flags, before, after)
		}
		q.wantTasks(t, tasks+int(tc.changed))
	}
	taskguard(t, q.env, "requeue", "--since", "2h").want(t, cli.ExitFailed, place, "7 matched, 0 changed, 6 skipped, 1 failed\n", "taskguard requeue: skipped: 4 already queued, 1 held, 1 ready\n")
	taskguard(t, q.env, "cancel", "--since", "2h", "--dry-run", "--running").want(t, cli.ExitFailed, "7 matched, 5 would be changed, 1 skipped, 1 failed\n")
	taskguard(t, q.env, "cancel", "--since", "2h").want(t, cli.ExitFailed, "7 matched, 4 changed, 2 skipped", "skipped: 1 already finished, 1 held, which --running cancels too\n")
}

func TestABulkChangeNeedsEitherIDsOrAFilter(t *testing.T) {
	t.Parallel()
	env := store(t)
	for _, line := range []string{
		"requeue", "cancel", "requeue x --status FAILED", "requeue x --dry-run", "cancel x --rate 1", "requeue --status=", "requeue --status \xff", "status --code \xff", "cancel --running", "cancel x --running", "cancel --since=",
		"requeue --code= --status FAILED", "requeue --status FAILED --rate 0", "requeue --status FAILED --rate 1001", "requeue --status FAILED --rate NaN", "requeue --since yesterday", "requeue --since -1h", "status x --code c", "status --unfinished --code c",
	} {
		taskguard(t, env, strings.Fields(line)...).want(t, cli.ExitUsage).wantOneErrorLine(t)
	}
	for _, line := range []string{"cancel --since 1h --rate 0.001", "requeue --since 1h --rate 1000", "status --limit 1", "restore --min-token 1"} {
		o := taskguard(t, env, strings.Fields(line)...).want(t, cli.ExitDone)
		if unbooked := strings.Contains(o.err, "no deliveries are booked"); unbooked != strings.HasPrefix(line, "requeue") {
			t.Errorf("%s prints %s", line, o.err)
		}
	}
}

func TestABulkRequeueStopsWhereTheQueueRefusesAndQUEUEDAreBookedByTheirStatus(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	const all = 101
	putFailed(t, q.env, all)
	if n := len(objects(t, q.env, "--status", "FAILED")); n != all {
		t.Errorf("status lists %d, want %d", n, all)
	}
	o := taskguard(t, q.env.with("TASK_QUEUE", queueName+"-missing"), "requeue", "--status", "FAILED", "--json").
		want(t, cli.ExitFailed, "the queue does not exist: correct TASK_QUEUE", "it has stopped", "taskguard requeue --status QUEUED --since 20")
	_, _, _, _, unbooked := bulkOutput(t, o)
	if unbooked < 1 || unbooked > 40 || strings.Contains(o.err, "repeat the command") {
		t.Fatalf("%v failed, want those under way only: %s", unbooked, o.err)
	}
	_, rest, _ := strings.Cut(o.err, "taskguard requeue --status QUEUED --since ")
	taskguard(t, q.env, "requeue", "--status", "FAILED").want(t, cli.ExitDone)
	q.wantTasks(t, all-int(unbooked))
	put(t, q.env, "earlier", map[string]any{"status": "QUEUED", "updatedAt": time.Now().Add(-time.Hour)})
	taskguard(t, q.env, "requeue", "--status", "QUEUED", "--since", strings.Fields(rest)[0]).want(t, cli.ExitDone, "101 matched, 101 changed")
	q.wantTasks(t, 2*all-int(unbooked)) // a second delivery of each
	taskguard(t, q.env, "requeue", "--status", "QUEUED", "--older-than", "30m").want(t, cli.ExitDone, "1 matched, 1 changed")
}
