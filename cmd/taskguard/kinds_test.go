package main

import (
	"encoding/json"
	"net/http"
	"path"
	"slices"
	"testing"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/internal/testing/must"
	"taskguard/repo"
	"taskguard/worker"
)

// order is a kind with words of its own.
var order = worker.Kind{
	Name: "order", Collection: "shops/s/orders", Path: "/tasks/order", IDField: "order", Fields: worker.Fields{
		Status: "state", Queued: "PENDING", Processing: "RUNNING", Finished: "DONE", Failed: "ERROR",
		Input: "payload", Result: "output", Error: "failure",
	},
}

// kinds are analyses and orders.
func kinds(t *testing.T) string {
	t.Helper()
	return string(must.Get(json.Marshal([]worker.Kind{{}, order}))(t))
}

// orders opens the orders of env.
func orders(t *testing.T, env vars) *repo.Analyses {
	t.Helper()
	return opened(t, env, repo.Options{Collection: order.Collection, Fields: order.Fields})
}

func TestKinds(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.env["KINDS"] = kinds(t)
	a := orders(t, q.env)
	task := func(id string) string { return `/tasks/order {"order":"` + id + `"}` }
	run := func(line string, parts ...string) {
		t.Helper()
		taskguard(t, q.env, line).done(t, parts...)
	}
	// names fails unless the document names the task that is booked for it.
	names := func(id string) {
		t.Helper()
		d := must.Get(a.Get(t.Context(), id))(t)
		booked := func(task *cloudtaskspb.Task) bool { return path.Base(task.GetName()) == d.BookedTask }
		if !slices.ContainsFunc(q.tasks(t), booked) {
			t.Errorf("%s names the task %q, which is not booked", id, d.BookedTask)
		}
	}
	run(`submit --kind order --id x --input {"n":1}`)
	q.wantBooked(t, task("x"))
	run("status --kind order x", "demo-test / (default) / shops/s/orders on the emulator ", "QUEUED")
	run("status --kind order --json --status QUEUED", `{"kind":"order","id":"x","status":"QUEUED"`)
	run("status --kind order --json x", `{"kind":"order","id":"x"`, `"input":{"n":1}`)
	q.wantBooked(t)
	locked(t, a, "held")
	run("unlock --kind order held", "kind=order")
	q.wantBooked(t, task("held"))
	names("held")
	run("cancel --kind order held --json", `"status":"FAILED"`)
	run("requeue --kind order --status ERROR", "1 matched, 1 changed") // its own word
	q.wantBooked(t, task("held"))
	names("held")
	run("requeue --kind order --status PENDING", "2 matched, 2 changed") // also what is QUEUED
	q.wantBooked(t, task("held"), task("x"))
	taskguard(t, q.missing(), "requeue --kind order --status QUEUED").
		fails(t, "taskguard requeue --kind order --status QUEUED --since 20")
	taskguard(t, q.env, "status --kind order --status PENDNG").refused(t, "QUEUED", "PENDING?").wantOneErrorLine(t)
	taskguard(t, q.env, "status x").fails(t, "collection analyses") // the first kind
	taskguard(t, q.env, "unlock --kind order y").fails(t, `no order "y" in collection shops/s/orders`)
}

func TestKinds_Recover(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.env["KINDS"] = kinds(t)
	orphaned(t, q.env, "a", "b")
	put(t, q.env, "shops/s/orders/x", doc{"state": "PENDING", "updatedAt": longAgo})
	put(t, q.env, "shops/s/orders/odd", doc{"state": "QUEUED"})
	all := taskguard(t, q.env, "recover --json").done(t, `"odd"`, "requeue --kind order").objects(t)
	wantValues(t, all[0], doc{"kind": nil, "found": 2.0, "booked": 2.0})
	wantValues(t, all[1], doc{"kind": "order", "found": 1.0, "booked": 1.0})
	const analysis = "/internal/tasks/analysis "
	q.wantBooked(t, analysis+`{"analysis_id":"a"}`, analysis+`{"analysis_id":"b"}`, `/tasks/order {"order":"x"}`)
	orphaned(t, q.env, "a")
	taskguard(t, q.env, "recover --kind order").done(t, "order: found 0, enqueued 0\n")
	q.wantBooked(t) // none of another kind
	taskguard(t, q.missing(), "recover").fails(t, "then it failed\norder: found 0, enqueued 0\n")
}

func TestKinds_Variable(t *testing.T) {
	t.Parallel()
	env := store(t)
	for text, named := range map[string]string{
		`order`:                 "want a JSON array of kinds",
		`[]`:                    "want a JSON array of kinds",
		`[{"name":"order"}] []`: "want a JSON array of kinds",
		`@/none`:                "/none: no such file",
		`[{"name":"a","collection":"as"},{"name":"b","colection":"bs"}]`:                          `"colection"`,
		`[{"name":"a","collection":"as"},{"name":"b","collection":"as"}]`:                         `of kind "a"`,
		`[{"name":"a","collection":"as","path":"/t"},{"name":"b","collection":"bs","path":"/t"}]`: `of kind "a"`,
		`[{"name":"a","collection":"as"},{"name":"b"}]`:                                           `index 1: kind "b"`,
	} {
		taskguard(t, env.with("KINDS", text), "status").refused(t, "KINDS: ", named).wantOneErrorLine(t)
	}
	taskguard(t, env.with("KINDS", kinds(t)), "status --kind orders").refused(t, "order?").wantOneErrorLine(t)

	// The first kind is the default, and KINDS names all kinds, so that a service without analyses
	// needs neither their collection nor a flag.
	t.Run("kinds of a file need no analysis", func(t *testing.T) {
		const all = `[{"name": "order", "collection": "orders", "fields": {"finished": "DONE"}}]`
		file := env.with("KINDS", "@"+write(t, "kinds.json", all))
		put(t, env, "orders/x", doc{"status": "DONE"})
		object := taskguard(t, file, "status --json").done(t, "/ orders on").object(t)
		wantValues(t, object, doc{"kind": "order", "id": "x", "status": "READY"})
		taskguard(t, file, "status --status DONE").done(t)
		named := env.with("KINDS", `[{}]`).with("ANALYSES_COLLECTION", "orders")
		object = taskguard(t, named, "status --json").done(t, "/ orders on").object(t)
		wantValues(t, object, doc{"kind": nil, "id": "x", "status": "DONE"})
	})
}

func TestKinds_Console(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.env["KINDS"] = kinds(t)
	create(t, analyses(t, q.env), "a")
	locked(t, orders(t, q.env), "x")
	address, log, _ := consoleOf(t, q.env, "--port", "0", "--write")
	single, _, _ := consoleOf(t, q.env, "--port", "0", "--kind", "order")
	for page, tc := range map[string]struct{ holds, lacks string }{
		address + "/":            {`<a id="kind-order" href="/kind/order/">`, "id=x"},
		address + "/kind/order/": {`href="/kind/order/analysis?id=x"`, "id=a"},
		single + "/":             {`href="/analysis?id=x"`, "kind-order"},
	} {
		browse(t, http.MethodGet, page, "").want(t, http.StatusOK, tc.holds).lacks(t, tc.lacks)
	}
	confirm(t, address, "/kind/order/unlock?id=x").want(t, http.StatusOK)
	wantParts(t, log, "kind=order")
	wantValues(t, fieldsOf(t, q.env, "shops/s/orders/x"), doc{"lockOwner": nil, "state": "PENDING"})
	q.wantBooked(t, `/tasks/order {"order":"x"}`)
}
