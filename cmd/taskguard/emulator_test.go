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
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/testing/emulatortest"
)

// dockerArguments are the arguments of the container's program.
func dockerArguments(t *testing.T) (arguments []string) {
	t.Helper()
	file := must(os.ReadFile("../../deploy/emulator/Dockerfile"))(t)
	_, entry, _ := strings.Cut(string(file), "\nENTRYPOINT ")
	check(t, json.Unmarshal([]byte(entry), &arguments))
	return arguments[1:]
}

// createTask creates a task that posts "payload" to url.
func createTask(t *testing.T, env vars, url string) *cloudtaskspb.Task {
	t.Helper()
	conn := must(grpc.NewClient(env["CLOUD_TASKS_EMULATOR_HOST"], grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	client := must(apiv2.NewClient(t.Context(), option.WithGRPCConn(conn)))(t)
	t.Cleanup(func() { _ = client.Close() })
	return must(client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: env["TASK_QUEUE"], Task: &cloudtaskspb.Task{
		MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{Url: url, Body: []byte("payload")}},
	}}))(t)
}

func TestTheEmulatorServesGooglesClientsUntilSIGINT(t *testing.T) {
	t.Parallel()
	const tasks = 9 // 5 are delivered at once, and then one each 200 ms
	delivered := make(chan string, tasks+1)
	worker := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		delivered <- r.URL.Path + " " + string(body)
	}))
	defer worker.Close()
	cmd := exec.CommandContext(t.Context(), must(os.Executable())(t), append(dockerArguments(t), "--port", "0", "--as-documented", "--target", worker.URL)...)
	cmd.Env = append(os.Environ(), "TASK_QUEUE=projects/p1/locations/l/queues/tasks")
	var deliveries emulatortest.Log
	cmd.Stderr = &deliveries
	out := must(cmd.StdoutPipe())(t)
	check(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // if it still runs

	script, lines, health := "", bufio.NewReader(out), ""
	for ready := false; !ready; _, health, ready = strings.Cut(script, "# Ready: ") {
		script += must(lines.ReadString('\n'))(t)
	}
	if code, _ := browse(t, http.MethodGet, strings.Fields(health)[0], ""); code != http.StatusOK {
		t.Errorf("%s answers %d", health, code)
	}
	shell := exec.CommandContext(t.Context(), "env", "-i", "/bin/sh", "-c", `eval "$0"; /usr/bin/env`, script)
	env := vars{}
	for line := range strings.Lines(string(must(shell.Output())(t))) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		env[name] = value
	}
	if env["GOOGLE_CLOUD_PROJECT"] != "p1" || env["TASK_QUEUE"] != "projects/p1/locations/l/queues/tasks" {
		t.Errorf("it exports %v", env)
	}

	put(t, env, "notes/one", map[string]any{"text": "kept"})
	if snap := must(fieldsOf(t, env, "notes/one").Get(t.Context()))(t); snap.Data()["text"] != "kept" {
		t.Errorf("the document has %v", snap.Data())
	}
	began, task := time.Now(), &cloudtaskspb.Task{}
	for range tasks {
		task = createTask(t, env, worker.URL+"/run")
	}
	for range tasks {
		select {
		case got := <-delivered:
			if got != "/run payload" {
				t.Errorf("%s was delivered", got)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("no task was delivered")
		}
	}
	if slow := time.Since(began); slow < 600*time.Millisecond {
		t.Errorf("%d tasks within %v with --as-documented", tasks, slow)
	}
	taskguard(t, env, "submit", "--input", "{}", "--id", "x").want(t, cli.ExitDone) // with no other variable
	if got := <-delivered; got != `/internal/tasks/analysis {"analysis_id":"x"}` {
		t.Errorf("%s was delivered", got)
	}
	deliveries.Await(t, "task "+path.Base(task.Name)+", attempt 1: answered 200")

	check(t, cmd.Process.Signal(os.Interrupt))
	_, _ = io.Copy(io.Discard, lines)
	check(t, cmd.Wait()) // exit 0
}
