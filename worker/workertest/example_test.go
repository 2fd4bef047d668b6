package workertest_test

import (
	"context"
	"testing"

	"taskguard/worker"
	"taskguard/worker/workertest"
)

// An order is charged once, whatever happens.
func ExampleRun() {
	var t *testing.T // of the test

	workertest.Run(t, func(acts *workertest.Acts) func() worker.Kind {
		return func() worker.Kind { // in each process
			return worker.Kind{Run: func(ctx context.Context, job worker.Job) (any, error) {
				return worker.Once(ctx, job, "charge", func(ctx context.Context) (string, error) {
					return "receipt", acts.Do(ctx, "charge", nil)
				})
			}}
		}
	}, 4200, workertest.Options{})
}

// A test of a whole service, whose queue calls it.
func ExampleNew() {
	var t *testing.T // of the test

	kind := worker.Kind{Run: func(context.Context, worker.Job) (any, error) { return "done", nil }}
	rig := workertest.New(t)
	guard := rig.Guard(worker.Options{})
	rig.Mux.Handle("/", guard.Routes(kind))
	if _, err := worker.Submit(t.Context(), guard, kind, "an-id", nil); err != nil {
		t.Fatal(err)
	}
	if err := rig.Tasks.Idle(t.Context()); err != nil {
		t.Fatal(err)
	}
}
