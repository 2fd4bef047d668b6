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
	"taskguard/orchestrator"
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
	const place = "taskguard requeue: demo-test / (default) / analyses on the emulator "
	taskguard(t, q.env, "requeue", "--since", "2h", "--dry-run").want(t, cli.ExitFailed, place, "7 matched, 3 would be changed, 3 skipped, 1 failed\n")
	for _, tc := range []struct {
		flags, outcome   string
		changed, skipped float64
	}{{"--dry-run", "would_change", 0, 3}, {"", "changed", 3, 3}, {"", "skipped already_queued", 0, 6}} {
		before, tasks := states(t, q.env), len(q.tasks(t))
		o := taskguard(t, q.env, append([]string{"requeue", "--since", "2h", "--json"}, strings.Fields(tc.flags)...)...).
			want(t, cli.ExitFailed, `"bad"`, "taskguard unlock gives it a usable one", fmt.Sprintf(`"dry_run":%t`, tc.flags != ""))
		outcomes, matched, changed, skipped, failed := bulkOutput(t, o)
		want := map[string]string{"a": tc.outcome, "b": tc.outcome, "c": tc.outcome, "bad": "failed", "held": "skipped held", "waiting": "skipped already_queued", "ready": "skipped ready"}
		if !maps.Equal(outcomes, want) || matched != 7 || changed != tc.changed || skipped != tc.skipped || failed != 1 {
			t.Errorf("%s: %v, want %v: %s", tc.flags, outcomes, want, o.out)
		}
		if after := states(t, q.env); slices.Equal(before, after) != (tc.changed == 0) {
			t.Errorf("%s changed\n%s\nto\n%s", tc.flags, before, after)
		}
		q.wantTasks(t, tasks+int(tc.changed))
	}
	taskguard(t, q.env, "requeue", "--since", "2h").want(t, cli.ExitFailed, place, "7 matched, 0 changed, 6 skipped, 1 failed\n", "taskguard requeue: skipped: 4 already queued, 1 held, 1 ready\n")
	taskguard(t, q.env, "cancel", "--since", "2h", "--dry-run", "--running").want(t, cli.ExitFailed, "7 matched, 5 would be changed, 1 skipped, 1 failed\n")
	taskguard(t, q.env, "cancel", "--since", "2h").want(t, cli.ExitFailed, "7 matched, 4 changed, 2 skipped", "skipped: 1 already finished, 1 held, which --running cancels too\n")
}

// Different causes may have the same code.
func TestAMessageSelectsOneCauseOfACode(t *testing.T) {
	t.Parallel()
	env := store(t)
	put(t, env, "own", failedAnHourAgo())
	for id, message := range map[string]string{"key": "Traceback\n  d[k]\nKeyError: 'total'", "zero": "Traceback\n  1/n\nZeroDivisionError"} {
		fields := failedAnHourAgo()
		fields["error"] = map[string]any{"code": "attempts_exhausted", "message": "attempt 3 was the last"}
		fields["lastError"] = map[string]any{"code": "c", "message": message}
		put(t, env, id, fields)
	}
	const text = "KeyError: 'total'"
	if found := objects(t, env, "--code", "c", "--message", text); len(found) != 1 || !strings.Contains(found[0], `"id":"key"`) {
		t.Errorf("%v are listed, want key", found)
	}
	if found := objects(t, env, "--message", "Traceback", "--limit", "1"); len(found) != 1 {
		t.Errorf("%v are listed, want one", found)
	}
	taskguard(t, env, "status", "--code", "c", "--message", "keyerror").want(t, cli.ExitDone, "no analysis has this message; 3 match without --message")
	taskguard(t, env, "requeue", "--code", "c", "--message", text, "--dry-run").want(t, cli.ExitDone, "1 matched, 1 would be changed")
	taskguard(t, env, "cancel", "--message=").want(t, cli.ExitUsage).wantOneErrorLine(t)
	taskguard(t, env, "requeue", "--code", "c", "--message", text).want(t, cli.ExitDone, "1 matched, 1 changed")
	for id, want := range map[string]string{"key": "QUEUED", "zero": "FAILED", "own": "FAILED"} {
		taskguard(t, env, "status", id).want(t, cli.ExitDone, " "+want+"\n")
	}
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
		if unbooked := strings.Contains(o.err, "nothing is enqueued"); unbooked != strings.HasPrefix(line, "requeue") {
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

// uncertain creates an order whose act an attempt has begun.
func uncertain(t *testing.T, env vars, id string, more map[string]any) {
	t.Helper()
	doc := map[string]any{
		"state": "ERROR", "failure": map[string]any{"code": "effect_uncertain", "message": "m"}, "lockToken": 3,
		"openEffects": 1, "effects": map[string]any{"charge": map[string]any{
			"state": "started", "token": 3, "at": "2026-01-02T03:04:05.000Z",
		}},
	}
	for name, v := range more {
		doc[name] = v
	}
	put(t, env, "shops/s/orders/"+id, doc)
}

func TestAnUncertainActIsListedAndResolvedOnce(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.env["KINDS"] = kinds(t)
	uncertain(t, q.env, "done", nil)
	uncertain(t, q.env, "not-done", nil)
	uncertain(t, q.env, "held", map[string]any{"state": "RUNNING", "lockOwner": "w/1", "lockExpiresAt": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)})
	put(t, q.env, "shops/s/orders/other", map[string]any{"state": "PENDING"})

	list := taskguard(t, q.env, "status", "--kind", "order", "--uncertain").want(t, cli.ExitDone)
	key := func(id string) string {
		path := "projects/" + q.env["GOOGLE_CLOUD_PROJECT"] + "/databases/(default)/documents/shops/s/orders"
		return orchestrator.ActKey(path, id, "charge")
	}
	want := "ID                                    ACT               SINCE                     TOKEN    STATE    KEY\n" +
		"done                                  charge            2026-01-02T03:04:05.000Z  3        started  " + key("done") + "\n" +
		"not-done                              charge            2026-01-02T03:04:05.000Z  3        started  " + key("not-done") + "\n"
	if list.out != want {
		t.Errorf("status prints\n%s, want\n%s", list.out, want)
	}
	uncertain(t, q.env, "z-all", map[string]any{"effects": "overwritten"})
	uncertain(t, q.env, "a-held", map[string]any{"state": "RUNNING", "lockOwner": "w/1", "lockExpiresAt": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)})
	first := taskguard(t, q.env, "status", "--kind", "order", "--uncertain", "--limit", "1").want(t, cli.ExitDone, "the first 1; --limit shows more")
	if !strings.Contains(first.out, "done ") || strings.Contains(first.out, "held") {
		t.Errorf("status --limit 1 prints\n%s", first.out)
	}
	taskguard(t, q.env, "requeue", "--kind", "order", "--fresh", "done").want(t, cli.ExitFailed, `"done" has an act that may have been done`)
	taskguard(t, q.env, "delete", "--kind", "order", "done").want(t, cli.ExitFailed, `"done" has an act that may have been done`)

	resolve := func(code int, output string, args ...string) {
		t.Helper()
		taskguard(t, q.env, append([]string{"resolve", "--kind", "order"}, args...)...).want(t, code, output)
	}
	resolve(cli.ExitUsage, "want either --done JSON or --not-done", "done", "charge")
	resolve(cli.ExitUsage, "want either --done JSON or --not-done", "--not-done", "--done", "1", "done", "charge")
	resolve(cli.ExitUsage, "the result is not JSON", "--done", "{", "done", "charge")
	resolve(cli.ExitFailed, `no order "missing"`, "--not-done", "missing", "charge")
	resolve(cli.ExitFailed, `"done" has no uncertain act "chrge"; its uncertain acts: charge`, "--not-done", "done", "chrge")
	resolve(cli.ExitFailed, "its uncertain acts: none", "--not-done", "other", "charge")
	resolve(cli.ExitFailed, "is locked by w/1", "--not-done", "held", "charge")
	resolve(cli.ExitFailed, "with lock token 3, not with 2", "--not-done", "--token", "2", "done", "charge")
	resolve(cli.ExitFailed, `"*" stands for all acts of "z-all"`, "--done", "1", "z-all", "*")
	if books := q.booked(t); books != "" {
		t.Errorf("what was refused books %q", books)
	}

	resolve(cli.ExitDone, "command=resolve analysis_id=done", "--done", `{"receipt":7}`, "--token", "3", "done", "charge")
	resolve(cli.ExitDone, "not-done is QUEUED; enqueued", "--not-done", "not-done", "charge")
	resolve(cli.ExitFailed, "no uncertain act", "--not-done", "done", "charge")
	if got, want := q.booked(t), `/tasks/order {"order":"done"}; /tasks/order {"order":"not-done"}`; got != want {
		t.Errorf("it books %q, want %q", got, want)
	}
	taskguard(t, q.env, "status", "--kind", "order", "done").want(t, cli.ExitDone, "charge: done at ", "its key is "+key("done")+"\n")
	taskguard(t, q.env, "status", "--kind", "order", "--json", "done").want(t, cli.ExitDone, `"result":{"receipt":7},"key":"`+key("done")+`"`)

	uncertain(t, q.env, "ready", map[string]any{"state": "DONE"})
	uncertain(t, q.env, "cancelled", map[string]any{"failure": map[string]any{"code": "cancelled", "message": "m"}})
	resolve(cli.ExitDone, "ready is READY; it is finished and needs no delivery", "--not-done", "ready", "charge")
	resolve(cli.ExitDone, "cancelled is FAILED; it is finished and needs no delivery", "--done", "1", "cancelled", "charge")
	if books := q.booked(t); books != "" {
		t.Errorf("what stays finished books %q", books)
	}

	uncertain(t, q.env, "unbooked", nil)
	missing := q.env.with("TASK_QUEUE", queueName+"-missing")
	taskguard(t, missing, "resolve", "--kind", "order", "--not-done", "unbooked", "charge").want(t, cli.ExitFailed, "; taskguard requeue --kind order unbooked enqueues it\n")
	taskguard(t, q.env, "requeue", "--kind", "order", "unbooked").want(t, cli.ExitDone, "enqueued")
}

// No task can run the function of a record of Do. It is kept for its acts until it is cancelled.
func TestARecordOfDoIsResolvedWithoutADelivery(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.env["KINDS"] = `[{}, {"name": "do", "collection": "idempotency"}]`
	for _, id := range []string{"charge:1", "charge:2"} {
		put(t, q.env, "idempotency/"+id, map[string]any{
			"status": "QUEUED", "lockToken": 3, "openEffects": 1, "unfinishedEffects": 2, "updatedAt": "2026-01-02T03:04:05.000Z",
			"effects": map[string]any{"charge": map[string]any{"state": "started", "token": 3}, "mail": map[string]any{"state": "done", "token": 3}},
		})
	}
	list := taskguard(t, q.env, "status", "--kind", "do", "--abandoned", "--limit", "1").want(t, cli.ExitDone, "the first 1; --limit shows more")
	if got := strings.Fields(list.out)[6:]; len(got) != 12 || got[0] != "charge:1" || got[1]+got[4] != "chargestarted" || got[7]+got[10] != "maildone" {
		t.Errorf("status lists %q", got)
	}
	taskguard(t, q.env, "resolve", "--kind", "do", "--not-done", "charge:1", "charge").want(t, cli.ExitDone, "not enqueued")
	taskguard(t, q.env, "recover").want(t, cli.ExitDone, "found 0, enqueued 0")
	if books := q.booked(t); books != "" {
		t.Errorf("it books %q", books)
	}
	taskguard(t, q.env, "cancel", "--kind", "do", "charge:1").want(t, cli.ExitDone)
	if list := taskguard(t, q.env, "status", "--kind", "do", "--abandoned").want(t, cli.ExitDone); strings.Contains(list.out, "charge:1") {
		t.Errorf("a cancelled record is abandoned: %s", list.out)
	}
	record, err := fieldsOf(t, q.env, "idempotency/charge:1").Get(t.Context())
	if err != nil || record.Data()["expireAt"] == nil {
		t.Errorf("%v, %v: it does not expire", record.Data(), err)
	}
}
