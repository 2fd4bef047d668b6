package main

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// bulkOutput returns the outcomes by id, each with the reason of a skip, and the summary of a bulk command.
func bulkOutput(t *testing.T, o outcome) (outcomes map[string]string, summary doc) {
	t.Helper()
	lines := o.objects(t)
	outcomes = map[string]string{}
	for _, one := range lines[:len(lines)-1] {
		reason, _ := one["reason"].(string)
		outcomes[one["id"].(string)] = strings.TrimSpace(one["outcome"].(string) + " " + reason)
	}
	summary = wantKeys(t, lines[len(lines)-1]["summary"], "matched changed skipped failed not_confirmed dry_run")
	return outcomes, summary
}

// cmd/internal/operate tests which analyses are changed.
func TestRequeue_Bulk(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	putFailed(t, q.env, 3)
	put(t, q.env, "ready", doc{"status": "READY", "updatedAt": time.Now()})
	put(t, q.env, "bad", doc{"status": "QUEUED", "lockToken": "7", "updatedAt": time.Now()})
	locked(t, analyses(t, q.env), "held")
	for _, tc := range []struct {
		flag, outcome string // of those that FAILED
		changed       float64
	}{
		{flag: "--dry-run", outcome: "would_change"},
		{outcome: "changed", changed: 3},
		{outcome: "skipped already_queued"}, // no second delivery
	} {
		before, tasks := fieldsOf(t, q.env, "x0"), len(q.tasks(t))
		o := taskguard(t, q.env, "requeue --since 2h --json "+tc.flag).fails(t, `"bad"`, "taskguard unlock")
		outcomes, summary := bulkOutput(t, o)
		want := map[string]string{"bad": "failed", "held": "skipped held", "ready": "skipped ready"}
		for _, id := range []string{"x0", "x1", "x2"} {
			want[id] = tc.outcome
		}
		if !maps.Equal(outcomes, want) {
			t.Errorf("%q: %v, want %v", tc.flag, outcomes, want)
		}
		wantValues(t, summary, doc{"matched": 6.0, "changed": tc.changed, "failed": 1.0, "dry_run": tc.flag != ""})
		if same := reflect.DeepEqual(fieldsOf(t, q.env, "x0"), before); same != (tc.changed == 0) {
			t.Errorf("%q leaves the document as it is: %t", tc.flag, same)
		}
		q.wantTasks(t, tasks+int(tc.changed))
	}
	taskguard(t, q.env, "requeue --since 2h").fails(t, "6 matched, 0 changed, 5 skipped, 1 failed\n",
		"demo-test / (default) / analyses", "3 already queued, 1 held, 1 ready")
	taskguard(t, q.env, "cancel --since 2h --dry-run --running").fails(t, "4 would be changed")
	taskguard(t, q.env, "cancel --since 2h").fails(t, "3 changed", "--running")
	taskguard(t, q.without(), "requeue --code none").done(t, "TASK_QUEUE is not set")
	taskguard(t, q.without(), "cancel --code none").done(t).lacks(t, "TASK_QUEUE")
}

// Different causes may have the same code.
func TestRequeue_Message(t *testing.T) {
	t.Parallel()
	env := store(t)
	putFailed(t, env, 1)
	for id, message := range map[string]string{"key": "Traceback\nKeyError", "zero": "Traceback\nZeroDivisionError"} {
		put(t, env, id, doc{
			"status": "FAILED", "updatedAt": longAgo, "error": doc{"code": "attempts_exhausted", "message": "the last"},
			"lastError": doc{"code": "c", "message": message},
		})
	}
	object := taskguard(t, env, "status --json --code c --message KeyError").done(t).object(t)
	wantValues(t, object, doc{"id": "key"})
	taskguard(t, env, "status --json --message Traceback --limit 1").done(t).object(t)
	taskguard(t, env, "status --code c --message keyerror").done(t, "3 match without --message")
	taskguard(t, env, "requeue --code c --message KeyError").done(t, "1 matched, 1 changed")
	for id, want := range map[string]string{"key": "QUEUED", "zero": "FAILED", "x0": "FAILED"} {
		wantValues(t, fieldsOf(t, env, id), doc{"status": want})
	}
}

func TestRequeue_Refused(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	const all = 101 // more than a query's page
	putFailed(t, q.env, all)
	o := taskguard(t, q.missing(), "requeue --status FAILED --json").
		fails(t, "correct TASK_QUEUE").lacks(t, "repeat the command")
	_, summary := bulkOutput(t, o)
	unbooked := int(summary["failed"].(float64))
	if unbooked < 1 || unbooked > 40 {
		t.Fatalf("%d failed, want those under way only: %s", unbooked, o.err)
	}
	_, rest, _ := strings.Cut(o.err, "taskguard requeue --status QUEUED --since ")
	again := "requeue --status QUEUED --since " + strings.Fields(rest)[0]

	taskguard(t, q.env, "requeue --status FAILED").done(t)
	q.wantTasks(t, all-unbooked)
	put(t, q.env, "earlier", doc{"status": "QUEUED", "updatedAt": time.Now().Add(-time.Hour)})
	taskguard(t, q.env, again).done(t, "101 matched, 101 changed")
	q.wantTasks(t, 2*all-unbooked) // a second delivery of each
}

// uncertain creates an order whose act an attempt has begun.
func uncertain(t *testing.T, env vars, id string, more doc) {
	t.Helper()
	fields := doc{
		"state": "ERROR", "failure": doc{"code": "effect_uncertain"}, "lockToken": 3, "openEffects": 1,
		"effects": doc{"charge": doc{"state": "started", "token": 3, "at": "2026-01-02T03:04:05.000Z"}},
	}
	maps.Copy(fields, more)
	put(t, env, "shops/s/orders/"+id, fields)
}

func TestResolve(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.env["KINDS"] = kinds(t)
	held := doc{"state": "RUNNING", "lockOwner": "w/1", "lockExpiresAt": ago(-time.Hour)}
	uncertain(t, q.env, "done", nil)
	uncertain(t, q.env, "not-done", nil)
	uncertain(t, q.env, "a-held", held)
	put(t, q.env, "shops/s/orders/other", doc{"state": "PENDING"})
	path := "projects/" + q.env["GOOGLE_CLOUD_PROJECT"] + "/databases/(default)/documents/shops/s/orders"
	key := orchestrator.ActKey(path, "done", "charge")

	t.Run("what is not held is listed with its keys", func(t *testing.T) {
		o := taskguard(t, q.env, "status --kind order --uncertain").done(t).lacks(t, "held", "other")
		rows := strings.Split(o.out, "\n")
		got, want := strings.Fields(rows[1]), []string{"done", "charge", "d", "started", key}
		got = slices.Delete(got, 2, 3) // so many days
		if !slices.Equal(got, want) || !strings.HasPrefix(rows[2], "not-done ") {
			t.Errorf("%s, want %q", o.out, want)
		}
		taskguard(t, q.env, "status --kind order --uncertain --limit 1").
			done(t, "done ", "--limit shows more").lacks(t, "not-done")
	})
	t.Run("what does not fit the act is refused", func(t *testing.T) {
		for line, named := range map[string]string{
			"requeue --kind order --fresh done":                     `"done"`,
			"delete --kind order done":                              `"done"`,
			"resolve --kind order --not-done missing charge":        `"missing"`,
			"resolve --kind order --not-done done chrge":            "its uncertain acts: charge",
			"resolve --kind order --not-done other charge":          "none",
			"resolve --kind order --not-done --token 2 done charge": "token 3",
		} {
			taskguard(t, q.env, line).fails(t, named)
		}
		for line, named := range map[string]string{
			"resolve done charge":                     "--done",
			"resolve --not-done --done 1 done charge": "--done",
			"resolve --done { done charge":            "JSON",
		} {
			taskguard(t, q.env, line).refused(t, named)
		}
		q.wantBooked(t)
	})
	t.Run("an act is answered once, which books a delivery", func(t *testing.T) {
		taskguard(t, q.env, "resolve --kind order --token 3 done charge --done", `{"receipt":7}`).done(t)
		taskguard(t, q.env, "resolve --kind order --not-done not-done charge").done(t, "QUEUED")
		taskguard(t, q.env, "resolve --kind order --not-done done charge").fails(t)
		q.wantBooked(t, `/tasks/order {"order":"done"}`, `/tasks/order {"order":"not-done"}`)
		taskguard(t, q.env, "status --kind order done").done(t, "charge: done at ", key)
		taskguard(t, q.env, "status --kind order done --json").done(t, `"receipt":7`, `"key":"`+key+`"`)
	})
	t.Run("what stays finished needs no delivery", func(t *testing.T) {
		uncertain(t, q.env, "ready", doc{"state": "DONE"})
		uncertain(t, q.env, "cancelled", doc{"failure": doc{"code": "cancelled"}})
		taskguard(t, q.env, "resolve --kind order --not-done ready charge").done(t, "READY")
		taskguard(t, q.env, "resolve --kind order --done 1 cancelled charge").done(t, "FAILED")
		q.wantBooked(t)
	})
	t.Run("without its delivery it fails, and a requeue books it", func(t *testing.T) {
		uncertain(t, q.env, "unbooked", nil)
		taskguard(t, q.missing(), "resolve --kind order --not-done unbooked charge").
			fails(t, "taskguard requeue --kind order unbooked")
		taskguard(t, q.env, "requeue --kind order unbooked").done(t)
		q.wantBooked(t, `/tasks/order {"order":"unbooked"}`)
	})
}

// No task can run the function of a record of Do. It is kept for its acts until it is cancelled.
func TestResolve_Record(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.env["KINDS"] = `[{}, {"name": "do", "collection": "idempotency"}]`
	put(t, q.env, "idempotency/charge:1", doc{
		"status": "QUEUED", "lockToken": 3, "openEffects": 1, "unfinishedEffects": 2, "updatedAt": longAgo,
		"effects": doc{"charge": doc{"state": "started", "token": 3}, "mail": doc{"state": "done", "token": 3}},
	})
	list := taskguard(t, q.env, "status --kind do --abandoned").done(t)
	wantOrder(t, list.out, "\ncharge:1 ", "charge ", "started", "\ncharge:1 ", "mail ", "done")
	taskguard(t, q.env, "resolve --kind do --not-done charge:1 charge").done(t)
	taskguard(t, q.env, "recover").done(t, "found 0, enqueued 0")
	q.wantBooked(t)
	taskguard(t, q.env, "cancel --kind do charge:1").done(t)
	taskguard(t, q.env, "status --kind do --abandoned").done(t).lacks(t, "charge:1")
	if fieldsOf(t, q.env, "idempotency/charge:1")["expireAt"] == nil {
		t.Error("it does not expire")
	}
}
