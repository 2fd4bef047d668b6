package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	tasksapi "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"

	"taskguard/cmd/internal/cli"
	"taskguard/emulator/cloudtasks"
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
	taskguard(t, env, "recover").want(t, cli.ExitFailed, "analysis not recovered", "analysis_id=malformed", "found 1, enqueued 0; then it failed\n", "taskguard recover: the queue does not exist: correct TASK_QUEUE (", "NotFound")
	orphaned(t, q.env, "a") // the first call has marked it
	if o := taskguard(t, env, "recover", "--json").want(t, cli.ExitFailed, "NotFound"); o.out != `{"found":1,"booked":0,"waiting":0,"more":true}`+"\n" {
		t.Errorf("stdout %q", o.out)
	}
}

// A restored document may be one that was never acquired, or has no updatedAt.
func TestRestoreRaisesTheTokensOfAllThatAreNotLocked(t *testing.T) {
	t.Parallel()
	env := store(t)
	put(t, env, "never acquired", map[string]any{"status": "QUEUED"})
	put(t, env, "ready", map[string]any{"status": "READY", "result": "kept", "lockToken": 7, "updatedAt": "2026-01-01T00:00:00.000Z"})
	put(t, env, "at the limit", map[string]any{"status": "QUEUED", "lockToken": 1000, "updatedAt": "2026-01-01T00:00:00.000Z"})
	put(t, env, "above", map[string]any{"status": "QUEUED", "lockToken": 1001})
	put(t, env, "stale", map[string]any{"status": "PROCESSING", "lockToken": 3, "lockOwner": "w/1", "lockExpiresAt": "2026-01-01T00:00:00.000Z"})
	all := fieldsOf(t, env, "x").Parent

	fields := func(id string) map[string]any {
		t.Helper()
		snap, err := all.Doc(id).Get(t.Context())
		check(t, err)
		return snap.Data()
	}

	taskguard(t, env, "restore", "--min-token", "1000").want(t, cli.ExitDone, "5 documents: 3 tokens raised to 1000, 0 failed")
	want := map[string]int64{"never acquired": 1000, "ready": 1000, "at the limit": 1000, "above": 1001, "stale": 1000}
	for id, token := range want {
		if f := fields(id); f["lockToken"] != token || id == "ready" && (f["status"] != "READY" || f["result"] != "kept") ||
			id == "at the limit" && f["updatedAt"] != "2026-01-01T00:00:00.000Z" {
			t.Errorf("%s: %v, want the token %d", id, f, token)
		}
	}

	locked(t, analyses(t, env), "held")
	put(t, env, "odd", map[string]any{"status": "QUEUED", "lockToken": "x"})
	taskguard(t, env, "restore", "--min-token", "1000", "--json").want(t, cli.ExitFailed, `"documents":7,"failed":2,"min_token":1000,"raised":0`, `"odd"`, "taskguard unlock", `"held" is locked by `)
	if token := fields("held")["lockToken"]; token != int64(1) {
		t.Errorf("the token of a lock that is held became %v", token)
	}

	before := time.Now().Add(-time.Minute).UnixMicro()
	taskguard(t, env, "restore", "--min-token", "now").want(t, cli.ExitFailed, "5 tokens raised")
	if token := fields("above")["lockToken"].(int64); token < before {
		t.Errorf("now: %d", token)
	}
	for _, bad := range []string{"", "0", "-1", "x", "1.5", fmt.Sprint(time.Now().Add(time.Hour).UnixMicro())} {
		taskguard(t, env, "restore", "--min-token", bad).want(t, cli.ExitUsage, "--min-token must be ")
	}
}

// testQueue is a store, and a queue whose deliveries all fail, so that booked tasks stay.
type testQueue struct {
	env    vars
	client *tasksapi.Client
	seen   map[string]bool // by booked
}

func newQueue(t *testing.T) *testQueue {
	t.Helper()
	server, l := cloudtasks.NewServer(cloudtasks.Options{Token: func(string, string) (string, error) { return "token", nil }}), listen(t)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Close(); serving.Wait() })
	conn := must(server.Dial())(t)
	client, err := tasksapi.NewClient(context.Background(), option.WithGRPCConn(conn))
	check(t, err)
	t.Cleanup(func() { _ = client.Close() })
	_, err = client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{
		Parent: "projects/demo-taskguard/locations/local", Queue: &cloudtaskspb.Queue{Name: queueName},
	})
	check(t, err)
	env := store(t)
	env["TASK_QUEUE"], env["TASK_TARGET_URL"], env["CLOUD_TASKS_EMULATOR_HOST"] = queueName, "http://"+closedPort(t), l.Addr().String()
	return &testQueue{env, client, map[string]bool{}}
}

// tasks returns the tasks in the queue.
func (q *testQueue) tasks(t *testing.T) (all []*cloudtaskspb.Task) {
	t.Helper()
	request := &cloudtaskspb.ListTasksRequest{Parent: queueName, ResponseView: cloudtaskspb.Task_FULL}
	for task, err := range q.client.ListTasks(t.Context(), request).All() {
		check(t, err)
		all = append(all, task)
	}
	return all
}

func (q *testQueue) wantTasks(t *testing.T, want int) {
	t.Helper()
	if n := len(q.tasks(t)); n != want {
		t.Errorf("%d tasks, want %d", n, want)
	}
}

const shippedFiles = "../../deploy/"

// variant is a shipped service.yaml with one text replaced.
func variant(t *testing.T, old, replacement string) string {
	t.Helper()
	data := string(must(os.ReadFile(shippedFiles + "service.yaml"))(t))
	if !strings.Contains(data, old) {
		t.Fatalf("no %q in it", old)
	}
	return write(t, "service.yaml", strings.Replace(data, old, replacement, 1))
}

func TestDoctorPrintsWhatItFindsAndExits1ForAProblem(t *testing.T) {
	taskguard(t, vars{}, "doctor", "--service", variant(t, "timeoutSeconds: 1560", "timeoutSeconds: 300")).want(t, cli.ExitFailed,
		"\nproblem: RUN_TIMEOUT is 25m0s, but Cloud Run ends the request after 5m0s", " (run-timeout)\n    Set timeoutSeconds: 1560 ",
		"\n1 problem, 0 pieces of advice\n")
	taskguard(t, vars{}, "doctor", "--service", variant(t, "memory: 1Gi", "memory: 512Mi")).
		want(t, cli.ExitDone, "\nadvice: ", "(memory)", "\n0 problems, 1 piece of advice\n")

	o := taskguard(t, vars{}, "doctor", "--json", "--service", variant(t, "LOCK_TTL", "LOCK_TLL")).want(t, cli.ExitFailed)
	d := wantKeys(t, o.out, "read", "findings", "unchecked")
	if findings := d["findings"].([]any); len(findings) != 1 || !strings.Contains(o.out, `"unknown-variable"`) || len(d["read"].([]any)) != 1 || strings.Count(o.out, "\n") != 1 {
		t.Errorf("%s", o.out)
	}
	args, read := []string{"doctor", "--json"}, []string{`"findings":[]`}
	for flag, file := range map[string]string{"service": "service.yaml", "doclock": "doclock.yaml", "queue": "queue.yaml", "indexes": "firestore.indexes.json"} {
		args, read = append(args, "--"+flag, shippedFiles+file), append(read, `"from":"`+shippedFiles+file+`"`)
	}
	taskguard(t, vars{}, args...).want(t, cli.ExitDone, read...)
}

func TestDoctorReadsTheKindsAndReportsWhatItCannotRead(t *testing.T) {
	indexes := shippedFiles + "firestore.indexes.json"
	taskguard(t, vars{"KINDS": `[{"collection":"analysis"}]`}, "doctor", "--indexes", indexes).want(t, cli.ExitFailed,
		"(collection)\n", "\n1 problem, 0 pieces of advice\n")
	taskguard(t, vars{"KINDS": `[{}, {"name":"order","collection":"shops/s/orders"}]`}, "doctor", "--indexes", indexes).want(t, cli.ExitFailed,
		"--collection-group=orders ", "The field input of orders is indexed", "\n9 problems, 0 pieces of advice\n")
	taskguard(t, vars{"KINDS": "{}"}, "doctor", "--indexes", indexes).want(t, cli.ExitUsage, "KINDS: want a JSON array")
	for _, emulated := range []vars{{"FIRESTORE_EMULATOR_HOST": "127.0.0.1:1"}, {"CLOUD_TASKS_EMULATOR_HOST": "127.0.0.1:1"}} {
		emulated["GOOGLE_CLOUD_PROJECT"] = "p"
		for _, args := range []string{"doctor", "doctor --json", "doctor --service projects/p/locations/l/services/s", "doctor --doclock projects/p/locations/l/services/s --indexes " + indexes} {
			taskguard(t, emulated, strings.Fields(args)...).want(t, cli.ExitUsage, "_EMULATOR_HOST is set, and doctor checks a deployment on Google Cloud: unset FIRESTORE_EMULATOR_HOST and CLOUD").wantOneErrorLine(t)
		}
		taskguard(t, emulated, "doctor", "--indexes", indexes).want(t, cli.ExitDone, "no problem in what was read")
	}
	taskguard(t, vars{}, "doctor", "--service", "no/such.yaml").want(t, cli.ExitUsage, `--service: "no/such.yaml" is neither a file nor the name of a service`)
	for _, file := range []string{t.TempDir(), write(t, "junk", "\x00\x01\x02\xff\xfe\n\x1b[2J")} {
		o := taskguard(t, vars{}, "doctor", "--queue", file).want(t, cli.ExitFailed, "not readable: ", "\nnothing was read\n")
		if o.err != "" || strings.ContainsAny(o.out, "\x00\x1b") {
			t.Errorf("%s: %q", file, o.out+o.err)
		}
	}
}

func TestEnvPrintsTheExportsOfADeployment(t *testing.T) {
	service, doclock := shippedFiles+"service.yaml", shippedFiles+"doclock.yaml"
	taskguard(t, vars{}, "env", "--service", service, "--doclock", doclock).want(t, cli.ExitDone,
		"export GOOGLE_CLOUD_PROJECT=my-project\n", "export FIRESTORE_DATABASE='(default)'\n", "export ANALYSES_COLLECTION=analyses\n",
		"export TASK_QUEUE=projects/my-project/locations/europe-west1/queues/analyses\n", "export TASK_CALLER=taskguard-caller@my-project.iam",
		"export TASK_TARGET_URL=https://taskguard-worker-123456789012.europe-west1.run.app\n", "export CLOUDSDK_RUN_REGION=europe-west1\n",
		"export DOCLOCK_DATABASE=taskguard-doclock\n", "export KEEP_FINISHED=''\n", "export FIRESTORE_EMULATOR_HOST=''\n")
	taskguard(t, vars{}, "env", "--json", "--service", service).want(t, cli.ExitDone, `"RUN_TIMEOUT":"25m"`)
	secret := variant(t, "- name: RUN_TIMEOUT\n              value: 25m", "- name: KEEP_FINISHED\n              valueFrom: {secretKeyRef: {name: s, key: latest}}")
	taskguard(t, vars{}, "env", "--service", secret).want(t, cli.ExitDone, "export KEEP_FINISHED=''\n")
	taskguard(t, vars{}, "env").want(t, cli.ExitUsage, "--service")

	// As the documented eval does.
	o := taskguard(t, vars{}, "env", "--service", "no/such")
	shell := exec.Command("/bin/sh", "-c", `eval "$0"; echo "$? $TASK_QUEUE$DOCLOCK_DATABASE$GOOGLE_CLOUD_PROJECT"`, o.out)
	shell.Env = []string{"TASK_QUEUE=old", "DOCLOCK_DATABASE=old", "GOOGLE_CLOUD_PROJECT=old"}
	if got, err := shell.CombinedOutput(); err != nil || string(got) != "1 \n" {
		t.Errorf("after an error, the shell has %q, %v; want a failure, and nothing of an earlier env", got, err)
	}
	if o := taskguard(t, vars{}, "env", "--json", "--service", "no/such"); o.out != "" {
		t.Errorf("--json prints %s", o.out)
	}
	taskguard(t, vars{}, "env", "--service", "no/such").want(t, cli.ExitUsage, "neither a file nor the name of a service")
	taskguard(t, vars{}, "env", "--service", shippedFiles+"queue.yaml").want(t, cli.ExitFailed, "is not a Cloud Run service")
}
