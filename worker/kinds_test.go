package worker_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
	"taskguard/worker"
)

func one(context.Context, worker.Job) (int, error) { return 1, nil }

func TestAKindThatCannotWorkIsRefused(t *testing.T) {
	queue := worker.Queue{Name: "projects/p/locations/l/queues/q", TargetURL: "https://a.example/base/", EmulatorHost: "127.0.0.1:1"}
	g := open(t, emulatortest.Embedded(t), func(o *worker.Options) { o.Queue, o.StallTimeout, o.MaxRunTime = queue, time.Minute, 29*time.Minute })
	g.MustRegister(jobs(succeed))
	for _, c := range []struct {
		k    worker.Kind
		want string // contains; empty: it is not refused
	}{
		{worker.Kind{Name: "a b", Collection: "c"}, "the name is not"},
		{worker.Kind{Name: "-a", Collection: "c"}, "the name is not"},
		{worker.Kind{Name: strings.Repeat("a", 101), Collection: "c"}, "the name is not"},
		{worker.Kind{Name: "a"}, "no Collection"},
		{worker.Kind{Name: "a", Collection: "c/d"}, `"c/d" is not the path of a collection`},
		{worker.Kind{Name: "a", Collection: "c", IDField: "a.b"}, `the IDField "a.b"`},
		{worker.Kind{Name: "a", Collection: "c", Fields: worker.Fields{Status: "lockOwner"}}, "lockOwner"},
		{worker.Kind{Name: "a", Collection: "c", Path: "/internal/tasks/recover"}, "taken by another route"},
		{worker.Kind{Name: "do", Collection: "c", Run: func(context.Context, worker.Job) (any, error) { return "", nil }}, "have no Run"},
		{worker.Kind{Name: "a", Collection: "c", Path: "/internal/self-test"}, "taken by another route"},
		{worker.Kind{Name: "a", Collection: "c", Path: "/health/live"}, "taken by another route"},
		{worker.Kind{Name: "a", Collection: "c", Path: "/base"}, "TASK_TARGET_URL: want it without /base"},
		{worker.Kind{Name: "a", Collection: "c", RunTimeout: -1}, "the RunTimeout -1ns is negative"},
		{worker.Kind{Name: "a", Collection: "c", RunTimeout: time.Minute}, "STALL_TIMEOUT: 1m0s is not under RUN_TIMEOUT, 1m0s"},
		{worker.Kind{Name: "a", Collection: "c", RunTimeout: 29*time.Minute + 1}, "MAX_RUN_TIME: 29m0s is under RUN_TIMEOUT"},
		{worker.Kind{Name: "a", Collection: "c", RunTimeout: 31 * time.Minute}, "RUN_TIMEOUT: 31m0s is over 30m0s"},
		// A delivery of one of two kinds with the same path would be handled as the other's.
		{worker.Kind{Name: "a", Collection: "c", Path: "/tasks/job"}, `of kind "job"`},
		{worker.Kind{Name: "a", Collection: "jobs"}, `of kind "job"`},
		{worker.Kind{Name: "job", Collection: "c"}, `of kind "job"`},
		{jobs(succeed), `of kind "job"`},
		{worker.Kind{Name: "longest" + strings.Repeat("a", 93), IDField: "id", Collection: "c/d/e", Path: "/a-b.c_~/@", RunTimeout: 29 * time.Minute}, ""},
		{worker.Kind{Name: "shortest", Collection: "d", Path: "/", RunTimeout: time.Minute + 1}, ""},
	} {
		work, err := g.Register(c.k)
		if refused := err != nil; refused != (c.want != "") || refused == (work != nil) || refused && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want %s", c.k, err, c.want)
		}
	}
	if k, err := (worker.Kind{Name: "a", Collection: "c", Fields: worker.Fields{Input: "attempts"}}).Filled(); err == nil {
		t.Errorf("the command takes %+v", k)
	}
	// In an Echo each of these is, or matches, the route of another path, or none.
	for _, path := range []string{"x", "/a b", "/a?b", "/a#b", "/tasks/:kind", "/tasks/{kind}", "/tasks/*", "/a%2Fb", "/a\nb", "/a\x7f", "/a\u0085", "//a", "/a//b", "/a/", "/a/../b", "/./a"} {
		if _, err := (worker.Kind{Name: "a", Collection: "c", Path: path}).Filled(); err == nil || !strings.Contains(err.Error(), "is not the path of a URL") {
			t.Errorf("the path %q: error %v", path, err)
		}
	}
	records, err := g.Register(worker.Kind{Name: "do", Collection: "idempotency"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := records.Submit(t.Context(), "op:key", 1); err == nil || !strings.Contains(err.Error(), "only by calls of Do") {
		t.Errorf("a record of Do is submitted: %v", err)
	}
	for _, o := range []worker.DoOptions{{Collection: "jobs"}, {Collection: "c/d/e", Keep: time.Hour}} {
		if _, err := doWith(t.Context(), g, "x", o, one); err == nil || !strings.Contains(err.Error(), "belongs to kind") {
			t.Errorf("Do in a kind's collection: error %v", err)
		}
	}
}

// secretive is a type of an input whose error quotes the value.
type secretive struct{}

// UnmarshalJSON refuses everything.
func (*secretive) UnmarshalJSON(value []byte) error { return fmt.Errorf("not %s", value) }

func TestAnInputOfAnotherFormFailsPermanently(t *testing.T) {
	type order struct {
		Cents int `json:"cents"`
		Lines []struct {
			Count  int8           `json:"count"`
			Labels map[string]int `json:"labels"`
		} `json:"lines"`
		Due  time.Time  `json:"due"`
		Mine *secretive `json:"mine"`
	}
	run := worker.Typed(func(context.Context, order, worker.Job) (any, error) { return nil, nil })
	for input, want := range map[string]string{
		`null`:                      "the document has no input",
		``:                          "the input is not JSON from byte 0 on",
		`{"cents":"secret}`:         "the input is not JSON from byte 17 on",
		`{"cents":secret}`:          "the input is not JSON from byte 10 on",
		`[777]`:                     "input: want worker_test.order, got array",
		`"secret"`:                  "input: want worker_test.order, got string",
		`{"cents":"secret"}`:        "input.cents: want int, got string",
		`{"cents":777.5}`:           "input.cents: want int, got number",
		`{"lines":[{"count":777}]}`: "input.lines.count: want int8, got number",
		`{"lines":[{"labels":{"secret":"secret"}}]}`: "input.lines.labels: want int, got string",
		`{"due":"secret"}`:                           "the input cannot be decoded",
		`{"mine":"secret"}`:                          "the input cannot be decoded",
	} {
		_, err := run(t.Context(), worker.Job{Input: []byte(input)})
		permanent, ok := errors.AsType[*orchestrator.PermanentError](err)
		if !ok || permanent.Code != orchestrator.CodeInvalidInput || permanent.Message != want {
			t.Errorf("%q: error %+v, want the message %q", input, permanent, want)
		}
		all := fmt.Sprintf("%v %+v", err, permanent)
		for ; err != nil; err = errors.Unwrap(err) {
			all += err.Error()
		}
		if strings.Contains(all, "secret") || strings.Contains(all, "777") {
			t.Errorf("%q: an error has the value: %s", input, all)
		}
	}
	for name, run := range map[string]func(context.Context, worker.Job) (any, error){
		"pointer":   worker.Typed(func(_ context.Context, in *int, _ worker.Job) (any, error) { return in == nil, nil }),
		"map":       worker.Typed(func(_ context.Context, in map[string]int, _ worker.Job) (any, error) { return in == nil, nil }),
		"slice":     worker.Typed(func(_ context.Context, in []int, _ worker.Job) (any, error) { return in == nil, nil }),
		"interface": worker.Typed(func(_ context.Context, in any, _ worker.Job) (any, error) { return in == nil, nil }),
	} {
		if got, err := run(t.Context(), worker.Job{Input: []byte(`null`)}); err != nil || got != true {
			t.Errorf("null of a %s: %v, %v", name, got, err)
		}
	}
}

func TestADocumentWithAFinalWordIsLeftAlone(t *testing.T) {
	const past = "1999-12-31T00:00:00.000Z"
	left := map[string]any{ // by a run that has crashed
		"attempts": int64(1), "lockOwner": "them", "lockToken": int64(3), "lockExpiresAt": past,
		"nextAttemptAt": past, "createdAt": past, "updatedAt": past,
	}
	for name, k := range map[string]worker.Kind{"analysis": {}, "another vocabulary": jobs(nil)} {
		synctest.Test(t, func(t *testing.T) {
			b, q := emulatortest.Embedded(t), worker.StartQueue(t)
			g := open(t, b, q.Use)
			docs, field, result, path := collection(t, b, "analyses"), "status", "result", "/internal/tasks/analysis"
			if k.Name == "job" {
				docs, field, result, path = collection(t, b, "jobs"), "state", "output", "/tasks/job"
			}
			k.Fields.Final = strings.Fields("VOID ARCHIVED u v w x") // as many as there can be
			k.Run = func(context.Context, worker.Job) (any, error) {
				set(t, docs.Doc("running"), map[string]any{field: "ARCHIVED", result: "theirs"})
				return "dropped", nil
			}
			work := g.MustRegister(k)
			h, err := g.Routes(work)
			if err != nil {
				t.Fatal(err)
			}
			deliver := func(id, want string) {
				t.Helper()
				body := `{"analysis_id":"` + id + `","job_id":"` + id + `"}`
				if code, answer := post(t, h, path, body); code != http.StatusOK || !strings.Contains(answer, want) {
					t.Errorf("%s: the delivery of %s is answered %d %s, want %s", name, id, code, answer, want)
				}
			}

			archived := maps.Clone(left)
			archived[field] = "ARCHIVED"
			set(t, docs.Doc("archived"), archived)
			deliver("archived", `"status":"ARCHIVED","reason":"already_finished"`)
			if s, err := work.Submit(t.Context(), "archived", nil); err != nil || s.Booked || s.Status != "ARCHIVED" {
				t.Errorf("%s: submitted again: %+v, %v", name, s, err)
			}
			if err := work.Book(t.Context(), "archived"); err != nil || len(q.Tasks()) > 0 {
				t.Errorf("%s: booked %q, %v", name, q.Tasks(), err)
			}
			if _, answer := post(t, h, "/internal/tasks/recover", ""); !strings.Contains(answer, `"found":0,`) {
				t.Errorf("%s: recovery answers %s", name, answer)
			}
			if diff := cmp.Diff(archived, fields(t, docs.Doc("archived"))); diff != "" {
				t.Errorf("%s: the document has changed (-was +is):\n%s", name, diff)
			}

			set(t, docs.Doc("running"), map[string]any{field: "archived"}) // another word
			deliver("running", `"acquired":true,"status":"ARCHIVED"`)
			checkRecord(t, docs.Doc("running"), map[string]any{field: "ARCHIVED", result: "theirs", "lockOwner": nil})
			deliver("running", `"status":"ARCHIVED","reason":"already_finished"`)
		})
	}
}
