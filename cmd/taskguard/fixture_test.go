package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	tasksapi "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	gcp "cloud.google.com/go/firestore"
	"go.uber.org/goleak"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"taskguard/cmd/internal/cli"
	"taskguard/emulator/cloudtasks"
	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

// asProgram makes the test binary behave as taskguard itself. Workers inherit it.
const asProgram = "TASKGUARD_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	if err := os.Setenv(asProgram, "1"); err != nil {
		panic(err)
	}
	if signal.Ignored(syscall.SIGHUP) { // by nohup, and then by all that is started here
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	emulatortest.Isolate()
	os.Args[0] = "taskguard" // as a shell starts it
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil { // the tests mostly wait for processes
		panic(err)
	}
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil { // such as a connection that a command has left open
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const (
	queueName    = "projects/demo-taskguard/locations/local/queues/analyses"
	caller       = "tasks@demo-taskguard.iam.gserviceaccount.com"
	longAgo      = "2020-01-01T00:00:00.000Z"
	shippedFiles = "../../deploy/"
)

// doc is the fields of a document.
type doc = map[string]any

// vars is an environment.
type vars map[string]string

func (v vars) lookup(name string) (string, bool) {
	value, ok := v[name]
	return value, ok
}

func (v vars) with(name, value string) vars {
	v = maps.Clone(v)
	v[name] = value
	return v
}

func (v vars) without(names ...string) vars {
	v = maps.Clone(v)
	for _, name := range names {
		delete(v, name)
	}
	return v
}

// outcome is the result of one command.
type outcome struct {
	code     int
	out, err string
}

// taskguard runs a command line in this process. Arguments with spaces follow it.
func taskguard(t testing.TB, env vars, line string, args ...string) outcome {
	t.Helper()
	return taskguardWith(t.Context(), env, "", append(strings.Fields(line), args...)...)
}

// taskguardWith runs a command with a standard input, until ctx ends.
func taskguardWith(ctx context.Context, env vars, in string, args ...string) outcome {
	var out, errs emulatortest.Log // written to at the same time, as a file may be
	code := cli.Run(ctx, commands(), args, cli.Streams{In: strings.NewReader(in), Out: &out, Err: &errs}, env.lookup)
	return outcome{code, out.String(), errs.String()}
}

// want fails unless the command exited with code and its output holds parts.
func (o outcome) want(t testing.TB, code int, parts ...string) outcome {
	t.Helper()
	if o.code != code {
		t.Fatalf("exit %d, want %d\nstdout: %s\nstderr: %s", o.code, code, o.out, o.err)
	}
	for _, part := range parts {
		if !strings.Contains(o.out+o.err, part) {
			t.Errorf("output lacks %q\nstdout: %s\nstderr: %s", part, o.out, o.err)
		}
	}
	return o
}

func (o outcome) done(t testing.TB, parts ...string) outcome {
	t.Helper()
	return o.want(t, cli.ExitDone, parts...)
}

func (o outcome) fails(t testing.TB, parts ...string) outcome {
	t.Helper()
	return o.want(t, cli.ExitFailed, parts...)
}

// refused is wrong usage, or a wrong environment.
func (o outcome) refused(t testing.TB, parts ...string) outcome {
	t.Helper()
	return o.want(t, cli.ExitUsage, parts...)
}

// lacks fails if the output holds one of parts.
func (o outcome) lacks(t testing.TB, parts ...string) outcome {
	t.Helper()
	for _, part := range parts {
		if strings.Contains(o.out+o.err, part) {
			t.Errorf("output has %q\nstdout: %s\nstderr: %s", part, o.out, o.err)
		}
	}
	return o
}

// wantOneErrorLine fails unless the output is one line on standard error.
func (o outcome) wantOneErrorLine(t testing.TB) {
	t.Helper()
	if o.out != "" || strings.Count(o.err, "\n") != 1 {
		t.Errorf("want one line on standard error alone\nstdout: %s\nstderr: %s", o.out, o.err)
	}
}

// objects are the lines of JSON on standard output.
func (o outcome) objects(t testing.TB) (all []doc) {
	t.Helper()
	for line := range strings.Lines(o.out) {
		var object doc
		must.OK(t, json.Unmarshal([]byte(line), &object))
		all = append(all, object)
	}
	return all
}

// object is the only line of JSON on standard output.
func (o outcome) object(t testing.TB) doc {
	t.Helper()
	all := o.objects(t)
	if len(all) != 1 {
		t.Fatalf("%d lines, want one of JSON: %s", len(all), o.out)
	}
	return all[0]
}

// wantKeys fails unless object, which is one of JSON, has just these keys. It returns them.
func wantKeys(t testing.TB, object any, keys string) doc {
	t.Helper()
	fields, _ := object.(doc)
	want := slices.Sorted(strings.FieldsSeq(keys))
	if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	return fields
}

// wantValues fails unless object has these values.
func wantValues(t testing.TB, object, values doc) {
	t.Helper()
	for name, want := range values {
		if got := object[name]; got != want {
			t.Errorf("%s is %v, want %v in %v", name, got, want, object)
		}
	}
}

// ago is a time as documents store it.
func ago(d time.Duration) string { return iso8601.Format(time.Now().Add(-d)) }

// store is an embedded Firestore on a port.
func store(t testing.TB) vars {
	t.Helper()
	l := listen(t)
	s := firestore.NewServer(firestore.Options{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Close(); serving.Wait() })
	return vars{"GOOGLE_CLOUD_PROJECT": "demo-test", "FIRESTORE_EMULATOR_HOST": l.Addr().String()}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	return must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
}

// closedPort is an address at which nothing listens.
func closedPort(t testing.TB) string {
	t.Helper()
	l := listen(t)
	defer l.Close()
	return l.Addr().String()
}

// analyses opens what env names, as a worker would.
func analyses(t testing.TB, env vars) *repo.Analyses {
	t.Helper()
	return opened(t, env, repo.Options{})
}

func opened(t testing.TB, env vars, o repo.Options) *repo.Analyses {
	t.Helper()
	o.Emulator = env["FIRESTORE_EMULATOR_HOST"]
	a := must.Get(repo.Open(t.Context(), env["GOOGLE_CLOUD_PROJECT"], o))(t)
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// create creates the analysis id.
func create(t testing.TB, a *repo.Analyses, id string) {
	t.Helper()
	must.OK(t, a.Create(t.Context(), id, doc{"text": "x"}, repo.CreateOptions{}))
}

// locked creates the analysis id and takes its lock.
func locked(t testing.TB, a *repo.Analyses, id string) {
	t.Helper()
	create(t, a, id)
	acq, err := a.AcquireAnalysisLock(t.Context(), id, "w/1", 0, analysislock.AcquireOptions{})
	if err != nil || !acq.Acquired {
		t.Fatalf("acquire: %+v, %v", acq, err)
	}
}

// put writes a document as another program may: an analysis by its id, another by its path.
func put(t testing.TB, env vars, id string, fields doc) {
	t.Helper()
	must.Get(reference(t, env, id).Set(t.Context(), fields))(t)
}

// fieldsOf are those of a document, as another program sees them.
func fieldsOf(t testing.TB, env vars, id string) doc {
	t.Helper()
	return must.Get(reference(t, env, id).Get(t.Context()))(t).Data()
}

func reference(t testing.TB, env vars, id string) *gcp.DocumentRef {
	t.Helper()
	client := must.Get(gcp.NewClient(t.Context(), env["GOOGLE_CLOUD_PROJECT"],
		option.WithGRPCConn(dial(t, env["FIRESTORE_EMULATOR_HOST"]))))(t)
	t.Cleanup(func() { _ = client.Close() })
	if !strings.Contains(id, "/") {
		id = "analyses/" + id
	}
	return client.Doc(id)
}

func dial(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	return must.Get(grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
}

// orphaned writes analyses that were last updated long ago.
func orphaned(t testing.TB, env vars, ids ...string) {
	t.Helper()
	for _, id := range ids {
		put(t, env, id, doc{"status": "QUEUED", "updatedAt": longAgo, "input": doc{"text": "x"}})
	}
}

// failedAnHourAgo returns an analysis that FAILED with the code c.
func failedAnHourAgo() doc {
	return doc{
		"status": "FAILED", "attempts": 3, "lockToken": 3, "finishedBy": "w/1", "updatedAt": ago(time.Hour),
		"error": doc{"code": "c", "message": "m"},
	}
}

// putFailed writes n analyses as failedAnHourAgo returns them.
func putFailed(t testing.TB, env vars, n int) {
	t.Helper()
	all := reference(t, env, "x").Parent
	for i := range n {
		must.Get(all.Doc(fmt.Sprint("x", i)).Set(t.Context(), failedAnHourAgo()))(t)
	}
}

// testQueue is a store, and a queue whose deliveries all fail, so that booked tasks stay.
type testQueue struct {
	env    vars
	client *tasksapi.Client
	seen   map[string]bool // by booked
}

func newQueue(t testing.TB) *testQueue {
	t.Helper()
	server := cloudtasks.NewServer(cloudtasks.Options{
		Token: func(string, string) (string, error) { return "token", nil },
	})
	l := listen(t)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Close(); serving.Wait() })
	client := must.Get(tasksapi.NewClient(context.Background(), option.WithGRPCConn(must.Get(server.Dial())(t))))(t)
	t.Cleanup(func() { _ = client.Close() })
	must.Get(client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{
		Parent: "projects/demo-taskguard/locations/local", Queue: &cloudtaskspb.Queue{Name: queueName},
	}))(t)
	env := store(t).with("TASK_QUEUE", queueName).with("TASK_TARGET_URL", "http://"+closedPort(t)).
		with("CLOUD_TASKS_EMULATOR_HOST", l.Addr().String())
	return &testQueue{env, client, map[string]bool{}}
}

// missing is an environment whose queue does not exist.
func (q *testQueue) missing() vars { return q.env.with("TASK_QUEUE", queueName+"-missing") }

// without is an environment that names no queue.
func (q *testQueue) without() vars {
	return q.env.without("TASK_QUEUE", "TASK_TARGET_URL", "CLOUD_TASKS_EMULATOR_HOST")
}

// tasks returns the tasks in the queue.
func (q *testQueue) tasks(t testing.TB) (all []*cloudtaskspb.Task) {
	t.Helper()
	request := &cloudtaskspb.ListTasksRequest{Parent: queueName, ResponseView: cloudtaskspb.Task_FULL}
	for task, err := range q.client.ListTasks(t.Context(), request).All() {
		must.OK(t, err)
		all = append(all, task)
	}
	return all
}

func (q *testQueue) wantTasks(t testing.TB, want int) {
	t.Helper()
	if n := len(q.tasks(t)); n != want {
		t.Errorf("%d tasks, want %d", n, want)
	}
}

// wantBooked fails unless these are the paths and bodies of the tasks that were booked since its last call.
func (q *testQueue) wantBooked(t testing.TB, want ...string) {
	t.Helper()
	var got []string
	for _, task := range q.tasks(t) {
		if r := task.GetHttpRequest(); !q.seen[task.GetName()] {
			q.seen[task.GetName()] = true
			got = append(got, strings.TrimPrefix(r.GetUrl(), q.env["TASK_TARGET_URL"])+" "+string(r.GetBody()))
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("it books %q, want %q", got, want)
	}
}

// write writes a file.
func write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.OK(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// script writes a program for ANALYZER=exec:.
func script(t testing.TB, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "analyzer")
	must.OK(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o700))
	return path
}

// eventually polls for at most 30 s.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// wantParts waits until a log has parts.
func wantParts(t testing.TB, log *emulatortest.Log, parts ...string) {
	t.Helper()
	for _, part := range parts {
		log.Await(t, part)
	}
}

// localCloud runs `taskguard local` in this process and returns its environment, with the addresses of its
// pages, and its progress.
func localCloud(t testing.TB, env vars, flags ...string) (vars, *emulatortest.Log) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	lines, errs, ended := make(firstLine, 1), &emulatortest.Log{}, make(chan int, 1)
	go func() {
		args := append([]string{"local", "--port", "0", "--json"}, flags...)
		streams := cli.Streams{In: strings.NewReader(""), Out: lines, Err: errs}
		ended <- cli.Run(ctx, commands(), args, streams, env.lookup)
		close(lines)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != cli.ExitDone {
			t.Errorf("local: exit %d\n%s", code, errs)
		}
	})
	return exportsOf(t, received(t, lines)), errs
}

// received waits for at most 30 s for what a channel sends.
func received[T any](t testing.TB, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(30 * time.Second):
		t.Fatal("nothing within 30 s")
	}
	return v
}

// exportsOf are the variables, and the pages, of what local prints.
func exportsOf(t testing.TB, line string) vars {
	t.Helper()
	var printed struct {
		Environment      vars
		Console, Doclock string
	}
	must.OK(t, json.Unmarshal([]byte(line), &printed))
	return printed.Environment.with("console", printed.Console).with("doclock", printed.Doclock)
}

// firstLine is a Writer that sends what is written first.
type firstLine chan string

func (f firstLine) Write(p []byte) (int, error) {
	select {
	case f <- string(p):
	default:
	}
	return len(p), nil
}
