package python

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/firestore"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
)

const (
	input  = `{"text": "good day", "n": [1, 2.5, true, null, {}, -9223372036854775808], "e": [], "é": "/\u0001"}`
	target = "TASK_TARGET_URL=http://127.0.0.1:1/"
)

// What Python's submit creates is what the command taskguard submit creates, and it creates it once.
func TestSubmit(t *testing.T) {
	env := slices.Concat(examplestest.Start(t, "emulator"), []string{
		target, "TASK_CALLER=caller@project.example", "TASK_AUTH=none",
	})
	rest, documents, tasks := examplestest.REST(t, env), client(t, env), examplestest.Tasks(t, env)
	check := func(name, id, input, want string, env []string) {
		t.Helper()
		if got := submit(t, env, id, input); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	const created, existed = "Submission(created=True, ", "Submission(created=False, "
	const queued, ready = "enqueued=True, status='QUEUED')", "enqueued=False, status='READY')"

	check("the first call", "by-é", input, created+queued, rest)
	check("the second call", "by-é", input, existed+queued, rest)
	check("another input", "by-é", "{}", "OtherInput: the analysis by-é exists with another input", rest)
	check("the replies are lost", "lost", "[]", existed+queued, lossy(t, rest))
	check("an array in an array", "y", "[[1]]", "an array cannot hold an array or a vector directly", rest)
	check("no id of a document", "a/b", "1", "ValueError: 'a/b' cannot be the id of a document", rest)

	program := examplestest.Build(t, "taskguard/cmd/taskguard")
	command := exec.CommandContext(t.Context(), program, "submit", "--id", "by-go", "--input", input)
	command.Env = env
	examplestest.Output(t, command)
	got, want := document(t, documents, "by-é"), document(t, documents, "by-go")
	gotTask, wantTask := request(tasks, got, "by-é"), request(tasks, want, "by-go")
	for _, fields := range []map[string]any{got, want} {
		for _, name := range []string{"bookedTask", "createdAt", "updatedAt"} {
			if fields[name] == nil {
				t.Errorf("no %s: %v", name, fields)
			}
			delete(fields, name)
		}
	}
	if diff := cmp.Diff(want, got) + cmp.Diff(wantTask, gotTask, protocmp.Transform()); diff != "" {
		t.Errorf("-go +python\n%s", diff)
	}

	finish := []firestore.Update{{Path: "status", Value: "READY"}, {Path: "bookedTask", Value: firestore.Delete}}
	must.Get(documents.Doc("analyses/by-é").Update(t.Context(), finish))(t)
	check("a finished analysis", "by-é", input, existed+ready, rest)
}

func TestSubmitOnGooglesEmulator(t *testing.T) {
	host := emulatortest.Google(t)
	env := slices.Concat(examplestest.REST(t, examplestest.Start(t, "emulator")), []string{
		"FIRESTORE_EMULATOR_HOST=" + host, "GOOGLE_CLOUD_PROJECT=" + emulatortest.Project(), target,
	})
	submits(t, "sys.modules['grpc'] = None", env)
}

func TestSubmitWithGooglesClients(t *testing.T) {
	examplestest.Find(t, "PYTHON_CLIENTS", "python3")
	submits(t, "pass", append(examplestest.Start(t, "emulator"), target))
}

// submits submits an analysis twice, and then another input.
func submits(t *testing.T, first string, env []string) {
	t.Helper()
	for _, tc := range [][]string{
		{input, "created=True, enqueued=True"}, {input, "created=False, enqueued=True"}, {"[]", "OtherInput"},
	} {
		if got := submitWith(t, first, env, "an-é", tc[0]); !strings.Contains(got, tc[1]) {
			t.Errorf("%s, want %s", got, tc[1])
		}
	}
}

// request returns what the task of a document asks for, with "ID" instead of the id.
func request(tasks func(name string) *cloudtaskspb.Task, fields map[string]any, id string) *cloudtaskspb.Task {
	task := tasks(fields["bookedTask"].(string))
	http := task.GetHttpRequest()
	body := strings.NewReplacer(" ", "", `\u00e9`, "é").Replace(string(http.GetBody()))
	http.Body = []byte(strings.ReplaceAll(body, id, "ID"))
	return &cloudtaskspb.Task{
		DispatchDeadline: task.GetDispatchDeadline(), MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: http},
	}
}

func document(t *testing.T, c *firestore.Client, id string) map[string]any {
	t.Helper()
	return must.Get(c.Doc("analyses/" + id).Get(t.Context()))(t).Data()
}

// lossy returns env with the address of a proxy that loses the first reply of each path.
func lossy(t *testing.T, env []string) []string {
	t.Helper()
	host := strings.TrimPrefix(env[len(env)-1], "CLOUD_TASKS_EMULATOR_HOST=")
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: host})
	var seen sync.Map
	proxy.ModifyResponse = func(r *http.Response) error {
		if _, again := seen.LoadOrStore(r.Request.URL.Path, true); !again {
			r.StatusCode = http.StatusServiceUnavailable
		}
		return nil
	}
	return examplestest.Served(t, env, proxy)
}
