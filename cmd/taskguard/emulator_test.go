package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"
	"time"

	apiv2 "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
)

// dockerArguments are the arguments of the container's program.
func dockerArguments(t *testing.T) (arguments []string) {
	t.Helper()
	file := must.Get(os.ReadFile("../../deploy/emulator/Dockerfile"))(t)
	_, entry, _ := strings.Cut(string(file), "\nENTRYPOINT ")
	must.OK(t, json.Unmarshal([]byte(entry), &arguments))
	return arguments[1:]
}

// createTask creates a task that posts "payload" to url.
func createTask(t *testing.T, env vars, url string) *cloudtaskspb.Task {
	t.Helper()
	conn := option.WithGRPCConn(dial(t, env["CLOUD_TASKS_EMULATOR_HOST"]))
	client := must.Get(apiv2.NewClient(t.Context(), conn))(t)
	t.Cleanup(func() { _ = client.Close() })
	request := &cloudtaskspb.HttpRequest{Url: url, Body: []byte("payload")}
	return must.Get(client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{
		Parent: env["TASK_QUEUE"],
		Task:   &cloudtaskspb.Task{MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: request}},
	}))(t)
}

func TestEmulator(t *testing.T) {
	t.Parallel()
	const tasks = 9 // 5 are delivered at once, and then one each 200 ms
	delivered := make(chan string, tasks+1)
	worker := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		delivered <- r.URL.Path + " " + string(body)
	}))
	defer worker.Close()
	args := append(dockerArguments(t), "--port", "0", "--as-documented", "--target", worker.URL)
	cmd := exec.CommandContext(t.Context(), must.Get(os.Executable())(t), args...)
	cmd.Env = append(os.Environ(), "TASK_QUEUE=projects/p1/locations/l/queues/tasks")
	var deliveries emulatortest.Log
	cmd.Stderr = &deliveries
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // if it still runs

	script, lines, health := "", bufio.NewReader(out), ""
	for ready := false; !ready; _, health, ready = strings.Cut(script, "# Ready: ") {
		script += must.Get(lines.ReadString('\n'))(t)
	}
	browse(t, http.MethodGet, strings.Fields(health)[0], "").want(t, http.StatusOK)
	shell := exec.CommandContext(t.Context(), "env", "-i", "/bin/sh", "-c", `eval "$0"; /usr/bin/env`, script)
	env := vars{}
	for line := range strings.Lines(string(must.Get(shell.Output())(t))) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		env[name] = value
	}
	if env["GOOGLE_CLOUD_PROJECT"] != "p1" || env["TASK_QUEUE"] != "projects/p1/locations/l/queues/tasks" {
		t.Errorf("it exports %v", env)
	}

	put(t, env, "notes/one", doc{"text": "kept"})
	wantValues(t, fieldsOf(t, env, "notes/one"), doc{"text": "kept"})
	next := func(want string) {
		t.Helper()
		if got := received(t, delivered); got != want {
			t.Errorf("%s was delivered, want %s", got, want)
		}
	}
	began, task := time.Now(), &cloudtaskspb.Task{}
	for range tasks {
		task = createTask(t, env, worker.URL+"/run")
	}
	for range tasks {
		next("/run payload")
	}
	if slow := time.Since(began); slow < 600*time.Millisecond {
		t.Errorf("%d tasks within %v with --as-documented", tasks, slow)
	}
	taskguard(t, env, "submit --input {} --id x").done(t) // with no other variable
	next(`/internal/tasks/analysis {"analysis_id":"x"}`)
	deliveries.Await(t, "task "+path.Base(task.Name)+", attempt 1: answered 200")

	must.OK(t, cmd.Process.Signal(os.Interrupt))
	_, _ = io.Copy(io.Discard, lines)
	must.OK(t, cmd.Wait()) // exit 0
}
