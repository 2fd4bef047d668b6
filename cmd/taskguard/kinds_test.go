package main

import (
	"encoding/json"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/cmd/internal/cli"
	"taskguard/repo"
	"taskguard/worker"
)

// kinds are analyses and orders with words of their own.
func kinds(t *testing.T) string {
	t.Helper()
	text, err := json.Marshal([]worker.Kind{{}, {Name: "order", Collection: "shops/s/orders", Path: "/tasks/order", IDField: "order", Fields: worker.Fields{
		Status: "state", Queued: "PENDING", Processing: "RUNNING", Finished: "DONE", Failed: "ERROR", Input: "payload", Result: "output", Error: "failure",
	}}})
	check(t, err)
	return string(text)
}

// orders opens the orders of env.
func orders(t *testing.T, env vars) *repo.Analyses {
	t.Helper()
	var all []worker.Kind
	check(t, json.Unmarshal([]byte(kinds(t)), &all))
	a, err := repo.Open(t.Context(), env["GOOGLE_CLOUD_PROJECT"], repo.Options{Emulator: env["FIRESTORE_EMULATOR_HOST"], Collection: all[1].Collection, Fields: all[1].Fields})
	check(t, err)
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// booked returns the paths and bodies of the tasks that were booked since its last call.
func (q *testQueue) booked(t *testing.T) string {
	t.Helper()
	var found []string
	for _, task := range q.tasks(t) {
		if r := task.GetHttpRequest(); !q.seen[task.GetName()] {
			q.seen[task.GetName()] = true
			found = append(found, strings.TrimPrefix(r.GetUrl(), q.env["TASK_TARGET_URL"])+" "+string(r.GetBody()))
		}
	}
	slices.Sort(found)
	return strings.Join(found, "; ")
}

func TestEachCommandWorksOnTheKindThatItNames(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.env["KINDS"] = kinds(t)
	a := orders(t, q.env)
	task := func(id string) string { return `/tasks/order {"order":"` + id + `"}` }
	step := func(books, command string, parts ...string) {
		t.Helper()
		taskguard(t, q.env, strings.Fields(command)...).want(t, cli.ExitDone, parts...)
		if got := q.booked(t); got != books {
			t.Errorf("%s books %q, want %q", command, got, books)
		}
	}
	named := func(id string) {
		t.Helper()
		d := must(a.Get(t.Context(), id))(t)
		if !slices.ContainsFunc(q.tasks(t), func(b *cloudtaskspb.Task) bool { return path.Base(b.GetName()) == d.BookedTask }) {
			t.Errorf("%s names the task %q, which is not booked", id, d.BookedTask)
		}
	}
	step(task("x"), `submit --kind order --id x --input {"n":1}`, "x: created; enqueued")
	step("", `submit --kind order --id x --input {"n":1}`, "x: exists already, QUEUED; already enqueued")
	step("", "status --kind order x", "taskguard status --kind order: reading demo-test / (default) / shops/s/orders on the emulator ", "QUEUED")
	step("", "status --kind order --json --status QUEUED", `{"kind":"order","id":"x","status":"QUEUED"`)
	step("", "status --kind order --json x", `{"kind":"order","id":"x"`, `"input":{"n":1}`)
	locked(t, a, "held")
	step(task("held"), "unlock --kind order held", "held is QUEUED", "kind=order")
	named("held")
	step("", "cancel --kind order held --json", `"status":"FAILED"`)
	step(task("held"), "requeue --kind order --status ERROR", "1 matched, 1 changed") // its own word
	named("held")
	step(task("held")+"; "+task("x"), "requeue --kind order --status PENDING", "2 matched, 2 changed") // also what is QUEUED
	taskguard(t, q.env, "status", "--kind", "order", "--status", "PENDNG").want(t, cli.ExitUsage,
		`unknown status "PENDNG": want QUEUED, PROCESSING, READY, FAILED, PENDING, RUNNING, DONE or ERROR (did you mean PENDING?)`).wantOneErrorLine(t)
	taskguard(t, q.env.with("TASK_QUEUE", queueName+"-missing"), "requeue", "--kind", "order", "--status", "QUEUED").
		want(t, cli.ExitFailed, "taskguard requeue: taskguard requeue --kind order --status QUEUED --since 20")
	step("", "status", "demo-test / (default) / analyses")
	taskguard(t, q.env, "status", "x").want(t, cli.ExitFailed, `no analysis "x" in collection analyses`)
	taskguard(t, q.env, "unlock", "--kind", "order", "y").want(t, cli.ExitFailed, `no order "y" in collection shops/s/orders`)
}

func TestRecoverBooksTheOrphanedDocumentsOfAllKinds(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.env["KINDS"] = kinds(t)
	orphaned(t, q.env, "a", "b")
	put(t, q.env, "shops/s/orders/x", map[string]any{"state": "PENDING", "updatedAt": "2020-01-01T00:00:00.000Z"})
	put(t, q.env, "shops/s/orders/odd", map[string]any{"state": "QUEUED"})
	o := taskguard(t, q.env, "recover", "--json").want(t, cli.ExitDone, `the state is none of PENDING, RUNNING, DONE, ERROR`, `"odd" ("(QUEUED)"); to run one: taskguard requeue --kind order ID`)
	if want := `{"found":2,"booked":2,"waiting":0,"more":false}` + "\n" + `{"kind":"order","found":1,"booked":1,"waiting":0,"more":false}` + "\n"; o.out != want {
		t.Errorf("stdout %q, want %q", o.out, want)
	}
	const analyses = `/internal/tasks/analysis {"analysis_id":"a"}; /internal/tasks/analysis {"analysis_id":"b"}`
	if got, want := q.booked(t), analyses+`; /tasks/order {"order":"x"}`; got != want {
		t.Errorf("it books %q, want %q", got, want)
	}
	orphaned(t, q.env, "a")
	taskguard(t, q.env, "recover", "--kind", "order").want(t, cli.ExitDone, "order: found 0, enqueued 0\n")
	if got := q.booked(t); got != "" {
		t.Errorf("it books %q, of another kind", got)
	}
	taskguard(t, q.env.with("TASK_QUEUE", queueName+"-missing"), "recover").want(t, cli.ExitFailed, "then it failed\norder: found 0, enqueued 0\n")
}

func TestWrongKindsAreRefusedByName(t *testing.T) {
	t.Parallel()
	env := store(t)
	for text, want := range map[string]string{
		`order`:                 "want a JSON array of kinds",
		`[]`:                    "want a JSON array of kinds",
		`[{"name":"order"}] []`: "want a JSON array of kinds",
		`@/none`:                "or @FILE: open /none: no such file",
		`[{"name":"order"}]`:    `the kind at index 0: kind "order": no Collection`,
		`[{"name":"a","collection":"as"},{"name":"b","colection":"bs"}]`:                                            `json: unknown field "colection"`,
		`[{"name":"a","collection":"as"},{"name":"b","collection":"as"}]`:                                           `kind "b" has the name, the collection or the path of kind "a"`,
		`[{"name":"a","collection":"as","path":"/t"},{"name":"b","collection":"bs","path":"/t"}]`:                   `kind "b" has the name`,
		`[{"name":"a","collection":"as","fields":{"finished":"DONE","failed":"DONE"}},{"name":"","collection":""}]`: `kind "a": fields: two words of the status are equal`,
	} {
		taskguard(t, env.with("KINDS", text), "status").want(t, cli.ExitUsage, "taskguard status: KINDS: ", want).wantOneErrorLine(t)
	}
	taskguard(t, env.with("KINDS", kinds(t)), "status", "--kind", "orders").want(t, cli.ExitUsage, `unknown kind "orders": want analysis or order (did you mean order?)`).wantOneErrorLine(t)
	taskguard(t, env, "status", "--kind", "order").want(t, cli.ExitUsage, `unknown kind "order": want analysis (see`)
}

// The first kind is the default, and KINDS names all kinds, so that a service without analyses
// needs neither their collection nor a flag.
func TestKindsOfAFileNeedNoAnalysis(t *testing.T) {
	t.Parallel()
	env := store(t)
	env["KINDS"] = "@" + write(t, "kinds.json", `[{"name": "order", "collection": "orders", "fields": {"finished": "DONE"}}]`)
	put(t, env, "orders/x", map[string]any{"status": "DONE"})
	taskguard(t, env, "status", "--json").want(t, cli.ExitDone, `{"kind":"order","id":"x","status":"READY"`, "status --kind order: ", "/ orders on the emulator 127.0.0.1:")
	taskguard(t, env, "status", "--status", "DONE").want(t, cli.ExitDone, "reading")
	named := env.with("KINDS", `[{}]`).with("ANALYSES_COLLECTION", "orders")
	taskguard(t, named, "status", "--json").want(t, cli.ExitDone, `{"id":"x","status":"DONE"`, "/ orders on the emulator 127.0.0.1:")
}

func TestTheConsoleHasAPageForEachKind(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.env["KINDS"] = strings.TrimSuffix(kinds(t), "]") + `, {"name": "order2", "collection": "orders2"}]`
	create(t, analyses(t, q.env), "a")
	a := orders(t, q.env)
	locked(t, a, "x")
	put(t, q.env, "shops/s/orders/failed", map[string]any{"state": "ERROR", "failure": map[string]any{"code": "c"}, "updatedAt": "2020-01-01T00:00:00.000Z"})
	put(t, q.env, "shops/s/orders/killer", map[string]any{
		"state": "NEW", "lastError": map[string]any{"code": "crashed"}, "updatedAt": "2020-01-01T00:00:00.000Z",
		"history": []any{map[string]any{"attempt": 1, "owner": "rev/7/9F2C", "outcome": "crashed", "alone": true}},
	})
	address, log, _ := consoleOf(t, q.env, "--port", "0", "--write")
	page := func(path, holds, lacks string) {
		t.Helper()
		if code, text := browse(t, http.MethodGet, address+path, ""); code != http.StatusOK || !strings.Contains(text, holds) || strings.Contains(text, lacks) {
			t.Errorf("%s: %d, want %q and no %q in %s", path, code, holds, lacks, text)
		}
	}
	page("/", `href="/analysis?id=a"`, "id=x")
	page("/", `<a id="kind-analysis" href="/" aria-current="page">analysis</a><a id="kind-order" href="/kind/order/">order</a>`, "shops/s/orders")
	page("/kind/order/", `href="/kind/order/analysis?id=x"`, "id=a")
	page("/kind/order2/", "Nothing is here yet.", "id=x")
	page("/kind/order/", `<a id="kind-analysis" href="/">analysis</a><a id="kind-order" href="/kind/order/" aria-current="page">order</a>`, `data-poll="/?`)
	page("/kind/order/", `</svg>FAILED <b>1</b>`, "id=a")
	page("/kind/order/?q=fa", "id=failed", "id=x")
	page("/kind/order/?state=PROCESSING", `data-poll="/kind/order/?state=PROCESSING"`, "id=failed")
	page("/kind/order/failures", `href="/kind/order/failures/requeue?code=c"`, "id=x")
	page("/kind/order/failures", `>rev/7</bdi>, <b class="alone">alone</b>`, "requeue?code=crashed")
	if code, text := confirm(t, address, "kind/order/unlock", "x"); code != http.StatusOK || !strings.Contains(text, "Unlocked. It is in the queue again.") {
		t.Errorf("%d %s", code, text)
	}
	if d, err := a.Get(t.Context(), "x"); err != nil || d.Lock.Owner != "" || !strings.Contains(log.String(), "kind=order") {
		t.Errorf("%+v, %v: %s", d, err, log)
	}
	if got, want := q.booked(t), `/tasks/order {"order":"x"}`; got != want {
		t.Errorf("it books %q, want %q", got, want)
	}
	single, _, _ := consoleOf(t, q.env, "--port", "0", "--kind", "order")
	if _, text := browse(t, http.MethodGet, single+"/", ""); !strings.Contains(text, `href="/analysis?id=x"`) || strings.Contains(text, "kind-order") {
		t.Error(text)
	}
}
