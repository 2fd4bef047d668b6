package main

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
)

// A submit that crashed between creation and booking is completed by the next one, and
// no other submit books. What is created anew is booked anew.
func TestSubmitBooksOneDeliveryForEachCreation(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	submit := func(want string) {
		t.Helper()
		taskguard(t, q.env, "submit", "--input", `{"text":"x"}`, "--id", "x", "--json").want(t, cli.ExitDone, want)
	}
	submit(`"created":true,"booked":"now","status":"QUEUED"`)
	submit(`"created":false,"booked":"already","status":"QUEUED"`)
	taskguard(t, q.env, "submit", "--input", `{"text":"x"}`, "--id", "x").
		want(t, cli.ExitDone, "x: exists already, QUEUED; already enqueued", "taskguard submit: to demo-test / (default) / analyses on the emulator ")
	taskguard(t, q.env, "submit", "--input", `{"text":"y"}`, "--id", "x").
		want(t, cli.ExitFailed, "choose another --id", "x: exists already with another input, which stays as it is; QUEUED; not enqueued")
	q.wantTasks(t, 1)
	taskguard(t, q.env.with("TASK_TARGET_URL", "https://w.example/internal/tasks/analysis/"), "submit", "main.go").
		want(t, cli.ExitUsage, "TASK_TARGET_URL: want it without /internal/tasks/analysis, ")
	put(t, q.env, "x", map[string]any{"status": "QUEUED", "createdAt": "2020-01-01T00:00:00.000Z", "input": map[string]any{"text": "x"}}) // created again, not booked
	submit(`"created":false,"booked":"now","status":"QUEUED"`)
	q.wantTasks(t, 2)
}

func TestInputIsOfAFileOrOfStandardInput(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	file, large := write(t, "input.json", `{"text": [1, "x"]}`+"\n"), strings.Repeat(" ", 1<<20)
	submit := func(in, input string) outcome {
		return taskguardWith(t.Context(), q.env, in, "submit", "--input", input)
	}
	id, _, _ := strings.Cut(submit("", "@"+file).want(t, cli.ExitDone, ": created").out, ":")
	submit(`{"text":[1,"x"]}`, "-").want(t, cli.ExitDone, id+": exists already, QUEUED")
	if got := objects(t, q.env, id)[0]; !strings.Contains(got, `"input":{"text":[1,"x"]}`) {
		t.Errorf("%s, want the file's value", got)
	}
	submit("{", "-").want(t, cli.ExitUsage, "--input: it is not JSON")
	submit("", "-").want(t, cli.ExitUsage, "--input: it is not JSON")
	submit(large, "-").want(t, cli.ExitFailed, "--input -: larger than 983040 bytes, which a document cannot hold")
	submit("", "@"+write(t, "large", large)).want(t, cli.ExitFailed, "larger than 983040 bytes, which a document cannot hold")
	submit("", "@"+file+"x").want(t, cli.ExitFailed, "--input @"+file+"x: ", "no such file")
	submit("", "@/dev/zero").want(t, cli.ExitFailed, "/dev/zero: not a regular file")
	taskguard(t, q.env, "submit", file, "--id", "mine").want(t, cli.ExitDone, "mine  "+file+": created")
	q.wantTasks(t, 2)
}

func TestSubmitRefusesARunTimeoutThatTheWorkerRefuses(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	taskguard(t, q.env.with("RUN_TIMEOUT", "31m"), "submit", "--input", "{}").
		want(t, cli.ExitUsage, "RUN_TIMEOUT: 31m0s is over 30m0s: Cloud Tasks then delivers the task again")
	q.wantTasks(t, 0)
}

func TestBookingsCarryTheWorkersDeadlineAndAudience(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.env["TASK_CALLER"] = caller
	for runTimeout, want := range map[string]time.Duration{"40s": 100 * time.Second, "30m": 30 * time.Minute, "": 26 * time.Minute} {
		id := cmp.Or(runTimeout, "unset")
		env := q.env.with("RUN_TIMEOUT", runTimeout).with("TASK_AUDIENCE", "https://"+id)
		taskguard(t, env, "submit", "--input", "{}", "--id", id).want(t, cli.ExitDone, "enqueued")
		found := false
		for _, task := range q.tasks(t) {
			token := task.GetHttpRequest().GetOidcToken()
			found = found || task.GetDispatchDeadline().AsDuration() == want && token.GetAudience() == "https://"+id && token.GetServiceAccountEmail() == caller
		}
		if !found {
			t.Errorf("%s: no task has the deadline %v, the audience and the account", id, want)
		}
	}
}
