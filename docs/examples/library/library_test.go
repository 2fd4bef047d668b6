// Package library runs the module's programs against the embedded Firestore and Cloud Tasks.
package library

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	firestoreapi "cloud.google.com/go/firestore"

	"taskguard/emulator/cloudtasks"
	"taskguard/emulator/firestore"
	"taskguard/worker"

	"example.com/library/kinds"
)

// The commands know the kinds by the KINDS that the page shows.
func TestKinds(t *testing.T) {
	page := must(os.ReadFile("../../library.md"))(t)
	_, text, _ := strings.Cut(string(page), "export KINDS='")
	text, _, _ = strings.Cut(text, "'\n")
	var shown []worker.Kind
	check(t, json.Unmarshal([]byte(text), &shown))
	want := kinds.Jobs
	want.Run = nil
	if !reflect.DeepEqual(shown, []worker.Kind{{}, want}) {
		t.Errorf("the kinds are %+v, want {} and %+v", shown, want)
	}
}

const (
	project = "my-project"
	hang    = time.Minute // for something that takes milliseconds on an idle machine
)

// cloud is an emulated Firestore and Cloud Tasks, which the environment names.
type cloud struct{ documents *firestoreapi.Client }

func newCloud(t *testing.T) *cloud {
	t.Helper()
	store, queue := firestore.NewServer(firestore.Options{}), cloudtasks.NewServer(cloudtasks.Options{})
	t.Cleanup(queue.Close)
	t.Cleanup(store.Close)
	const name = "projects/my-project/locations/here/queues/q"
	check(t, queue.CreateQueue(&cloudtaskspb.Queue{Name: name}))
	serve := func(serve func(net.Listener) error) (address string) {
		l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
		go func() { _ = serve(l) }()
		return l.Addr().String()
	}
	for name, value := range map[string]string{
		"GOOGLE_CLOUD_PROJECT": project, "FIRESTORE_EMULATOR_HOST": serve(store.Serve),
		"TASK_QUEUE": name, "CLOUD_TASKS_EMULATOR_HOST": serve(queue.Serve), "TASK_AUTH": "none",
	} {
		t.Setenv(name, value)
	}
	c := &cloud{documents: must(firestoreapi.NewClient(t.Context(), project))(t)}
	t.Cleanup(func() { _ = c.documents.Close() })
	return c
}

// document returns the fields of a document.
func (c *cloud) document(t *testing.T, path string) map[string]any {
	t.Helper()
	doc := must(c.documents.Doc(path).Get(t.Context()))(t)
	return doc.Data()
}

// await waits until the document has the value in the field, and returns it.
func (c *cloud) await(t *testing.T, path, field string, want any) map[string]any {
	t.Helper()
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		doc := c.document(t, path)
		if doc[field] == want {
			return doc
		}
		if time.Since(began) > hang {
			t.Fatalf("%s is %v, want %s %v", path, doc, field, want)
		}
	}
}

// build returns the program of a package.
func build(t *testing.T, pkg string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), pkg)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./"+pkg)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// freePort returns a free port, and makes it that of the target.
func freePort(t *testing.T) string {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = l.Close() }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	t.Setenv("TASK_TARGET_URL", "http://127.0.0.1:"+port)
	return port
}

// service is a running program.
type service struct {
	*exec.Cmd
	log bytes.Buffer
}

// start starts a service on a port, and waits until it is ready.
func start(t *testing.T, program, port string) *service {
	t.Helper()
	s := &service{Cmd: exec.CommandContext(t.Context(), program)}
	s.Stdout, s.Stderr = &s.log, &s.log
	s.Env = append(os.Environ(), "PORT="+port)
	check(t, s.Start())
	for began := time.Now(); !ready(port); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > hang {
			t.Fatalf("%s is not ready", program)
		}
	}
	return s
}

// ready reports whether the service on the port is ready.
func ready(port string) bool {
	resp, err := http.Get("http://127.0.0.1:" + port + "/health/ready")
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close() // it is read
	return resp.StatusCode == http.StatusOK
}

// stop stops a service as Cloud Run does, and checks its exit code.
func (s *service) stop(t *testing.T) {
	t.Helper()
	check(t, s.Process.Signal(syscall.SIGTERM))
	if err := s.Wait(); err != nil {
		t.Errorf("%s ends with %v\n%s", s.Path, err, &s.log)
	}
}

// open returns a guard of this process, which only submits.
func open(t *testing.T) *worker.Guard {
	t.Helper()
	guard := must(worker.Open(t.Context(), must(worker.FromEnv(os.LookupEnv))(t)))(t)
	t.Cleanup(func() { check(t, guard.Shutdown(context.WithoutCancel(t.Context()))) })
	return guard
}

func TestEchoservice(t *testing.T) {
	c, program := newCloud(t), build(t, "echoservice")
	port := freePort(t)
	s := start(t, program, port)
	second := exec.CommandContext(t.Context(), program)
	second.Env = append(os.Environ(), "PORT="+port)
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "address already in use") {
		t.Errorf("a service whose port is in use ends with %v\n%s", err, out)
	}
	guard := open(t)
	analyses, jobs := guard.MustRegister(kinds.Analyses), guard.MustRegister(kinds.Jobs)
	submit := func(work *worker.Work, id string, input any) {
		t.Helper()
		got, err := work.Submit(t.Context(), id, input)
		if done := got.Created && got.Booked; err != nil || !done {
			t.Fatalf("Submit = %+v, %v", got, err)
		}
	}

	submit(analyses, "a", kinds.Text{Text: "to be or not to be"})
	submit(jobs, "j", kinds.Book{Pages: 4})
	if doc := c.await(t, "analyses/a", "status", "READY"); fmt.Sprint(doc["result"]) != "map[words:6]" {
		t.Errorf("the analysis is %v", doc)
	}
	doc := c.await(t, "jobs/j", "state", "DONE")
	if doc["output"] != int64(10) {
		t.Errorf("the job is %v", doc)
	}
	wantNone(t, doc, "status", "checkpoint")

	// A service that is stopped gives the work back, and the next one continues it.
	submit(jobs, "long", kinds.Book{Pages: 10_000, Milliseconds: 100})
	for c.document(t, "jobs/long")["checkpoint"] == nil {
		time.Sleep(20 * time.Millisecond)
	}
	s.stop(t)
	doc = c.document(t, "jobs/long")
	checkpoint, _ := doc["checkpoint"].(map[string]any)
	pages, _ := checkpoint["Done"].(int64)
	if pages++; doc["state"] != "PENDING" || pages == 1 {
		t.Errorf("after the stop the job is %v", doc)
	}
	wantNone(t, doc, "lockOwner", "lockExpiresAt")
	shorter := []firestoreapi.Update{{Path: "payload.Pages", Value: pages}}
	must(c.documents.Doc("jobs/long").Update(t.Context(), shorter))(t)
	s = start(t, program, port)
	doc = c.await(t, "jobs/long", "state", "DONE")
	if doc["output"] != pages*(pages+1)/2 || doc["lockToken"] != int64(2) {
		t.Errorf("the continued job is %v, want %d pages", doc, pages)
	}
	resp := must(http.Post("http://127.0.0.1:"+port+"/internal/tasks/recover", "", nil))(t)
	answer, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it is read
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(answer), `"found":0`) {
		t.Errorf("recovery answers %d %s", resp.StatusCode, answer)
	}
	s.stop(t)
}

// Each delivery starts a process, which runs the report under the lock.
func TestLongrun(t *testing.T) {
	c, program := newCloud(t), build(t, "longrun")
	port := freePort(t)
	s := start(t, program, port)
	work := open(t).MustRegister(worker.Kind{Name: "report", Collection: "reports"})
	must(work.Submit(t.Context(), "x", map[string]string{"Month": "2026-03"}))(t)

	doc := c.await(t, "reports/x", "status", "READY")
	result, _ := doc["result"].(string)
	by, found := strings.CutPrefix(result, "report of 2026-03 by process ")
	another := found && by != fmt.Sprint(s.Process.Pid)
	if !another || doc["lockToken"] != int64(1) {
		t.Errorf("the report is %v, want one by another process than the service, %d", doc, s.Process.Pid)
	}
	s.stop(t)
}

func TestService(t *testing.T) {
	c, program := newCloud(t), build(t, "service")
	port := freePort(t)
	s := start(t, program, port)
	work := open(t).MustRegister(worker.Kind{Name: "words", Collection: "words"})
	must(work.Submit(t.Context(), "x", map[string]string{"Text": "to be or not to be"}))(t)
	if doc := c.await(t, "words/x", "status", "READY"); doc["result"] != int64(6) {
		t.Errorf("the document is %v", doc)
	}
	s.stop(t)
}

func TestOnce(t *testing.T) {
	newCloud(t)
	program := build(t, "once")
	var results [2]string
	for i := range results {
		out := must(exec.CommandContext(t.Context(), program, "2026-11").Output())(t)
		results[i] = string(out)
	}
	if results[0] != results[1] {
		t.Errorf("the results are %q, want one result twice", results)
	}
}

// wantNone checks that a document has none of the fields.
func wantNone(t *testing.T, doc map[string]any, fields ...string) {
	t.Helper()
	for _, field := range fields {
		if doc[field] != nil {
			t.Errorf("%s is %v", field, doc[field])
		}
	}
}

// check fails the test on an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns the value of a call that has to succeed.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}
