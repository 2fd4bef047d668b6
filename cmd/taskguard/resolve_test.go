package main

import (
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
)

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
	const want = "ID                                    ACT               SINCE                     TOKEN\n" +
		"done                                  charge            2026-01-02T03:04:05.000Z  3\n" +
		"not-done                              charge            2026-01-02T03:04:05.000Z  3\n"
	if list.out != want {
		t.Errorf("status prints\n%s, want\n%s", list.out, want)
	}
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
	resolve(cli.ExitFailed, "no such act", "--not-done", "done", "refund")
	resolve(cli.ExitFailed, "is locked by w/1", "--not-done", "held", "charge")
	resolve(cli.ExitFailed, "with lock token 3, not with 2", "--not-done", "--token", "2", "done", "charge")
	if books := q.booked(t); books != "" {
		t.Errorf("what was refused books %q", books)
	}

	resolve(cli.ExitDone, "command=resolve analysis_id=done", "--done", `{"receipt":7}`, "--token", "3", "done", "charge")
	resolve(cli.ExitDone, "not-done is QUEUED; a delivery is booked", "--not-done", "not-done", "charge")
	resolve(cli.ExitFailed, "no such act", "--not-done", "done", "charge")
	if got, want := q.booked(t), `/tasks/order {"order":"done"}; /tasks/order {"order":"not-done"}`; got != want {
		t.Errorf("it books %q, want %q", got, want)
	}
	taskguard(t, q.env, "status", "--kind", "order", "done").want(t, cli.ExitDone, "charge: done at ")
	taskguard(t, q.env, "status", "--kind", "order", "--json", "done").want(t, cli.ExitDone, `"result":{"receipt":7}`)

	uncertain(t, q.env, "ready", map[string]any{"state": "DONE"})
	uncertain(t, q.env, "cancelled", map[string]any{"failure": map[string]any{"code": "cancelled", "message": "m"}})
	resolve(cli.ExitDone, "ready is READY; it is finished and needs no delivery", "--not-done", "ready", "charge")
	resolve(cli.ExitDone, "cancelled is FAILED; it is finished and needs no delivery", "--done", "1", "cancelled", "charge")
	if books := q.booked(t); books != "" {
		t.Errorf("what stays finished books %q", books)
	}

	uncertain(t, q.env, "unbooked", nil)
	missing := q.env.with("TASK_QUEUE", queueName+"-missing")
	taskguard(t, missing, "resolve", "--kind", "order", "--not-done", "unbooked", "charge").want(t, cli.ExitFailed, "; taskguard requeue --kind order unbooked books it\n")
	taskguard(t, q.env, "requeue", "--kind", "order", "unbooked").want(t, cli.ExitDone, "a delivery is booked")
}

// No task can run the function of a record of Do; and the record still expires.
func TestARecordOfDoIsResolvedWithoutADelivery(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.env["KINDS"] = `[{}, {"name": "do", "collection": "idempotency"}]`
	for _, id := range []string{"charge:1", "charge:2"} {
		put(t, q.env, "idempotency/"+id, map[string]any{
			"status": "QUEUED", "lockToken": 3, "openEffects": 1, "updatedAt": "2026-01-02T03:04:05.000Z",
			"effects": map[string]any{"charge": map[string]any{"state": "started", "token": 3}},
		})
	}
	taskguard(t, q.env, "resolve", "--kind", "do", "--not-done", "charge:1", "charge").want(t, cli.ExitDone, "no delivery is booked")
	taskguard(t, q.env, "recover").want(t, cli.ExitDone, "found 0, booked 0")
	if books := q.booked(t); books != "" {
		t.Errorf("it books %q", books)
	}
	record, err := fieldsOf(t, q.env, "idempotency/charge:1").Get(t.Context())
	if err != nil || record.Data()["expireAt"] == nil {
		t.Errorf("%v, %v: it does not expire", record.Data(), err)
	}
}
