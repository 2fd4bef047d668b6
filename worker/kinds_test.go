package worker_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/api/option"

	"taskguard/internal/emulatortest"
	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/worker"
)

func one(context.Context, worker.Job) (int, error) { return 1, nil }

// Each Run is called by the handler that was made with it.
func TestEachHandlerCallsItsOwnRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		g := open(t, b, nil)
		for _, name := range []string{"a", "b"} {
			b.Put(t, name, map[string]any{"status": "QUEUED"})
		}
		run := func(name string) worker.Kind {
			return worker.Kind{Run: func(context.Context, worker.Job) (any, error) { return name, nil }}
		}
		a, other := g.Handler(run("a")), g.Handler(run("b"))
		post(t, a, "/", `{"analysis_id":"a"}`)
		post(t, other, "/", `{"analysis_id":"b"}`)
		for _, name := range []string{"a", "b"} {
			if got := b.Fields(t, name)["result"]; got != name {
				t.Errorf("the result of %s is %v", name, got)
			}
		}
	})
}

// Open and FromEnv share the check; internal/workerservice tests FromEnv.
func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	queue := worker.Queue{Name: "projects/p/locations/l/queues/q", TargetURL: "https://a.example", Caller: "a@b.c"}
	for want, o := range map[string]worker.Options{
		`Project, GOOGLE_CLOUD_PROJECT: "a/b" is not a name`:                     {Project: "a/b"},
		`Database, FIRESTORE_DATABASE: "a/b" is not a name`:                      {Database: "a/b"},
		`Emulator, FIRESTORE_EMULATOR_HOST: "http://h:1" is not host:port`:       {Emulator: "http://h:1"},
		`Collection, ANALYSES_COLLECTION: "a/b" is not the path of a collection`: {Collection: "a/b"},
		"Lock, LOCK_TTL, LOCK_HEARTBEAT: TTL 1ms is under 1s":                    {Lock: lease.Policy{TTL: time.Millisecond}},
		"RunTimeout, RUN_TIMEOUT: -1ns is not positive":                          {RunTimeout: -1},
		"RunTimeout, RUN_TIMEOUT: 24h0m0.000000001s is over 24h0m0s":             {RunTimeout: 24*time.Hour + 1, MaxRunTime: 48 * time.Hour},
		"RunTimeout, RUN_TIMEOUT: 30m0.000000001s is over 30m0s":                 {RunTimeout: 30*time.Minute + 1, Queue: queue},
		"CheckpointInterval, CHECKPOINT_INTERVAL: 999.999999ms is under 1s":      {CheckpointInterval: time.Second - 1},
		"StallTimeout, STALL_TIMEOUT: -1ns is negative":                          {StallTimeout: -1},
		"StallTimeout, STALL_TIMEOUT: 25m0s is not under RUN_TIMEOUT, 25m0s":     {StallTimeout: 25 * time.Minute},
		"MaxRunTime, MAX_RUN_TIME: 24m59.999999999s is under RUN_TIMEOUT, 25m0s": {MaxRunTime: 25*time.Minute - 1},
		"MaxRuns, MAX_RUNS: -1 is negative":                                      {MaxRuns: -1},
		"RetryMin, RETRY_MIN: -1ns is negative":                                  {RetryMin: -1},
		"RetryMin, RETRY_MIN: 30s is over RETRY_MAX, 29.999999999s":              {RetryMax: 30*time.Second - 1},
		"RetryMax, RETRY_MAX: 12h0m0.000000001s is over 12h":                     {RetryMax: 12*time.Hour + 1},
		"Keep, KEEP_FINISHED: -1ns is negative":                                  {Keep: -1},
		"Keep, KEEP_FINISHED: 767h59m59.999999999s is under 768h":                {Keep: 768*time.Hour - 1, Queue: queue},
		"Queue, TASK_QUEUE: ":                                                             {Queue: worker.Queue{Name: "q"}},
		"Queue, CLOUD_TASKS_EMULATOR_HOST: ":                                              {Queue: worker.Queue{Name: queue.Name, TargetURL: queue.TargetURL, EmulatorHost: "h"}},
		"the Auth would refuse the tasks of the Queue: Caller is not among":               {Queue: queue, Auth: worker.OIDC("https://a.example", "other@b.c")},
		"the Auth would refuse the tasks of the Queue: Caller is not among its accounts,": {Queue: queue, Auth: worker.OIDC("https://other.example", "a@b.c")},
		"taskauth": {Auth: worker.OIDC("https://a.example")},
		"": {Project: "example.com:p", RunTimeout: 30 * time.Minute, MaxRunTime: 30 * time.Minute, CheckpointInterval: time.Second, StallTimeout: 30*time.Minute - 1,
			RetryMin: 12 * time.Hour, RetryMax: 12 * time.Hour, Keep: 768 * time.Hour, Queue: queue, Auth: worker.OIDC("https://a.example", "other@b.c", "a@b.c")},
		"no queue": {RunTimeout: 24 * time.Hour, Keep: time.Hour},
	} {
		o.Project, o.Emulator = cmp.Or(o.Project, "p"), cmp.Or(o.Emulator, "127.0.0.1:1") // no credentials are needed
		o.QueueOptions = []option.ClientOption{option.WithoutAuthentication()}
		g, err := worker.Open(t.Context(), o)
		if valid := want == "" || want == "no queue"; valid != (err == nil) || err != nil && !strings.Contains(err.Error(), "worker: options: "+want) {
			t.Errorf("%s: error %v", want, err)
		}
		if g != nil {
			_ = g.Shutdown(t.Context())
		}
	}
}

func TestAKindThatCannotWorkIsRefused(t *testing.T) {
	queue := worker.Queue{Name: "projects/p/locations/l/queues/q", TargetURL: "https://a.example", EmulatorHost: "127.0.0.1:1"}
	g := open(t, emulatortest.Embedded(t), func(o *worker.Options) { o.Queue, o.StallTimeout, o.MaxRunTime = queue, time.Minute, 29*time.Minute })
	g.Handler(jobs(succeed))
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
		{worker.Kind{Name: "a", Collection: "c", Path: "/internal/tasks/recover"}, "that of another route"},
		{worker.Kind{Name: "a", Collection: "c", Path: "/health/live"}, "that of another route"},
		{worker.Kind{Name: "a", Collection: "c", RunTimeout: -1}, "the RunTimeout -1ns is negative"},
		{worker.Kind{Name: "a", Collection: "c", RunTimeout: time.Minute}, "STALL_TIMEOUT: 1m0s is not under RUN_TIMEOUT, 1m0s"},
		{worker.Kind{Name: "a", Collection: "c", RunTimeout: 29*time.Minute + 1}, "MAX_RUN_TIME: 29m0s is under RUN_TIMEOUT"},
		{worker.Kind{Name: "a", Collection: "c", RunTimeout: 31 * time.Minute}, "RUN_TIMEOUT: 31m0s is over 30m0s"},
		// A delivery of one of two kinds with the same path would be handled as the other's.
		{worker.Kind{Name: "a", Collection: "c", Path: "/tasks/job"}, `of kind "job"`},
		{worker.Kind{Name: "a", Collection: "jobs"}, `of kind "job"`},
		{worker.Kind{Name: "job", Collection: "c", Path: "/tasks/job", Fields: jobs(nil).Fields}, "differs from the kind"},
		{worker.Kind{Name: "job", Collection: "jobs", Path: "/tasks/job"}, "differs from the kind"},
		{jobs(nil), ""},
		{worker.Kind{Name: "longest" + strings.Repeat("a", 93), IDField: "id", Collection: "c/d/e", Path: "/a-b.c_~/@", RunTimeout: 29 * time.Minute}, ""},
		{worker.Kind{Name: "shortest", Collection: "d", Path: "/", RunTimeout: time.Minute + 1}, ""},
	} {
		_, err := worker.Submit(t.Context(), g, c.k, "a/b", 1)
		if refused := !errors.Is(err, lease.ErrInvalidKey); refused != (c.want != "") || refused && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want %s", c.k, err, c.want)
		}
	}
	// In an Echo each of these is, or matches, the route of another path, or none.
	for _, path := range []string{"x", "/a b", "/a?b", "/a#b", "/tasks/:kind", "/tasks/*", "/a%2Fb", "/a\nb", "/a\x7f", "/a\u0085", "//a", "/a//b", "/a/", "/a/../b", "/./a"} {
		if _, err := (worker.Kind{Name: "a", Collection: "c", Path: path}).Filled(); err == nil || !strings.Contains(err.Error(), "is not the path of a URL") {
			t.Errorf("the path %q: error %v", path, err)
		}
	}
	for _, o := range []worker.DoOptions{{Collection: "jobs"}, {Collection: "c/d/e", Keep: time.Hour}} {
		if _, err := worker.DoWith(t.Context(), g, "x", o, one); err == nil || !strings.Contains(err.Error(), "is that of kind") {
			t.Errorf("Do in a kind's collection: error %v", err)
		}
	}
}

func TestAfterShutdownNothingIsSubmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		g, err := worker.Open(t.Context(), worker.Options{Project: b.Project, FirestoreOptions: b.Client(t)})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := worker.Submit(t.Context(), g, worker.Kind{}, "x", 1); !errors.Is(err, worker.ErrStopping) {
			t.Errorf("error %v", err)
		}
	})
}

func TestAnInputOfAnotherFormFailsPermanently(t *testing.T) {
	run := worker.Typed(func(context.Context, struct{ Text string }, worker.Job) (any, error) { return nil, nil })
	pointer := worker.Typed(func(context.Context, *int, worker.Job) (any, error) { return "none", nil })
	for _, input := range []string{`null`, `[]`, ``} {
		var permanent *orchestrator.PermanentError
		if _, err := run(t.Context(), worker.Job{Input: []byte(input)}); !errors.As(err, &permanent) || permanent.Code != orchestrator.CodeInvalidInput {
			t.Errorf("%q: error %v", input, err)
		}
	}
	if got, err := pointer(t.Context(), worker.Job{Input: []byte(`null`)}); err != nil || got != "none" {
		t.Errorf("a pointer: %v, %v", got, err)
	}
}

// With Keep the first token is not 1.
func TestTheTimeToStartIsLoggedWithKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		g := open(t, emulatortest.Embedded(t), func(o *worker.Options) {
			o.Keep, o.Log = 48*time.Hour, slog.New(slog.NewTextHandler(&log, nil))
		})
		if _, err := worker.Submit(t.Context(), g, jobs(nil), "x", 21); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		post(t, g.Handler(jobs(succeed)), "/", `{"job_id":"x"}`)
		if !strings.Contains(log.String(), "time_to_start_ms=1000 ") {
			t.Errorf("log: %s", &log)
		}
	})
}
