package main

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
)

// A submit that crashed between creation and booking is completed by the next one, and
// no other submit books. What is created anew is booked anew.
func TestSubmit(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	submit := func(created bool, booked string) {
		t.Helper()
		object := taskguard(t, q.env, `submit --input {"text":"x"} --id x --json`).done(t).object(t)
		fields := wantKeys(t, object, "id name created booked status")
		wantValues(t, fields, doc{"created": created, "booked": booked, "status": "QUEUED"})
	}
	submit(true, "now")
	submit(false, "already")
	taskguard(t, q.env, `submit --input {"text":"x"} --id x`).done(t, "exists already", "demo-test / (default)")
	taskguard(t, q.env, `submit --input {"text":"y"} --id x`).fails(t, "--id", "another input")
	target := q.env.with("TASK_TARGET_URL", "https://w.example/internal/tasks/analysis/")
	taskguard(t, target, "submit main.go").refused(t, "TASK_TARGET_URL")
	q.wantTasks(t, 1)
	put(t, q.env, "x", doc{"status": "QUEUED", "createdAt": longAgo, "input": doc{"text": "x"}}) // again, not booked
	submit(false, "now")
	q.wantTasks(t, 2)
}

func TestSubmit_Input(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	file, large := write(t, "input.json", `{"text": [1, "x"]}`+"\n"), strings.Repeat(" ", 1<<20)
	submit := func(in, input string) outcome {
		return taskguardWith(t.Context(), q.env, in, "submit", "--input", input)
	}
	id, _, _ := strings.Cut(submit("", "@"+file).done(t).out, ":")
	submit(`{"text":[1,"x"]}`, "-").done(t, id+": exists already")
	taskguard(t, q.env, "status --json "+id).done(t, `"input":{"text":[1,"x"]}`)
	submit("{", "-").refused(t, "--input")
	submit("", "-").refused(t, "--input")
	submit(large, "-").fails(t, "983040") // which a document cannot hold
	submit("", "@"+write(t, "large", large)).fails(t, "983040")
	submit("", "@"+file+"x").fails(t, "--input @"+file+"x: ")
	submit("", "@/dev/zero").fails(t, "not a regular file")
	taskguard(t, q.env, "submit "+file+" --id mine").done(t, "mine  "+file)
	q.wantTasks(t, 2)
}

func TestSubmit_Task(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.env["TASK_CALLER"] = caller
	for runTimeout, want := range map[string]time.Duration{
		"40s": 100 * time.Second, "30m": 30 * time.Minute, "": 26 * time.Minute,
	} {
		audience := "https://" + cmp.Or(runTimeout, "unset")
		env := q.env.with("RUN_TIMEOUT", runTimeout).with("TASK_AUDIENCE", audience)
		taskguard(t, env, "submit --input {} --id x"+runTimeout).done(t)
		tasks := q.tasks(t)
		task := tasks[slices.IndexFunc(tasks, func(task *cloudtaskspb.Task) bool {
			return task.GetHttpRequest().GetOidcToken().GetAudience() == audience
		})]
		if got := task.GetDispatchDeadline().AsDuration(); got != want {
			t.Errorf("%q: a deadline of %v, want %v", runTimeout, got, want)
		}
		if got := task.GetHttpRequest().GetOidcToken().GetServiceAccountEmail(); got != caller {
			t.Errorf("%q: the account %q", runTimeout, got)
		}
	}
}
