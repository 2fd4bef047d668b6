package workertest_test

import (
	"context"
	"testing"

	"taskguard/worker"
	"taskguard/worker/workertest"
)

// An order is charged once, whatever happens.
func ExampleRun() {
	_ = func(t *testing.T) {
		workertest.Run(t, func(acts *workertest.Acts) func(*worker.Guard) worker.Kind {
			run := func(ctx context.Context, job worker.Job) (any, error) {
				return worker.Once(ctx, job, "charge", func(ctx context.Context) (string, error) {
					return "receipt", acts.Do(ctx, "charge", nil)
				})
			}
			return func(*worker.Guard) worker.Kind { return worker.Kind{Run: run} } // in each process
		}, 4200, workertest.Options{})
	}
}

// A test of a service, which the queue calls.
func ExampleNew() {
	_ = func(t *testing.T) {
		kind := worker.Kind{Run: func(context.Context, worker.Job) (any, error) { return "done", nil }}
		rig := workertest.New(t)
		work := rig.Guard(worker.Options{}).MustRegister(kind)
		rig.Mux.Handle("POST "+work.Path, work.Handler())
		if _, err := work.Submit(t.Context(), "an-id", nil); err != nil {
			t.Fatal(err)
		}
		if err := rig.Tasks.Idle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
