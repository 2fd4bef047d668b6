package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/orchestrator"
	"taskguard/worker"
)

func one(context.Context, worker.Job) (int, error) { return 1, nil }

func TestKind_Refused(t *testing.T) {
	g := open(t, emulatortest.Embedded(t), func(o *worker.Options) {
		o.StallTimeout, o.MaxRunTime, o.Queue = time.Minute, 29*time.Minute, someQueue
		o.Queue.TargetURL, o.Queue.EmulatorHost = "https://a.example/base/", "127.0.0.1:1"
	})
	g.MustRegister(jobs(succeed))
	long := strings.Repeat("a", 93)
	for _, tc := range []struct {
		k    worker.Kind
		want string // a word of the error; empty: it is not refused
	}{
		{worker.Kind{Name: "a b", Collection: "c"}, "name"},
		{worker.Kind{Name: "-a", Collection: "c"}, "name"},
		{worker.Kind{Name: "too-long" + long, Collection: "c"}, "name"},
		{worker.Kind{Name: "a"}, "Collection"},
		{worker.Kind{Name: "a", Collection: "c/d"}, `"c/d"`},
		{worker.Kind{Name: "a", Collection: "c", IDField: "a.b"}, "IDField"},
		{worker.Kind{Name: "a", Collection: "c", Fields: worker.Fields{Status: "lockOwner"}}, "lockOwner"},
		{worker.Kind{Name: "do", Collection: "c", Run: succeed}, "Run"},
		{worker.Kind{Name: "a", Collection: "c", Path: "/internal/tasks/recover"}, "Path"},
		{worker.Kind{Name: "a", Collection: "c", Path: "/internal/self-test"}, "Path"},
		{worker.Kind{Name: "a", Collection: "c", Path: "/health/live"}, "Path"},
		{worker.Kind{Name: "a", Collection: "c", Path: "/base"}, "TASK_TARGET_URL"},
		{worker.Kind{Name: "a", Collection: "c", RunTimeout: -1}, "RunTimeout"},
		{worker.Kind{Name: "a", Collection: "c", RunTimeout: time.Minute}, "STALL_TIMEOUT"},
		{worker.Kind{Name: "a", Collection: "c", RunTimeout: 29*time.Minute + 1}, "MAX_RUN_TIME"},
		{worker.Kind{Name: "a", Collection: "c", RunTimeout: 31 * time.Minute}, "RUN_TIMEOUT: 31m0s"},
		// A delivery of one of two kinds with the same path would be handled as the other's.
		{worker.Kind{Name: "a", Collection: "c", Path: "/tasks/job"}, `of kind "job"`},
		{worker.Kind{Name: "a", Collection: "jobs"}, `of kind "job"`},
		{worker.Kind{Name: "job", Collection: "c"}, `of kind "job"`},
		{worker.Kind{Name: "longest" + long, IDField: "id", Collection: "c/d/e", Path: "/a-b.c_~/@"}, ""},
		{worker.Kind{Name: "latest", Collection: "e", RunTimeout: 29 * time.Minute}, ""},
		{worker.Kind{Name: "shortest", Collection: "d", Path: "/", RunTimeout: time.Minute + 1}, ""},
	} {
		work, err := g.Register(tc.k)
		if (tc.want == "") != (err == nil) || (work == nil) != (err != nil) {
			t.Errorf("%+v: error %v, want a problem of %q", tc.k, err, tc.want)
		}
		if err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: error %v, want a problem of %q", tc.k, err, tc.want)
		}
	}
	taken := worker.Kind{Name: "a", Collection: "c", Fields: worker.Fields{Input: "attempts"}}
	if _, err := taken.Filled(); err == nil {
		t.Errorf("the command takes %+v", taken)
	}

	t.Run("a path that Echo would match with another one", func(t *testing.T) {
		for _, path := range []string{
			"x", "/a b", "/a?b", "/a#b", "/tasks/:kind", "/tasks/{kind}", "/tasks/*", "/a%2Fb", "/a\nb", "/a\u0085",
			"//a", "/a//b", "/a/", "/a/../b", "/./a",
		} {
			_, err := worker.Kind{Name: "a", Collection: "c", Path: path}.Filled()
			if err == nil || !strings.Contains(err.Error(), "Path") {
				t.Errorf("%q: error %v", path, err)
			}
		}
	})
	t.Run("a record of Do is made by Do alone, and in no kind's collection", func(t *testing.T) {
		records := g.MustRegister(worker.Kind{Name: "do", Collection: "idempotency"})
		if _, err := records.Submit(t.Context(), "op:key", 1); err == nil {
			t.Error("it is submitted")
		}
		for _, collection := range []string{"jobs", "c/d/e"} {
			_, err := doWith(t.Context(), g, "x", worker.DoOptions{Collection: collection}, one)
			if err == nil || !strings.Contains(err.Error(), "belongs to kind") {
				t.Errorf("Do in %s: error %v", collection, err)
			}
		}
	})
}

// secretive is a type of an input whose error quotes the value.
type secretive struct{}

// UnmarshalJSON refuses everything.
func (*secretive) UnmarshalJSON(value []byte) error { return fmt.Errorf("not %s", value) }

// An input of another form fails for good, and no error has the value.
func TestTyped(t *testing.T) {
	type order struct {
		Cents int `json:"cents"`
		Lines []struct {
			Labels map[string]int `json:"labels"`
		} `json:"lines"`
		Mine *secretive `json:"mine"`
	}
	run := worker.Typed(func(context.Context, order, worker.Job) (any, error) { return nil, nil })
	for input, want := range map[string]string{
		`null`:               "no input",
		``:                   "byte 0",
		`{"cents":secret}`:   "byte 10",
		`[777]`:              "input: want worker_test.order, got array",
		`{"cents":"secret"}`: "input.cents: want int, got string",
		`{"cents":777.5}`:    "input.cents: want int, got number",
		`{"lines":[{"labels":{"secret":"secret"}}]}`: "input.lines.labels: want int, got string",
		`{"mine":"secret"}`:                          "cannot be decoded",
	} {
		_, err := run(t.Context(), worker.Job{Input: []byte(input)})
		permanent, ok := errors.AsType[*orchestrator.PermanentError](err)
		if !ok || permanent.Code != orchestrator.CodeInvalidInput {
			t.Fatalf("%q: error %v, want a permanent one", input, err)
		}
		if !strings.Contains(permanent.Message, want) {
			t.Errorf("%q: %s, want %s", input, permanent.Message, want)
		}
		all := fmt.Sprintf("%v %+v", err, permanent)
		for ; err != nil; err = errors.Unwrap(err) {
			all += err.Error()
		}
		if strings.Contains(all, "secret") || strings.Contains(all, "777") {
			t.Errorf("%q: an error has the value: %s", input, all)
		}
	}
	checkNull[*int](t)
	checkNull[map[string]int](t)
	checkNull[[]int](t)
	checkNull[any](t)
}

// checkNull wants an In that can be nil to be no input.
func checkNull[In any](t *testing.T) {
	t.Helper()
	run := worker.Typed(func(context.Context, In, worker.Job) (any, error) { return "ran", nil })
	if got, err := run(t.Context(), worker.Job{Input: []byte(`null`)}); err != nil || got != "ran" {
		t.Errorf("%v, %v", got, err)
	}
}

// A document with a final word is left alone.
func TestFields_Final(t *testing.T) {
	const past = "1999-12-31T00:00:00.000Z"
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		g, docs := open(t, b, q.Use), collection(t, b, "jobs")
		k := jobs(func(context.Context, worker.Job) (any, error) {
			set(t, docs.Doc("running"), map[string]any{"state": "ARCHIVED", "output": "theirs"})
			return "dropped", nil
		})
		k.Fields.Final = strings.Fields("VOID ARCHIVED u v w x") // as many as there can be
		work := g.MustRegister(k)
		h := must.Get(g.Routes(work))(t)
		archived := map[string]any{ // by a run that has crashed
			"state": "ARCHIVED", "attempts": int64(1), "lockOwner": "them", "lockToken": int64(3),
			"lockExpiresAt": past, "nextAttemptAt": past, "createdAt": past, "updatedAt": past,
		}
		set(t, docs.Doc("archived"), archived)
		const over = `"status":"ARCHIVED","reason":"already_finished"`
		checkPost(t, h, "/tasks/job", `{"job_id":"archived"}`, 200, over)
		s, err := work.Submit(t.Context(), "archived", nil)
		if want := (worker.Submission{Status: "ARCHIVED"}); s != want || err != nil {
			t.Errorf("submitted again: %+v, %v", s, err)
		}
		if err := work.Book(t.Context(), "archived"); err != nil || len(q.Tasks()) > 0 {
			t.Errorf("booked %q, %v", q.Tasks(), err)
		}
		checkPost(t, h, "/internal/tasks/recover", "", 200, `"found":0,`)
		if diff := cmp.Diff(archived, fields(t, docs.Doc("archived"))); diff != "" {
			t.Errorf("the document has changed (-was +is):\n%s", diff)
		}

		set(t, docs.Doc("running"), map[string]any{"state": "archived"}) // another word
		checkPost(t, h, "/tasks/job", `{"job_id":"running"}`, 200, `"acquired":true,"status":"ARCHIVED"`)
		checkRecord(t, docs.Doc("running"), map[string]any{"state": "ARCHIVED", "output": "theirs", "lockOwner": nil})
		checkPost(t, h, "/tasks/job", `{"job_id":"running"}`, 200, over)
	})
}
