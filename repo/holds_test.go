package repo

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// worker is an Analyses with a connection of its own and the holds that it acquired.
type worker struct {
	*Analyses
	mu    sync.Mutex
	holds map[string]*analysislock.Hold // by owner
	again bool                          // its deliveries are retries, which begin with the masked read
}

// open connects a worker to b.
func open(t testing.TB, b *emulatortest.Backend, opts ...grpc.DialOption) *worker {
	t.Helper()
	a, err := Open(t.Context(), b.Project, optionsFor(b, Options{Policy: lease.Policy{TTL: ttl(b), MaxAttempts: 10}}), b.Client(t, opts...)...)
	fatal(t, err)
	return &worker{Analyses: a, holds: map[string]*analysislock.Hold{}}
}

// openFaulty connects a worker to b by a connection that fails as planned.
func openFaulty(t testing.TB, b *emulatortest.Backend) (*worker, *faultyConn) {
	t.Helper()
	l := &faultyConn{}
	return open(t, b, l.options()...), l
}

// optionsFor returns o for the documents of b.
func optionsFor(b *emulatortest.Backend, o Options) Options {
	o.Collection, o.Fields = b.Collection, Fields(b.Vocabulary)
	return o
}

// acquire acquires id as a delivery does, and keeps the hold.
func (w *worker) acquire(ctx context.Context, id, owner string) (analysislock.Acquisition, error) {
	if !w.again {
		ctx = analysislock.WithWork(ctx)
	}
	acq, err := w.AcquireAnalysisLock(ctx, id, owner, 0, nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds[owner] = acq.Hold
	return acq, err
}

// run runs body with owner's hold.
func (w *worker) run(ctx context.Context, owner string, body func(ctx context.Context, work analysislock.Work) error) error {
	return w.holds[owner].Run(ctx, body)
}

// runs runs a body that ends at once, and checks that it ran.
func (w *worker) runs(t *testing.T, owner string) {
	t.Helper()
	ran := false
	err := w.run(t.Context(), owner, func(context.Context, analysislock.Work) error {
		ran = true
		return nil
	})
	if err != nil || !ran {
		t.Errorf("run as %s: %v, ran %v", owner, err, ran)
	}
}

func acquire(t testing.TB, w *worker, id, owner string) analysislock.Acquisition {
	t.Helper()
	acq, err := w.acquire(t.Context(), id, owner)
	if err != nil {
		t.Fatalf("acquire %s as %s: %v", id, owner, err)
	}
	return acq
}

func mustAcquire(t testing.TB, w *worker, id, owner string) analysislock.Acquisition {
	t.Helper()
	acq := acquire(t, w, id, owner)
	if !acq.Acquired {
		t.Fatalf("acquire %s as %s: %+v", id, owner, acq)
	}
	return acq
}

// withoutRuns removes from a document's fields when it was written and what its runs were.
func withoutRuns(fields map[string]any) map[string]any {
	for _, name := range []string{"updatedAt", "startedAt", "history", "progress"} {
		delete(fields, name)
	}
	return fields
}

// check fails the test after an error, and fatal ends it.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same compares two values.
func same(t testing.TB, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
