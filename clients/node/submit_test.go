package node

import (
	"encoding/json"
	"errors"
	"net"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	tasksapi "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/testing/protocmp"

	"taskguard/emulator/cloudtasks"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/examplestest"
	"taskguard/worker"
)

const queueName = "projects/p/locations/l/queues/q"

// submission is what submit resolves to, or the name of its error.
type submission struct {
	ID       string
	Created  bool
	Enqueued bool
	Status   string
	Error    string
}

// submitters submit to one queue, in Node and in Go.
type submitters struct {
	t     *testing.T
	b     *emulatortest.Backend
	in    *json.Encoder // of calls for Node
	out   *json.Decoder
	inGo  *worker.Work
	tasks *tasksapi.Client
}

func startSubmitters(t *testing.T) *submitters {
	t.Helper()
	b := emulatortest.Embedded(t)
	address, client := pausedQueue(t)
	variables := []string{
		"CLOUD_TASKS_EMULATOR_HOST=" + address, "TASK_QUEUE=" + queueName, "TASK_TARGET_URL=https://worker.example/base/",
		"TASK_CALLER=a@b.example",
	}

	paths := examplestest.Find(t, "NODE", "node", "npm")
	cmd := exec.CommandContext(t.Context(), paths[0], "submits.mjs")
	cmd.Dir = directory(t, paths[1], "submits.mjs")
	cmd.Env = environment(b, b.Listen(t), variables...)
	in, err := cmd.StdinPipe()
	check(t, err)
	out := start(t, cmd)

	guard, err := worker.Open(t.Context(), worker.Options{
		Project: b.Project, FirestoreOptions: b.Client(t),
		Queue: worker.Queue{
			Name: queueName, TargetURL: "https://worker.example/base/", Caller: "a@b.example", EmulatorHost: address,
		},
	})
	check(t, err)
	t.Cleanup(func() { _ = guard.Shutdown(t.Context()) })
	return &submitters{t, b, json.NewEncoder(in), json.NewDecoder(out), guard.MustRegister(worker.Kind{}), client}
}

// pausedQueue returns the host:port of a queue that keeps its tasks.
func pausedQueue(t *testing.T) (address string, client *tasksapi.Client) {
	t.Helper()
	server := cloudtasks.NewServer(cloudtasks.Options{})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	check(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Close(); serving.Wait() })
	conn, err := server.Dial()
	check(t, err)
	client, err = tasksapi.NewClient(t.Context(), option.WithGRPCConn(conn))
	check(t, errors.Join(err, server.CreateQueue(&cloudtaskspb.Queue{Name: queueName})))
	t.Cleanup(func() { _ = client.Close() })
	_, err = client.PauseQueue(t.Context(), &cloudtaskspb.PauseQueueRequest{Name: queueName})
	check(t, err)
	return l.Addr().String(), client
}

// submit submits in Node. queue is the one that submits.mjs has under this name.
func (s *submitters) submit(id string, input any, queue string, options map[string]any) (got submission) {
	s.t.Helper()
	call := map[string]any{"id": id, "input": input, "queue": queue, "options": options}
	check(s.t, errors.Join(s.in.Encode(call), s.out.Decode(&got)))
	return got
}

// queued returns the tasks in the order of their creation.
func (s *submitters) queued() (all []*cloudtaskspb.Task) {
	s.t.Helper()
	request := &cloudtaskspb.ListTasksRequest{Parent: queueName, ResponseView: cloudtaskspb.Task_FULL}
	for task, err := range s.tasks.ListTasks(s.t.Context(), request).All() {
		check(s.t, err)
		all = append(all, task)
	}
	slices.SortFunc(all, func(a, b *cloudtaskspb.Task) int {
		return a.GetCreateTime().AsTime().Compare(b.GetCreateTime().AsTime())
	})
	return all
}

// What Node submits, Go submits again and finds it done, and the other way round. Both write the same document
// and the same task.
func TestSubmitInNodeIsSubmitInGo(t *testing.T) {
	s := startSubmitters(t)
	input := map[string]any{"text": "é", "pages": 40, "rate": 0.5, "tags": []any{"a", nil, true}, "more": map[string]any{}}
	created := submission{ID: "a", Created: true, Enqueued: true, Status: "QUEUED"}
	if got := s.submit("a", input, "lossy", nil); got != created {
		t.Errorf("%+v, want %+v", got, created)
	}
	if again, err := s.inGo.Submit(t.Context(), "a", input); err != nil || !again.Already {
		t.Errorf("in Go after Node: %+v, %v, want it enqueued already", again, err)
	}

	_, err := s.inGo.Submit(t.Context(), "b", input)
	check(t, err)
	if got, want := s.submit("b", input, "", nil), (submission{ID: "b", Enqueued: true, Status: "QUEUED"}); got != want {
		t.Errorf("in Node after Go: %+v, want %+v", got, want)
	}

	tasks := s.queued()
	if len(tasks) != 2 {
		t.Fatalf("%d tasks, want one for each document: %v", len(tasks), tasks)
	}
	other := protocmp.IgnoreFields(&cloudtaskspb.Task{}, "name", "create_time", "schedule_time")
	body := protocmp.IgnoreFields(&cloudtaskspb.HttpRequest{}, "body")
	if diff := cmp.Diff(tasks[1], tasks[0], protocmp.Transform(), other, body); diff != "" {
		t.Errorf("the tasks differ (-Go +Node)\n%s", diff)
	}
	if got := string(tasks[0].GetHttpRequest().GetBody()); got != `{"analysis_id":"a"}` {
		t.Errorf("the task's body is %s", got)
	}

	inNode, inGo := s.b.Fields(t, "a"), s.b.Fields(t, "b")
	for _, fields := range []map[string]any{inNode, inGo} {
		if at, ok := fields["createdAt"].(time.Time); !ok || time.Since(at) > time.Minute || fields["updatedAt"] != at {
			t.Errorf("the times are %v, %v", fields["createdAt"], fields["updatedAt"])
		}
		delete(fields, "createdAt")
		delete(fields, "updatedAt")
		delete(fields, "bookedTask")
	}
	if diff := cmp.Diff(inGo, inNode); diff != "" {
		t.Errorf("the documents differ (-Go +Node)\n%s", diff)
	}
}

func TestSubmitInNodeLeavesOtherDocuments(t *testing.T) {
	s := startSubmitters(t)
	at := time.Now().Add(-time.Hour).Add(123_999 * time.Microsecond)
	put := func(id string, fields map[string]any) {
		s.b.Put(t, id, map[string]any{"input": map[string]any{"n": 1}, "createdAt": at, "updatedAt": at})
		s.b.Merge(t, id, fields)
	}
	put("finished", map[string]any{"status": "READY"})
	put("other", map[string]any{"status": "QUEUED", "input": 2})
	put("running", map[string]any{"status": "PROCESSING", "lockOwner": "w/1/x"})
	put("unnamed", map[string]any{"status": "QUEUED"})
	for id, want := range map[string]submission{
		"finished": {ID: "finished", Status: "READY"},
		"other":    {Error: "OtherInput"},
		"running":  {ID: "running", Enqueued: true, Status: "PROCESSING"},
	} {
		if got := s.submit(id, map[string]any{"n": 1}, "", nil); got != want {
			t.Errorf("%s: %+v, want %+v", id, got, want)
		}
	}
	if tasks := s.queued(); len(tasks) != 0 {
		t.Errorf("tasks %v, want none", tasks)
	}

	// The application that created it has not named its task: Node and Go give it the same name.
	if got := s.submit("unnamed", map[string]any{"n": 1}, "", nil); !got.Enqueued {
		t.Errorf("%+v, want it enqueued", got)
	}
	again, err := s.inGo.Submit(t.Context(), "unnamed", map[string]any{"n": 1})
	if err != nil || !again.Already || len(s.queued()) != 1 {
		t.Errorf("%+v, %v with %d tasks, want it enqueued already", again, err, len(s.queued()))
	}

	want := submission{Error: "NotEnqueued"}
	if got := s.submit("refused", nil, "refusing", nil); got != want || s.b.Fields(t, "refused")["status"] != "QUEUED" {
		t.Errorf("%+v with %v, want the document alone", got, s.b.Fields(t, "refused"))
	}
	for name, value := range map[string]any{"colection": "x", "queue": "", "targetUrl": "", "tasks": 1, "firestore": 1} {
		if got := s.submit("none", nil, "", map[string]any{name: value}); got.Error != "TypeError" {
			t.Errorf("%s: %+v, want a TypeError", name, got)
		}
	}
	if s.b.Fields(t, "none") != nil {
		t.Error("an option that is refused leaves a document")
	}
}
