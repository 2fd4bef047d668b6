package worker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/emulatortest"
	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/worker"
)

// A delivery of one of two kinds with the same path would be handled as the other's.
func TestTwoKindsShareNeitherPathNorCollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := open(t, emulatortest.Embedded(t), nil)
		g.Handler(jobs(succeed))
		for name, k := range map[string]worker.Kind{
			"path":       {Name: "other", Collection: "others", Path: "/tasks/job"},
			"collection": {Name: "other", Collection: "jobs"},
			"name":       {Name: "job", Collection: "others"},
		} {
			if _, err := worker.Submit(t.Context(), g, k, "x", 1); err == nil || !strings.Contains(err.Error(), `kind "`) {
				t.Errorf("the same %s: error %v", name, err)
			}
		}
		if _, err := worker.DoWith(t.Context(), g, "x", worker.DoOptions{Collection: "jobs"}, one); err == nil || !strings.Contains(err.Error(), `"job"`) {
			t.Errorf("Do in a kind's collection: error %v", err)
		}
	})
}

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

func TestOptionsThatContradictEachOtherAreRefused(t *testing.T) {
	queue := worker.Queue{Name: "projects/p/locations/l/queues/q", TargetURL: "https://a.example", Caller: "a@b.c"}
	for want, o := range map[string]worker.Options{
		"CheckpointInterval 1ns":      {CheckpointInterval: 1},
		"RetryMax 48h":                {RetryMin: 48 * time.Hour, RetryMax: 48 * time.Hour},
		"negative":                    {RunTimeout: -1},
		"StallTimeout":                {StallTimeout: time.Hour},
		"MaxRunTime":                  {MaxRunTime: time.Minute},
		"TTL":                         {Lock: lease.Policy{TTL: time.Millisecond}},
		"Auth would refuse the tasks": {Queue: queue, Auth: worker.OIDC("https://a.example", "other@b.c")},
		"or Audience":                 {Queue: queue, Auth: worker.OIDC("https://other.example", "a@b.c")},
		"taskauth":                    {Auth: worker.OIDC("https://a.example")},
		"TASK_QUEUE":                  {Queue: worker.Queue{Name: "q"}},
	} {
		o.Project, o.Emulator = "p", "127.0.0.1:1" // no credentials are needed
		if g, err := worker.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", want, err)
			if g != nil {
				_ = g.Shutdown(t.Context())
			}
		}
	}
}

func TestARunLongerThanAllRunsIsRefused(t *testing.T) {
	g := open(t, emulatortest.Embedded(t), nil)
	k := jobs(succeed)
	k.RunTimeout = 25 * time.Hour
	if _, err := worker.Submit(t.Context(), g, k, "x", 1); err == nil || !strings.Contains(err.Error(), "MaxRunTime") {
		t.Errorf("error %v", err)
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
		b := emulatortest.Embedded(t)
		g := open(t, b, func(o *worker.Options) {
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
		if at, _ := fields(t, collection(t, b, "jobs").Doc("x"))["expireAt"].(time.Time); time.Until(at).Round(time.Minute) != 48*time.Hour {
			t.Errorf("deleted at %v", at)
		}
	})
}
